#include <fmt/format.h>

#include <algorithm>

#include "plot.h"

namespace demo {
namespace {

constexpr double panel_width = 560, panel_height = 380, header = 56;
constexpr double left = 62, right = 24, top = 64, bottom = 50;
constexpr double plot_width = panel_width - left - right, plot_height = panel_height - top - bottom;

constexpr const char* style = R"svg(
  svg { --surface: #fcfcfb; --ink: #0b0b0b; --quiet: #52514e; --grid: #e1e0d9; --axis: #c3c2b7;
        --series0: #2a78d6; --series1: #1baf7a; --level: #898781; }
  @media (prefers-color-scheme: dark) {
    svg { --surface: #1a1a19; --ink: #ffffff; --quiet: #c3c2b7; --grid: #2c2c2a; --axis: #383835;
          --series0: #3987e5; --series1: #199e70; --level: #898781; }
  }
  text { font: 12px system-ui, -apple-system, "Segoe UI", sans-serif; fill: var(--quiet); }
  .title { font-size: 18px; font-weight: 600; fill: var(--ink); }
  .panel { font-size: 14px; font-weight: 600; fill: var(--ink); }
  .number { font-variant-numeric: tabular-nums; }
  .grid { stroke: var(--grid); } .axis { stroke: var(--axis); }
  .level { stroke: var(--level); stroke-dasharray: 5 4; stroke-width: 1.5; }
  .line { fill: none; stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
  .line0 { stroke: var(--series0); } .line1 { stroke: var(--series1); }
  .dot { stroke: var(--surface); stroke-width: 1.5; }
  .dot0 { fill: var(--series0); } .dot1 { fill: var(--series1); }
)svg";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string number(double value) {
  return fmt::format("{:.6g}", value);
}

class Panel {
 public:
  explicit Panel(const Chart& chart) : chart_(chart), x_max_(x_max(chart)) {}

  std::string draw(double at_x, double at_y) {
    add(R"svg(<g transform="translate({:.0f} {:.0f})">)svg", at_x, at_y);
    add(R"svg(<text class="panel" x="{:.0f}" y="18">{}</text>)svg", left, escaped(chart_.title));
    legend();
    for (const double y : ticks(chart_.y_min, chart_.y_max, 5)) {
      add(R"svg(<line class="grid" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>)svg", left,
          left + plot_width, down(y), down(y));
      add(R"svg(<text class="number" x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>)svg", left - 8,
          down(y) + 4, number(y));
    }
    for (const double x : ticks(0, x_max_, 6)) {
      add(R"svg(<text class="number" x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>)svg", across(x),
          top + plot_height + 18, number(x));
    }
    add(R"svg(<line class="axis" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>)svg", left,
        left + plot_width, top + plot_height, top + plot_height);
    add(R"svg(<text x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>)svg", left + plot_width / 2,
        top + plot_height + 38, escaped(chart_.x_label));
    add(R"svg(<text transform="translate(16 {:.1f}) rotate(-90)" text-anchor="middle">{}</text>)svg",
        top + plot_height / 2, escaped(chart_.y_label));
    if (chart_.level) {
      const double y = down(chart_.level->y);
      add(R"svg(<line class="level" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>)svg", left,
          left + plot_width, y, y);
      add(R"svg(<text x="{:.1f}" y="{:.1f}" text-anchor="end">{} {:.3g}</text>)svg", left + plot_width, y - 6,
          escaped(chart_.level->name), chart_.level->y);
    }
    for (std::size_t i = 0; i < chart_.series.size(); ++i) series(chart_.series[i], i);
    return text_ + "</g>\n";
  }

 private:
  template <class... Values>
  void add(fmt::format_string<Values...> format, Values&&... values) {
    text_ += fmt::format(format, std::forward<Values>(values)...) + "\n";
  }

  double across(double x) const { return left + plot_width * std::clamp(x / x_max_, 0.0, 1.0); }
  double down(double y) const {
    return top + plot_height * std::clamp((chart_.y_max - y) / (chart_.y_max - chart_.y_min), 0.0, 1.0);
  }

  void legend() {
    double x = left;
    for (std::size_t i = 0; i < chart_.series.size(); ++i) {
      const Series& series = chart_.series[i];
      add(R"svg(<line class="line line{}" x1="{:.1f}" x2="{:.1f}" y1="38" y2="38"/>)svg", i, x, x + 18);
      if (series.dots) add(R"svg(<circle class="dot dot{}" cx="{:.1f}" cy="38" r="4.5"/>)svg", i, x + 9);
      add(R"svg(<text x="{:.1f}" y="42">{}</text>)svg", x + 24, escaped(series.name));
      x += 24 + 7.0 * static_cast<double>(series.name.size()) + 20;
    }
  }

  void series(const Series& series, std::size_t index) {
    std::string points;
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      points += fmt::format("{:.1f},{:.1f} ", across(series.x[i]), down(series.y[i]));
    }
    add(R"svg(<polyline class="line line{}" points="{}"/>)svg", index, points);
    if (!series.dots) return;
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      add(R"svg(<circle class="dot dot{}" cx="{:.1f}" cy="{:.1f}" r="4"><title>{} {}: {:.4f}</title></circle>)svg",
          index, across(series.x[i]), down(series.y[i]), escaped(chart_.x_label), number(series.x[i]),
          series.y[i]);
    }
  }

  const Chart& chart_;
  double x_max_;
  std::string text_;
};

}  // namespace

std::string svg_plot(const std::string& title, const std::vector<Chart>& charts) {
  const double width = panel_width * static_cast<double>(charts.size()), height = header + panel_height;
  std::string text = fmt::format(
      R"svg(<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0:.0f} {1:.0f}" width="{0:.0f}" height="{1:.0f}" role="img">
<title>{2}</title>
<style>{3}</style>
<rect width="100%" height="100%" style="fill: var(--surface)"/>
<text class="title" x="{4:.0f}" y="34">{2}</text>
)svg",
      width, height, escaped(title), style, left);
  for (std::size_t i = 0; i < charts.size(); ++i) {
    text += Panel(charts[i]).draw(panel_width * static_cast<double>(i), header);
  }
  return text + "</svg>\n";
}

}  // namespace demo
