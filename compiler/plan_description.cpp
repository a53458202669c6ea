#include "compiler/plan_description.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace lossc {

using ir::Graph;
using ir::NodeId;
using ir::Op;
using ir::Space;

namespace {

constexpr int kValueBytes = 4;  // every stored value is an fp32 number

// All values that the description prints.
std::vector<NodeId> printed_values(const Plan& plan) {
  std::vector<NodeId> ids{plan.loss.active, plan.loss.live, plan.loss.bad};
  const auto add = [&](const std::vector<NodeId>& more) { ids.insert(ids.end(), more.begin(), more.end()); };
  const auto add_steps = [&](const std::vector<Step>& steps) {
    for (const Step& step : steps) add(step.values);
  };
  add_steps(plan.prologue);
  for (const Region& region : plan.regions) {
    add(region.picks);
    for (const Phase& phase : region.phases) add(phase.statistics);
  }
  for (const auto& seam : plan.seams) add_steps(seam);
  add_steps(plan.epilogue);
  for (const ir::DenseTerm& term : plan.loss.dense) add({term.coefficient, term.basis});
  for (const ir::SparseTerm& term : plan.loss.sparse) add({term.index, term.value});
  return ids;
}

class Describer {
 public:
  Describer(const Plan& plan, const Spec& spec)
      : plan_(plan), spec_(spec), names_(plan.loss.graph, printed_values(plan)) {}

  PlanDescription run() {
    name_values();
    list_tensors();
    const std::vector<NodeId> conditions{plan_.loss.active, plan_.loss.live, plan_.loss.bad};
    out_.rows = names_.operands(conditions);
    out_.active = names_.text(plan_.loss.active);
    out_.live = names_.text(plan_.loss.live);
    out_.bad = names_.text(plan_.loss.bad);
    out_.prologue = steps(plan_.prologue);
    for (std::size_t i = 0; i < plan_.regions.size(); ++i) {
      out_.regions.push_back(region(plan_.regions[i]));
      out_.regions.back().name = fmt::format("region{}", i);
      if (i < plan_.seams.size()) out_.seams.push_back(steps(plan_.seams[i]));
    }
    out_.epilogue = steps(plan_.epilogue);
    count_memory();
    for (NodeId id : names_.reached()) out_.names[id] = names_.text(id);
    return std::move(out_);
  }

 private:
  const Graph& g() const { return plan_.loss.graph; }

  void name_values() {
    name_concepts(names_, plan_.loss);
    // A loss of weight 1 may be the total: its own name says more.
    for (const bool total : {false, true}) {
      for (const auto* list : {&plan_.loss.scalars, &plan_.loss.rows}) {
        for (const ir::NamedNode& result : *list) {
          if ((result.name == "loss") == total) names_.bind(result.node, result.name);
        }
      }
    }
    for (const Region& region : plan_.regions) {
      for (NodeId id : region.picks) name_pick(id);
      for (const Phase& phase : region.phases) {
        for (NodeId id : phase.statistics) names_.bind(id);
      }
    }
    name_steps(plan_.prologue);
    for (const auto& seam : plan_.seams) name_steps(seam);
    name_steps(plan_.epilogue);
    for (const ir::DenseTerm& term : plan_.loss.dense) names_.prefer(term.coefficient, "alpha");
    for (const ir::SparseTerm& term : plan_.loss.sparse) names_.prefer(term.coefficient, "beta");
    for (const ir::DenseTerm& term : plan_.loss.dense) names_.prefer(term.basis, "basis");
  }

  void list_tensors() {
    for (NodeId id : names_.reached()) {
      const ir::Node& n = g().node(id);
      if (n.op == Op::input) out_.inputs.push_back(g().symbol_of(id) + (n.aux != 0 ? "?" : ""));
    }
    for (const auto* list : {&plan_.loss.scalars, &plan_.loss.rows}) {
      for (const ir::NamedNode& result : *list) out_.results.push_back(result.name);
    }
    if (plan_.gradient != GradientMode::none) out_.results.emplace_back("grad_logits");
  }

  void name_steps(const std::vector<Step>& steps) {
    for (const Step& step : steps) {
      for (NodeId id : step.values) names_.bind(id);
    }
  }

  // logits[labels] is the best name of itself.
  void name_pick(NodeId id) {
    const ir::Node& n = g().node(id);
    if (g().node(n.in[0]).op == Op::input && g().node(n.in[1]).op == Op::input) {
      names_.bind(id, names_.definition(id));
    } else {
      names_.bind(id, "pick");
    }
  }

  // The values, each group of them after the helpers that it needs. A leaf has no line.
  std::vector<Line> lines(const std::vector<NodeId>& ids) {
    std::vector<Line> list = names_.operands(ids);
    for (NodeId id : ids) {
      if (names_.named(id)) list.push_back(names_.line(id));
    }
    return list;
  }

  std::vector<std::string> texts(const std::vector<NodeId>& ids) {
    std::vector<std::string> list;
    for (NodeId id : ids) list.push_back(names_.text(id));
    return list;
  }

  std::vector<StepDescription> steps(const std::vector<Step>& list) {
    std::vector<StepDescription> out;
    for (const Step& step : list) {
      StepDescription d;
      d.kind = step.kind == Step::Kind::map ? "map" : step.kind == Step::Kind::reduce ? "reduce" : "segment";
      d.space = g().space_name(step.domain);
      d.map = step.map;
      d.values = lines(step.values);
      for (const auto* results : {&plan_.loss.scalars, &plan_.loss.rows}) {
        for (const ir::NamedNode& result : *results) {
          const bool here = std::count(step.values.begin(), step.values.end(), result.node) > 0;
          const std::string name = names_.text(result.node);
          if (here && name != result.name) d.values.push_back({result.name, name});
        }
      }
      out.push_back(std::move(d));
    }
    return out;
  }

  double bytes_of(NodeId input) const {
    const auto it = spec_.tensors.find(g().symbol_of(input));
    const bool named = it != spec_.tensors.end() && it->second.dtype;
    return row_of(named ? *it->second.dtype : spec_.logits_dtype);
  }

  double row_of(DType dtype) const {
    return static_cast<double>(dtype_size(dtype)) * static_cast<double>(spec_.vocab);
  }

  RegionDescription region(const Region& region) {
    RegionDescription d;
    d.reads = texts(region.reads);
    for (NodeId in : region.reads) d.bytes_per_row += bytes_of(in);
    d.picks = lines(region.picks);
    for (const Phase& phase : region.phases) {
      std::vector<NodeId> anchors, others;
      for (NodeId id : phase.statistics) (g().node(id).op == Op::anchor ? anchors : others).push_back(id);
      PhaseDescription p{lines(anchors)};
      for (Line& line : lines(others)) p.statistics.push_back(std::move(line));
      d.phases.push_back(std::move(p));
    }
    if (region.emit) emit(d);
    d.stored = texts(region.stored);
    return d;
  }

  void emit(RegionDescription& d) {
    d.emits = true;
    const bool accumulates = plan_.gradient == GradientMode::accumulate;
    if (accumulates) d.reads.emplace_back("grad_logits");
    d.writes.emplace_back("grad_logits");
    d.bytes_per_row += (accumulates ? 2 : 1) * row_of(spec_.gradient_dtype);
    std::vector<NodeId> ids;
    for (const ir::DenseTerm& term : plan_.loss.dense) {
      ids.push_back(term.basis);
      ids.push_back(term.coefficient);
    }
    for (const ir::SparseTerm& term : plan_.loss.sparse) {
      ids.push_back(term.index);
      ids.push_back(term.value);
    }
    d.emit_where = names_.operands(ids);
    for (const ir::DenseTerm& term : plan_.loss.dense) {
      d.dense.push_back({names_.text(term.coefficient), names_.text(term.basis), term.guarded});
    }
    for (const ir::SparseTerm& term : plan_.loss.sparse) {
      d.sparse.push_back({fmt::format("gradient[{}]", names_.text(term.index)), names_.text(term.value)});
    }
  }

  void count_memory() {
    const auto add = [&](Space space) {
      if (space == Space::rows) out_.row_bytes += kValueBytes;
      if (space == Space::segments) out_.segment_bytes += kValueBytes;
      if (space == Space::pairs) out_.pair_bytes += kValueBytes;
    };
    const auto is_output = [&](NodeId id) {
      return std::any_of(plan_.loss.rows.begin(), plan_.loss.rows.end(),
                         [&](const ir::NamedNode& output) { return output.node == id; });
    };
    const auto add_steps = [&](const std::vector<Step>& steps) {
      for (const Step& step : steps) {
        for (NodeId id : step.values) {
          if (!is_output(id)) add(g().node(id).space);
        }
      }
    };
    add_steps(plan_.prologue);
    for (const auto& seam : plan_.seams) add_steps(seam);
    add_steps(plan_.epilogue);
    for (const Region& region : plan_.regions)
      out_.row_bytes += kValueBytes * static_cast<int>(region.stored.size());
  }

  const Plan& plan_;
  const Spec& spec_;
  PlanNames names_;
  PlanDescription out_;
};

}  // namespace

PlanDescription describe(const Plan& plan, const Spec& spec) {
  return Describer(plan, spec).run();
}

}  // namespace lossc
