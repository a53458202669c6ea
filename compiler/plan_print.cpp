#include "compiler/plan_print.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "ir/dump.h"

namespace lossc {
namespace {

using Json = nlohmann::ordered_json;
using ir::NodeId;

const char* kind_name(Step::Kind kind) {
  switch (kind) {
    case Step::Kind::map:
      return "map";
    case Step::Kind::reduce:
      return "reduce";
    case Step::Kind::segment:
      return "segment";
  }
  return "";
}

Json formulas(const Plan& plan, const std::vector<NodeId>& ids) {
  Json list = Json::array();
  for (NodeId id : ids) list.push_back(ir::formula(plan.loss.graph, id));
  return list;
}

Json steps_json(const Plan& plan, const std::vector<Step>& steps) {
  Json list = Json::array();
  for (const Step& step : steps) {
    list.push_back({{"kind", kind_name(step.kind)},
                    {"space", plan.loss.graph.space_name(step.domain)},
                    {"map", step.map.empty() ? Json() : Json(step.map)},
                    {"values", formulas(plan, step.values)}});
  }
  return list;
}

}  // namespace

std::string plan_json(const Plan& plan, const Spec& spec) {
  Json json;
  json["spec"]["children"] = Json::array();
  for (const ChildSpec& child : spec.losses) {
    json["spec"]["children"].push_back({{"name", child.name}, {"type", child.type}});
  }
  json["prologue"] = steps_json(plan, plan.prologue);
  json["regions"] = Json::array();
  for (const Region& region : plan.regions) {
    Json phases = Json::array();
    for (const Phase& phase : region.phases) {
      phases.push_back({{"statistics", formulas(plan, phase.statistics)}});
    }
    json["regions"].push_back({{"reads", formulas(plan, region.reads)},
                               {"picks", formulas(plan, region.picks)},
                               {"phases", phases},
                               {"stored", formulas(plan, region.stored)}});
  }
  json["seams"] = Json::array();
  for (const auto& seam : plan.seams) json["seams"].push_back({{"steps", steps_json(plan, seam)}});
  json["epilogue"] = steps_json(plan, plan.epilogue);
  json["passes"] = plan.passes;
  json["bound_passes"] = plan.bound_passes;
  json["extra_reads"] = plan.extra_reads;
  json["bytes_per_row"] = plan.bytes_per_row;
  json["bound_bytes_per_row"] = plan.bound_bytes_per_row;
  return json.dump(2) + "\n";
}

std::string plan_text(const Plan& plan, const Spec& spec) {
  return plan_json(plan, spec);
}

std::string plan_math(const Plan& plan, const Spec&) {
  std::string text;
  for (const ir::ChildGradient& child : plan.loss.child_gradients) {
    text += fmt::format("d(weight * loss.{}) / d logits[k] =\n", child.name);
    for (const ir::DenseTerm& term : child.dense) {
      text += fmt::format("  + ({}) * {}\n", ir::formula(plan.loss.graph, term.coefficient),
                          ir::formula(plan.loss.graph, term.basis));
    }
    for (const ir::SparseTerm& term : child.sparse) {
      text += fmt::format("  + ({}) * [k == {}]\n", ir::formula(plan.loss.graph, term.coefficient),
                          ir::formula(plan.loss.graph, term.index));
    }
  }
  return text;
}

std::string graph_text(const Plan& plan) {
  std::vector<std::pair<std::string, NodeId>> roots;
  for (const ir::NamedNode& root : plan.loss.roots()) roots.emplace_back(root.name, root.node);
  return ir::dump(plan.loss.graph, roots);
}

}  // namespace lossc
