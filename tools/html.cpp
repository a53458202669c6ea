#include "tools/html.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/console.h"
#include "tools/html_flow.h"
#include "tools/html_style.h"
#include "tools/html_text.h"

namespace lossc::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string title_of(const Json& plan) {
  std::string names;
  for (const Json& child : member(member(plan, "spec"), "children")) {
    names += (names.empty() ? "" : " + ") + text_of(member(child, "name"));
  }
  return names.empty() ? "Outputs of the logits" : names;
}

std::string tile(std::string_view what, std::string_view value, std::string_view beside, double used = -1,
                 double bound = -1) {
  std::string meter;
  if (used > 0 && bound > 0) {
    meter = fmt::format("<div class=\"meter\"><i{} style=\"width:{:.1f}%\"></i></div>",
                        used > bound * 1.001 ? " class=\"over\"" : "",
                        std::clamp(100 * bound / used, 1.0, 100.0));
  }
  return fmt::format(
      "<div class=\"tile\"><div class=\"what\">{}</div><div class=\"value\">{} "
      "<small>{}</small></div>{}</div>\n",
      escape(what), escape(value), escape(beside), meter);
}

double number_of(const Json& plan, const char* key) {
  const Json& value = member(plan, key);
  return value.is_number() ? value.get<double>() : -1;
}

std::string tiles(const Json& plan) {
  std::string html = "<div class=\"tiles\">\n";
  const double passes = number_of(plan, "passes"), bound = number_of(plan, "bound_passes");
  if (passes >= 0) {
    html += tile("passes over the logits' shape", fmt::format("{}", passes),
                 bound < 0 ? "" : fmt::format("bound {}", bound), passes, bound);
  }
  const double bytes = number_of(plan, "bytes_per_row"), bound_bytes = number_of(plan, "bound_bytes_per_row");
  if (bytes >= 0) {
    html += tile("memory traffic a row", byte_count(bytes),
                 bound_bytes < 0 ? "" : "bound " + byte_count(bound_bytes), bytes, bound_bytes);
  }
  if (const double reads = number_of(plan, "extra_reads"); reads >= 0) {
    html += tile("further reads", fmt::format("{}", reads), "served by caches");
  }
  const std::size_t seams = member(plan, "seams").size(), regions = member(plan, "regions").size();
  html += tile("kernels over the rows", fmt::format("{}", regions),
               seams == 0 ? "no seam" : fmt::format("{} seam{}", seams, seams == 1 ? "" : "s"));
  return html + "</div>\n";
}

std::string losses(const Json& plan) {
  const Json& children = member(member(plan, "spec"), "children");
  if (children.empty()) return "";
  std::string html = "<h2>Losses</h2>\n<table>\n<tr><th>name</th><th>type</th><th>what it is</th></tr>\n";
  for (const Json& child : children) {
    const std::string summary = text_of(member(child, "summary")),
                      formula = text_of(member(child, "formula"));
    html +=
        fmt::format("<tr><td><code>{}</code></td><td><code>{}</code></td><td>{}{}<code>{}</code></td></tr>\n",
                    escape(text_of(member(child, "name"))), escape(text_of(member(child, "type"))),
                    escape(summary), summary.empty() ? "" : "<br>", escape(formula));
  }
  return html + "</table>\n";
}

std::string chips(std::string_view title, const std::vector<std::string>& names) {
  std::string html = fmt::format("<div class=\"tile\"><h3>{}</h3><div class=\"chips\">", escape(title));
  for (const std::string& name : names) html += "<code>" + escape(name) + "</code>";
  return html + "</div></div>\n";
}

std::string tensors(const Json& plan) {
  const auto inputs = lines_of(member(plan, "inputs")), results = lines_of(member(plan, "results"));
  if (inputs.empty() && results.empty()) return "";
  return "<h2>Tensors</h2>\n<div class=\"columns\">\n" + chips("in (? may be left out)", inputs) +
         chips("out", results) + "</div>\n";
}

// A long list of machine features is shown where it stands in full; here, what the machine has.
std::string short_target(const std::string& target) {
  std::string words;
  for (std::size_t begin = 0; begin < target.size();) {
    const std::size_t end = std::min(target.find_first_of(" ,", begin), target.size());
    const std::string word = target.substr(begin, end - begin);
    if (!word.starts_with('-') && !word.starts_with('+')) words += (words.empty() ? "" : " ") + word;
    begin = end + 1;
  }
  return words;
}

std::string details(std::string_view summary, std::string_view text) {
  if (text.empty()) return "";
  return fmt::format("<details><summary>{}</summary><pre>{}</pre></details>\n", escape(summary),
                     escape(text));
}

std::string logits_line(const Json& plan) {
  const Json spec = Json::parse(text_of(member(plan, "spec_json")), nullptr, false);
  const Json& logits = member(spec, "logits");
  if (logits.is_null()) return "";
  std::string line = fmt::format("{} logits over {} tokens", text_of(member(logits, "dtype")),
                                 text_of(member(logits, "vocab")));
  const Json& gradient = member(spec, "gradient");
  if (!gradient.is_null()) {
    const std::string mode = text_of(member(gradient, "mode")), dtype = text_of(member(gradient, "dtype"));
    line += mode == "none" ? ", no gradient" : fmt::format(", {} gradient ({})", dtype, mode);
  }
  return "<p class=\"soft\">" + escape(line) + "</p>\n";
}

}  // namespace

std::string plan_page(const Json& plan) {
  const std::string title = title_of(plan);
  std::string html =
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  html += fmt::format("<title>{} - lossc plan</title>\n<style>{}</style>\n</head>\n<body>\n<main>\n",
                      escape(title), page_style);
  html += fmt::format("<h1>{}</h1>\n{}{}", escape(title), logits_line(plan), tiles(plan));
  if (const std::string strip = pass_strip(plan); !strip.empty()) {
    html += "<h2>Passes in order</h2>\n<div class=\"flow\">\n" + strip + "</div>\n";
  }
  html += "<h2>How it runs</h2>\n<div class=\"flow\">\n" + flow_drawing(plan) + "</div>\n";
  html += losses(plan) + tensors(plan);
  html += "<h2>In full</h2>\n";
  html += details("The derivative", text_of(member(plan, "math")));
  html += details("The spec, with its defaults", text_of(member(plan, "spec_json")));
  Json bare = plan;
  for (const char* key : {"math", "spec_json", "gradient_mode"}) bare.erase(key);
  html += details("The plan as JSON", bare.dump(2, ' ', false, Json::error_handler_t::replace));
  std::string key = text_of(member(plan, "key")), target = text_of(member(plan, "target"));
  html += "<footer>";
  if (!target.empty()) html += "<p>Target: " + escape(short_target(target)) + "</p>";
  if (!key.empty()) html += "<p>Key: <span class=\"mono\">" + escape(key) + "</span></p>";
  return html + "<p>Written by lossc " LOSSC_VERSION ".</p></footer>\n</main>\n</body>\n</html>\n";
}

}  // namespace lossc::cli
