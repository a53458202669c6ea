#include "compiler/plan_print.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "compiler/plan_description.h"
#include "ir/dump.h"

namespace lossc {

namespace {

using Json = nlohmann::ordered_json;

const char* mode_name(GradientMode mode) {
  switch (mode) {
    case GradientMode::overwrite:
      return "overwrite";
    case GradientMode::accumulate:
      return "accumulate";
    case GradientMode::in_place:
      return "in_place";
    case GradientMode::none:
      break;
  }
  return "none";
}

// --- JSON -------------------------------------------------------------------------------------------------

Json joined(const std::vector<Line>& lines) {
  Json list = Json::array();
  for (const Line& line : lines) list.push_back(line.joined());
  return list;
}

// Values and what they are made of, apart.
void put_lines(Json& json, const char* name, const std::vector<Line>& lines) {
  Json where = Json::array(), values = Json::array();
  for (const Line& line : lines) (line.helper ? where : values).push_back(line.joined());
  json["where"] = where;
  json[name] = values;
}

Json number_json(const Number& number) {
  return {{"value", number.value}, {"parameter", number.parameter}};
}

Json transform_json(const Transform& transform) {
  Json json = Json::object();
  if (transform.scale) json["scale"] = number_json(*transform.scale);
  if (transform.softcap) json["softcap"] = number_json(*transform.softcap);
  if (transform.temperature) json["temperature"] = number_json(*transform.temperature);
  if (transform.cap_first) json["order"] = "cap_first";
  return json;
}

Json child_json(const ChildSpec& child) {
  Json json{{"name", child.name}, {"type", child.type}};
  json["weight"] = child.weight ? number_json(*child.weight) : Json{{"value", 1}};
  json["parameters"] = Json::object();
  for (const auto& [name, number] : child.numbers) json["parameters"][name] = number_json(number);
  if (child.divisor) json["parameters"]["divisor"] = number_json(*child.divisor);
  json["options"] = child.options;
  json["flags"] = child.flags;
  if (child.transform) json["transform"] = transform_json(*child.transform);
  json["inputs"] = Json::object();
  for (const auto& [name, target] : child.inputs) json["inputs"][name] = target ? Json(*target) : Json();
  json["reduction"] = child.reduction;
  return json;
}

Json spec_json(const Spec& spec) {
  Json json;
  json["logits"] = {{"dtype", dtype_name(spec.logits_dtype)}, {"vocab", spec.vocab}};
  json["logits"].update(transform_json(spec.logits));
  json["gradient"]["mode"] = mode_name(spec.gradient_mode);
  if (spec.gradient_mode != GradientMode::none) json["gradient"]["dtype"] = dtype_name(spec.gradient_dtype);
  json["children"] = Json::array();
  for (const ChildSpec& child : spec.losses) json["children"].push_back(child_json(child));
  json["metrics"] = Json::array();
  for (const MetricSpec& metric : spec.metrics) json["metrics"].push_back(metric.name);
  json["outputs"] = spec.outputs;
  return json;
}

Json steps_json(const std::vector<StepDescription>& steps) {
  Json list = Json::array();
  for (const StepDescription& step : steps) {
    Json json{
        {"kind", step.kind}, {"space", step.space}, {"map", step.map.empty() ? Json() : Json(step.map)}};
    put_lines(json, "values", step.values);
    list.push_back(json);
  }
  return list;
}

Json region_json(const RegionDescription& region) {
  Json json{{"name", region.name}, {"reads", region.reads}, {"writes", region.writes}};
  put_lines(json, "picks", region.picks);
  json["phases"] = Json::array();
  for (const PhaseDescription& phase : region.phases) {
    Json& list = json["phases"];
    list.push_back(Json::object());
    put_lines(list.back(), "statistics", phase.statistics);
  }
  json["emit"] = nullptr;
  if (region.emits) {
    json["emit_where"] = joined(region.emit_where);
    json["emit"] = Json::array();
    for (const auto& term : region.dense) {
      json["emit"].push_back(fmt::format("{} * {}", term.coefficient, term.basis));
    }
    for (const Line& line : region.sparse) json["emit"].push_back(line.joined());
  }
  json["stored"] = region.stored;
  json["bytes_per_row"] = region.bytes_per_row;
  return json;
}

// --- text -------------------------------------------------------------------------------------------------

std::string plural(std::size_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : noun.ends_with("s") ? "es" : "s");
}

// 1,048,576
std::string grouped(double value) {
  std::string text = fmt::format("{:.0f}", value);
  for (auto at = static_cast<std::ptrdiff_t>(text.size()) - 3; at > 0; at -= 3) {
    text.insert(static_cast<std::size_t>(at), ",");
  }
  return text;
}

std::string number_text(std::string_view key, const Number& number, const std::string& own) {
  std::string text = fmt::format("{} {}", key, number.value);
  if (number.parameter != own) text += fmt::format(" ({})", number.parameter);
  return text;
}

std::string child_text(const ChildSpec& child) {
  std::vector<std::string> parts;
  const auto add = [&](const std::string& key, const std::optional<Number>& number) {
    if (number) parts.push_back(number_text(key, *number, child.name + "." + key));
  };
  if (child.weight) {
    add("weight", child.weight);
  } else {
    parts.emplace_back("weight 1");
  }
  parts.push_back(child.reduction);
  for (const auto& [name, value] : child.options) parts.push_back(fmt::format("{} {}", name, value));
  for (const auto& [name, value] : child.flags) {
    if (value) parts.push_back(name);
  }
  for (const auto& [name, number] : child.numbers) add(name, number);
  add("divisor", child.divisor);
  if (child.transform) {
    add("scale", child.transform->scale);
    add("softcap", child.transform->softcap);
    add("temperature", child.transform->temperature);
  }
  for (const auto& [name, target] : child.inputs) {
    parts.push_back(target ? fmt::format("{} from {}", name, *target) : fmt::format("no {}", name));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

class TextPrinter {
 public:
  std::string take() { return std::move(out_); }

  void summary(const Plan& plan, const Spec& spec, const PlanDescription& d) {
    std::size_t name = 5, type = 4;
    for (const ChildSpec& child : spec.losses) {
      name = std::max(name, child.name.size());
      type = std::max(type, child.type.size());
    }
    put("{}, {}, {}\n", plural(plan.regions.size(), "region"), plural(plan.seams.size(), "seam"),
        plural(static_cast<std::size_t>(plan.passes), "pass"));
    for (const ChildSpec& child : spec.losses) {
      put("  {:<{}}  {:<{}}  {}\n", child.name, name, child.type, type, child_text(child));
    }
    put("\n");
    std::string gradient = mode_name(spec.gradient_mode);
    if (plan.gradient != GradientMode::none) gradient += fmt::format(" {}", dtype_name(spec.gradient_dtype));
    put("  logits    {} [rows, {}], gradient {}\n", dtype_name(spec.logits_dtype), spec.vocab, gradient);
    put("  inputs    {}\n", fmt::join(d.inputs, ", "));
    put("  results   {}\n", fmt::join(d.results, ", "));
    put("  passes    {} (bound {}), {} from a row's cache\n", plan.passes, plan.bound_passes,
        plural(static_cast<std::size_t>(plan.extra_reads), "re-read"));
    put("  traffic   {} bytes a row (bound {})\n", grouped(plan.bytes_per_row),
        grouped(plan.bound_bytes_per_row));
    put("  memory    {} bytes a row", d.row_bytes);
    if (d.segment_bytes > 0) put(", {} a segment", d.segment_bytes);
    if (d.pair_bytes > 0) put(", {} a pair", d.pair_bytes);
    put(" beyond inputs and outputs\n");
  }

  void rows(const Plan& plan, const PlanDescription& d) {
    put("\nrows\n");
    lines(d.rows, 0);
    put("  read where {}", d.active);
    if (plan.gradient != GradientMode::none) put(", gradient where {}", d.live);
    if (d.bad != "false") put(", NaN where {}", d.bad);
    put("\n");
  }

  void steps(std::string_view title, const std::vector<StepDescription>& list) {
    if (list.empty()) return;
    put("\n{}\n", title);
    for (const StepDescription& step : list) {
      if (step.kind == "segment") {
        put("  along {}\n", step.map);
      } else if (step.kind == "reduce") {
        put("  reduce {}\n", step.space);
      } else {
        put("  map {}\n", step.space);
      }
      lines(step.values, 4);
    }
  }

  void region(const RegionDescription& r) {
    put("\n{}: read {}", r.name, r.reads.empty() ? "nothing" : fmt::format("{}", fmt::join(r.reads, ", ")));
    if (!r.writes.empty()) put("; write {}", fmt::join(r.writes, ", "));
    put("; {} bytes a row\n", grouped(r.bytes_per_row));
    if (!r.picks.empty()) {
      put("  pick\n");
      lines(r.picks, 4);
    }
    for (std::size_t i = 0; i < r.phases.size(); ++i) {
      put("  phase {}\n", i + 1);
      lines(r.phases[i].statistics, 4);
    }
    if (!r.stored.empty()) put("  store {}\n", fmt::join(r.stored, ", "));
    if (r.emits) emit(r);
  }

 private:
  template <typename... Args>
  void put(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
  }

  // Equal signs below each other; helpers stand to the right of the values.
  void lines(const std::vector<Line>& list, std::size_t indent) {
    const auto margin = [&](const Line& line) { return indent + (line.helper ? 2 : 0); };
    std::size_t column = 0;
    for (const Line& line : list) {
      if (!line.text.empty()) column = std::max(column, margin(line) + line.name.size());
    }
    for (const Line& line : list) {
      if (line.text.empty()) {
        put("{:{}}{}\n", "", margin(line), line.name);
      } else {
        put("{:{}}{:<{}} = {}\n", "", margin(line), line.name, column - margin(line), line.text);
      }
    }
  }

  void emit(const RegionDescription& r) {
    put("  emit\n");
    lines(r.emit_where, 4);
    std::size_t width = 8;
    for (const Line& line : r.sparse) width = std::max(width, line.name.size());
    std::size_t coefficient = 0, basis = 0;
    for (const auto& term : r.dense) {
      coefficient = std::max(coefficient, term.coefficient.size());
      basis = std::max(basis, term.basis.size());
    }
    for (std::size_t i = 0; i < r.dense.size(); ++i) {
      const auto& term = r.dense[i];
      put("    {:<{}} {} {:<{}} * {}", i == 0 ? "gradient" : "", width, i == 0 ? "=" : "+", term.coefficient,
          coefficient, term.basis);
      if (term.guarded) put("{:{}}  where {} != 0", "", basis - term.basis.size(), term.coefficient);
      put("\n");
    }
    if (r.dense.empty()) put("    {:<{}} = 0\n", "gradient", width);
    for (const Line& line : r.sparse) put("    {:<{}} = {}\n", line.name, width, line.text);
  }

  std::string out_;
};

}  // namespace

std::string plan_json(const Plan& plan, const Spec& spec) {
  const PlanDescription d = describe(plan, spec);
  Json json;
  json["spec"] = spec_json(spec);
  json["passes"] = plan.passes;
  json["bound_passes"] = plan.bound_passes;
  json["extra_reads"] = plan.extra_reads;
  json["bytes_per_row"] = plan.bytes_per_row;
  json["bound_bytes_per_row"] = plan.bound_bytes_per_row;
  json["row_bytes"] = d.row_bytes;
  json["segment_bytes"] = d.segment_bytes;
  json["pair_bytes"] = d.pair_bytes;
  json["inputs"] = d.inputs;
  json["results"] = d.results;
  json["rows"] = {{"where", joined(d.rows)}, {"active", d.active}, {"live", d.live}, {"bad", d.bad}};
  json["prologue"] = steps_json(d.prologue);
  json["regions"] = Json::array();
  for (const RegionDescription& region : d.regions) json["regions"].push_back(region_json(region));
  json["seams"] = Json::array();
  for (const auto& seam : d.seams) json["seams"].push_back({{"steps", steps_json(seam)}});
  json["epilogue"] = steps_json(d.epilogue);
  return json.dump(2) + "\n";
}

std::string plan_text(const Plan& plan, const Spec& spec) {
  const PlanDescription d = describe(plan, spec);
  TextPrinter printer;
  printer.summary(plan, spec, d);
  printer.rows(plan, d);
  printer.steps("prologue", d.prologue);
  for (std::size_t i = 0; i < d.regions.size(); ++i) {
    printer.region(d.regions[i]);
    if (i < d.seams.size()) printer.steps(fmt::format("seam{}", i), d.seams[i]);
  }
  printer.steps("epilogue", d.epilogue);
  return printer.take();
}

std::string graph_text(const Plan& plan) {
  std::vector<std::pair<std::string, ir::NodeId>> roots;
  for (const ir::NamedNode& root : plan.loss.roots()) roots.emplace_back(root.name, root.node);
  return ir::dump(plan.loss.graph, roots);
}

}  // namespace lossc
