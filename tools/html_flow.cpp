#include "tools/html_flow.h"

#include <fmt/format.h>

#include <algorithm>

#include "tools/console.h"
#include "tools/html_text.h"

namespace lossc::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int page_width = 1080;
constexpr int rail_gap = 30, first_rail = 26;
constexpr int right_rail = page_width - 40;
constexpr int box_right = page_width - 150;
constexpr int padding = 16;
constexpr int line_height = 18;
// The advance of the page's 12 px monospaced font, a little more than any of its fonts has.
constexpr double advance = 7.3;

/// A tensor of the logits' shape that regions read.
struct Rail {
  std::string name;
  int x = 0, top = 0, bottom = 0;
};

// The tensors that a region reads, but for the gradient that it adds to.
std::vector<std::string> inputs_of(const Json& region) {
  std::vector<std::string> names = lines_of(member(region, "reads"));
  std::erase(names, "grad_logits");
  return names;
}

// What a step does, in words.
std::string step_words(const Json& step) {
  const std::string kind = text_of(member(step, "kind")), space = text_of(member(step, "space"));
  if (kind == "segment") return "along " + text_of(member(step, "map"));
  if (space == "scalar") return "for the batch";
  if (kind == "reduce") return "over all " + space;
  return space.ends_with('s') ? "for each " + space.substr(0, space.size() - 1) : kind + " " + space;
}

class Drawing {
 public:
  explicit Drawing(const Json& plan) : plan_(plan) {
    find_rails();
    y_ = 30 + 24 * static_cast<int>(rails_.size());
    box_left_ = std::max(150, first_rail + rail_gap * static_cast<int>(rails_.size()) + 110);
    columns_ = static_cast<std::size_t>((box_right - box_left_ - 2 * padding) / advance);
  }

  std::string svg() {
    rows();
    stage("", "Prologue", "before any logit is read", member(plan_, "prologue"));
    const Json& regions = member(plan_, "regions");
    const Json& seams = member(plan_, "seams");
    for (std::size_t i = 0; i < regions.size(); ++i) {
      region(regions[i], i, i + 1 == regions.size());
      if (i >= seams.size()) continue;
      const std::string title = seams.size() == 1 ? "Seam" : fmt::format("Seam {}", i + 1);
      stage("seam", title, "rows meet: no gradient is known before this", member(seams[i], "steps"));
    }
    stage("", "Epilogue", "what only results need", member(plan_, "epilogue"));
    return fmt::format(
        "<svg viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"The plan as a flow\">\n{}{}{}</svg>\n",
        page_width, y_ + 4, drawn_rails(), lines_, boxes_);
  }

 private:
  void find_rails() {
    for (const Json& region : member(plan_, "regions")) {
      for (const std::string& name : inputs_of(region)) {
        if (std::none_of(rails_.begin(), rails_.end(), [&](const Rail& r) { return r.name == name; })) {
          rails_.push_back({name, 0, 0, 0});
        }
      }
    }
    // The logits stand nearest to the regions.
    std::stable_partition(rails_.begin(), rails_.end(),
                          [](const Rail& rail) { return rail.name != "logits"; });
    for (std::size_t i = 0; i < rails_.size(); ++i) {
      rails_[i].x = first_rail + rail_gap * static_cast<int>(i);
      rails_[i].top = 16 + 24 * static_cast<int>(i);
    }
  }

  static std::string_view colour(const Rail& rail) { return rail.name == "logits" ? "logits" : "other"; }

  std::string drawn_rails() const {
    std::string drawn;
    for (const Rail& rail : rails_) {
      drawn += fmt::format(
          "<path class=\"rail {0}\" d=\"M{1} {2}V{3}\"/><circle class=\"stop {0}\" cx=\"{1}\" cy=\"{2}\" "
          "r=\"6\"/>"
          "<text class=\"name\" x=\"{4}\" y=\"{5}\">{6}</text>\n",
          colour(rail), rail.x, rail.top, std::max(rail.bottom, rail.top), rail.x + 13, rail.top + 4,
          escape(rail.name));
    }
    return drawn;
  }

  // A line to the right with an arrow head, and one at its start on demand.
  void arrow_right(std::string_view kind, int from, int to, int y, bool both_ways = false) {
    lines_ += fmt::format(
        "<path class=\"{0}\" d=\"M{1} {2}H{3}\"/><path class=\"head {0}\" d=\"M{4} {2}l-9 -5v10z\"/>\n", kind,
        from + (both_ways ? 6 : 0), y, to - 6, to);
    if (both_ways) lines_ += fmt::format("<path class=\"head {}\" d=\"M{} {}l9 -5v10z\"/>\n", kind, from, y);
  }

  // An arrow from the stage above.
  void connect() {
    if (connected_) {
      const int x = (box_left_ + box_right) / 2;
      lines_ += fmt::format(
          "<path class=\"link\" d=\"M{0} {1}V{2}\"/><path class=\"head link\" d=\"M{0} {3}l-5 -9h10z\"/>\n",
          x, y_, y_ + 18, y_ + 24);
      y_ += 26;
    }
    connected_ = true;
  }

  /// What stands in a box, measured while it is written.
  struct Content {
    std::string text;
    int height = 0;
  };

  void put(Content& content, std::string_view kind, int indent, const std::string& markup) {
    content.height += line_height;
    content.text += fmt::format("<text class=\"{}\" x=\"{}\" y=\"{}\">{}</text>\n", kind,
                                box_left_ + padding + indent, y_ + content.height, markup);
  }

  // `name = expression` with its name set off; at most three lines, the whole of it as a tool tip.
  void put_formula(Content& content, const std::string& formula, int indent, std::string_view kind = "code") {
    const auto columns = columns_ - static_cast<std::size_t>(indent / advance);
    const std::vector<std::string> lines = wrap(formula, columns, 3);
    const std::string tip =
        lines.back().ends_with("\u2026") ? fmt::format("<title>{}</title>", escape(formula)) : std::string();
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const std::size_t equals = i == 0 ? lines[0].find(" = ") : std::string::npos;
      std::string markup = escape(lines[i]);
      if (equals != std::string::npos) {
        markup = fmt::format("<tspan class=\"left\">{}</tspan>{}", escape(lines[0].substr(0, equals)),
                             escape(lines[0].substr(equals)));
      }
      put(content, kind, indent + (i == 0 ? 0 : 16), markup + tip);
    }
  }

  void put_heading(Content& content, std::string_view title, std::string_view note) {
    content.height += 8;
    put(content, "title", 0, escape(title));
    content.text += fmt::format("<text class=\"note\" text-anchor=\"end\" x=\"{}\" y=\"{}\">{}</text>\n",
                                box_right - padding, y_ + content.height, escape(note));
    content.height += 4;
  }

  void put_list(Content& content, std::string_view label, const std::vector<std::string>& formulas,
                const std::vector<std::string>& where = {}) {
    if (formulas.empty() && where.empty()) return;
    if (!label.empty()) {
      content.height += 3;
      put(content, "label", 0, escape(label));
    }
    for (const std::string& formula : where) put_formula(content, formula, 14, "code quiet");
    for (const std::string& formula : formulas) put_formula(content, formula, 14);
  }

  // Short names, on as few lines as they need.
  void put_names(Content& content, std::string_view label, const std::vector<std::string>& names) {
    std::string all;
    for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
    if (!all.empty()) put_list(content, label, {all});
  }

  void close_box(std::string_view kind, const Content& content) {
    boxes_ += fmt::format("<rect class=\"box {}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" rx=\"9\"/>\n",
                          kind, box_left_, y_, box_right - box_left_, content.height + 14);
    boxes_ += content.text;
    y_ += content.height + 14;
  }

  void rows() {
    const Json& rows = member(plan_, "rows");
    const std::vector<std::string> where = lines_of(member(rows, "where"));
    if (where.empty()) return;
    connect();
    Content content;
    put_heading(content, "Rows", "what counts");
    for (const std::string& line : where) put_formula(content, line, 0);
    close_box("", content);
  }

  // Prologue, seam or epilogue: a list of steps.
  void stage(std::string_view kind, std::string_view title, std::string_view note, const Json& steps) {
    if (steps.empty()) return;
    connect();
    Content content;
    put_heading(content, title, note);
    std::string before;
    for (const Json& step : steps) {
      const std::string words = step_words(step);
      put_list(content, words == before ? "" : words, lines_of(step), lines_of(member(step, "where")));
      before = words;
    }
    if (kind == "seam") {
      lines_ += fmt::format("<path class=\"stitch\" d=\"M0 {0}H{1}\"/>\n", y_ + (content.height + 14) / 2,
                            page_width);
    }
    close_box(kind, content);
  }

  void region(const Json& region, std::size_t index, bool last) {
    connect();
    const int top = y_;
    Content content;
    const Json& bytes = member(region, "bytes_per_row");
    const std::string note = bytes.is_number() ? ", " + byte_count(bytes.get<double>()) + " a row" : "";
    put_heading(content, fmt::format("Region {}", index), "one kernel over the rows" + note);
    const Json& phases = member(region, "phases");
    put_names(content, "single elements", lines_of(member(region, "picks")));
    std::size_t sweep = 0;
    for (const Json& phase : phases) {
      put_list(content, phases.size() == 1 ? "sweep over the vocabulary" : fmt::format("sweep {}", ++sweep),
               lines_of(phase), lines_of(member(phase, "where")));
    }
    put_names(content, "kept for each row", lines_of(member(region, "stored")));
    put_list(content, "where", {}, lines_of(member(region, "where")));

    int arrow = top + 26;
    const std::vector<std::string> reads = inputs_of(region);
    for (Rail& rail : rails_) {
      if (std::find(reads.begin(), reads.end(), rail.name) == reads.end()) continue;
      rail.bottom = arrow;
      arrow_right("read " + std::string(colour(rail)), rail.x, box_left_ - 1, arrow);
      lines_ += fmt::format(
          "<circle class=\"stop {0}\" cx=\"{1}\" cy=\"{2}\" r=\"5\"/>"
          "<text class=\"note\" text-anchor=\"end\" x=\"{3}\" y=\"{4}\">read</text>\n",
          colour(rail), rail.x, arrow, box_left_ - 20, arrow - 5);
      arrow += 24;
    }
    content.height = std::max(content.height, arrow - top - 30);
    const int emit = put_emit(content, region, last);
    close_box("region", content);
    if (emit > 0) draw_gradient(top + emit);
  }

  // The gradient's part of a region; its place below the top of the box, or 0.
  int put_emit(Content& content, const Json& region, bool last) {
    const Json& emit = member(region, "emit");
    const bool has_gradient = gradient_mode() != "none" && !gradient_mode().empty();
    const bool said = region.contains("emit");
    if (said ? emit.is_null() || emit == Json(false) : !(last && has_gradient)) return 0;
    content.height += 10;
    const int place = content.height + line_height / 2 + 4;
    put(content, "label emit", 0, "gradient, the sum of");
    if (!emit.is_boolean()) {
      for (const std::string& line : lines_of(emit)) put_formula(content, line, 14);
    }
    put_list(content, "where", {}, lines_of(member(region, "emit_where")));
    return place;
  }

  std::string gradient_mode() const { return text_of(member(plan_, "gradient_mode")); }

  void draw_gradient(int y) {
    const bool accumulate = gradient_mode() == "accumulate";
    arrow_right("write", box_right + 2, right_rail - 9, y, accumulate);
    lines_ += fmt::format(
        "<text class=\"note\" x=\"{0}\" y=\"{1}\">{2}</text>"
        "<circle class=\"stop gradient\" cx=\"{3}\" cy=\"{4}\" r=\"8\"/>"
        "<text class=\"name\" text-anchor=\"end\" x=\"{5}\" y=\"{6}\">{7}</text>\n",
        box_right + 14, y - 7, accumulate ? "read + write" : "write", right_rail, y, right_rail + 12, y + 27,
        gradient_mode() == "in_place" ? "over the logits" : "grad_logits");
  }

  const Json& plan_;
  std::vector<Rail> rails_;
  int y_ = 0, box_left_ = 0;
  std::size_t columns_ = 0;
  bool connected_ = false;
  std::string lines_, boxes_;
};

/// One read or write of a tensor of the logits' shape.
struct Pass {
  std::string verb, tensor;
};

std::vector<Pass> passes_of(const Json& plan, const Json& region) {
  std::vector<Pass> passes;
  for (const std::string& name : inputs_of(region)) passes.push_back({"read", name});
  for (const std::string& name : lines_of(member(region, "writes"))) {
    if (name != "grad_logits") continue;
    if (text_of(member(plan, "gradient_mode")) == "accumulate") passes.push_back({"read", name});
    passes.push_back({"write", name});
  }
  return passes;
}

}  // namespace

std::string flow_drawing(const Json& plan) {
  return Drawing(plan).svg();
}

std::string pass_strip(const Json& plan) {
  const Json& regions = member(plan, "regions");
  std::size_t count = 0;
  for (const Json& region : regions) count += passes_of(plan, region).size();
  if (count == 0) return "";
  constexpr int seam_width = 54, gap = 3, height = 44;
  const int width =
      (page_width - seam_width * static_cast<int>(regions.size() - 1)) / static_cast<int>(count);
  int x = 0;
  std::string drawn;
  for (std::size_t i = 0; i < regions.size(); ++i) {
    const int left = x;
    for (const Pass& pass : passes_of(plan, regions[i])) {
      const char* colour = pass.tensor == "grad_logits" ? "gradient"
                           : pass.tensor == "logits"    ? "logits"
                                                        : "other";
      drawn += fmt::format(
          "<rect class=\"pass {}\" x=\"{}\" y=\"0\" width=\"{}\" height=\"{}\" rx=\"6\"/>"
          "<text class=\"on\" text-anchor=\"middle\" x=\"{}\" y=\"27\">{} {}</text>\n",
          colour, x, width - gap, height, x + (width - gap) / 2, pass.verb,
          escape(wrap(pass.tensor, static_cast<std::size_t>(width / 10), 1).front()));
      x += width;
    }
    drawn +=
        fmt::format("<text class=\"note\" x=\"{}\" y=\"{}\">region {}</text>\n", left + 1, height + 18, i);
    if (i + 1 == regions.size()) break;
    const int middle = x + seam_width / 2 - gap / 2;
    drawn += fmt::format(
        "<path class=\"stitch\" d=\"M{0} -2V{1}\"/><text class=\"note\" text-anchor=\"middle\" x=\"{0}\" "
        "y=\"{2}\">"
        "seam</text>\n",
        middle, height + 2, height + 18);
    x += seam_width;
  }
  return fmt::format("<svg viewBox=\"0 -4 {} {}\" role=\"img\" aria-label=\"Passes in order\">\n{}</svg>\n",
                     page_width, height + 28, drawn);
}

}  // namespace lossc::cli
