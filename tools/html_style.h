// The style sheet of plan pages.
#pragma once

#include <string_view>

namespace lossc::cli {

inline constexpr std::string_view page_style = R"css(
:root {
  color-scheme: light dark;
  --paper: #fbfaf7; --card: #ffffff; --ink: #1d2430; --soft: #5c6675; --line: #d9d6cd;
  --logits: #2563c9; --other: #8b46c1; --gradient: #16804c; --seam: #b45309; --quiet: #f1efe9; --on: #ffffff;
  --region: #eef4ff; --region-line: #9db9ea; --seam-fill: #fff6e5;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171d; --card: #1b2028; --ink: #e7eaf0; --soft: #98a3b3; --line: #333b47;
    --logits: #77a8f7; --other: #c792ea; --gradient: #5fce94; --seam: #f0ad4e; --quiet: #222832; --on: #10141a;
    --region: #1c2a42; --region-line: #3f5f96; --seam-fill: #33291a;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
}
main { max-width: 1128px; margin: 0 auto; padding: 32px 24px 64px; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; letter-spacing: -0.01em; }
h2 { font-size: 17px; margin: 36px 0 12px; }
p { margin: 4px 0; }
.soft { color: var(--soft); }
code, pre, .mono { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 12.5px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(220px, 1fr)); gap: 12px; margin: 24px 0 0; }
.tile { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 12px 16px; }
.tile .what { color: var(--soft); font-size: 13px; }
.tile .value { font-size: 25px; font-weight: 650; letter-spacing: -0.02em; font-variant-numeric: tabular-nums; }
.tile .value small { display: block; font-size: 14px; line-height: 1.3; font-weight: 500; color: var(--soft); letter-spacing: 0; }
.meter { height: 6px; border-radius: 3px; background: var(--quiet); margin-top: 8px; overflow: hidden; }
.meter i { display: block; height: 100%; background: var(--gradient); }
.meter i.over { background: var(--seam); }
.flow { background: var(--card); border: 1px solid var(--line); border-radius: 12px; padding: 16px 22px; overflow-x: auto; }
.flow svg { display: block; width: 100%; min-width: 820px; height: auto; }
svg text { fill: var(--ink); font-size: 13px; }
svg .title { font-weight: 650; font-size: 15px; }
svg .note { fill: var(--soft); font-size: 11.5px; }
svg .label { fill: var(--soft); font-size: 11.5px; font-weight: 600; }
svg .label.emit { fill: var(--gradient); font-size: 12.5px; }
svg .name, svg .code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; font-size: 12px; }
svg .code { white-space: pre; }
svg .name { font-weight: 600; }
svg .box { fill: var(--quiet); stroke: var(--line); }
svg .box.region { fill: var(--region); stroke: var(--region-line); stroke-width: 1.3; }
svg .box.seam { fill: var(--seam-fill); stroke: var(--seam); stroke-dasharray: 7 4; stroke-width: 1.5; }
svg .stitch { stroke: var(--seam); stroke-width: 1.5; stroke-dasharray: 7 4; opacity: 0.55; fill: none; }
svg .rail { fill: none; stroke-width: 6; stroke-linecap: round; opacity: 0.8; }
svg .read, svg .write { fill: none; stroke-width: 2.2; }
svg .link { stroke: var(--soft); stroke-width: 1.6; fill: none; }
svg .rail.logits, svg .read.logits { stroke: var(--logits); }
svg .rail.other, svg .read.other { stroke: var(--other); }
svg .write { stroke: var(--gradient); }
svg .stop { stroke: var(--card); stroke-width: 2; }
svg .stop.logits { fill: var(--logits); }
svg .stop.other { fill: var(--other); }
svg .stop.gradient { fill: var(--gradient); }
svg .head { stroke: none; }
svg .head.link { fill: var(--soft); }
svg .head.read.logits { fill: var(--logits); }
svg .head.read.other { fill: var(--other); }
svg .head.write { fill: var(--gradient); }
svg .code.quiet { fill: var(--soft); }
svg .left { font-weight: 650; }
svg .pass.logits { fill: var(--logits); }
svg .pass.other { fill: var(--other); }
svg .pass.gradient { fill: var(--gradient); }
svg .on { fill: var(--on); font-weight: 600; font-size: 14px; }
.columns { display: grid; grid-template-columns: 1fr 1fr; gap: 12px; }
.columns h3 { font-size: 13px; color: var(--soft); margin: 0 0 6px; font-weight: 600; }
.chips { display: flex; flex-wrap: wrap; gap: 6px; }
.chips code { background: var(--quiet); border-radius: 6px; padding: 1px 8px; }
@media (max-width: 700px) { .columns { grid-template-columns: 1fr; } }
table { border-collapse: collapse; width: 100%; background: var(--card); border: 1px solid var(--line); border-radius: 10px; overflow: hidden; }
th, td { text-align: left; vertical-align: top; padding: 8px 14px; border-top: 1px solid var(--line); }
th { font-size: 12.5px; font-weight: 600; color: var(--soft); border-top: 0; }
details { background: var(--card); border: 1px solid var(--line); border-radius: 10px; margin: 10px 0; }
summary { cursor: pointer; padding: 10px 16px; font-weight: 600; }
pre { margin: 0; padding: 4px 16px 14px; overflow-x: auto; white-space: pre-wrap; overflow-wrap: anywhere; }
footer { margin-top: 32px; color: var(--soft); font-size: 13px; overflow-wrap: anywhere; }
)css";

}  // namespace lossc::cli
