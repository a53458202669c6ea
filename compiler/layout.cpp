#include "compiler/layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <set>

#include "lossc/error.h"

namespace lossc {

using ir::Graph;
using ir::no_node;
using ir::Node;
using ir::NodeId;
using ir::Op;
using ir::Space;

namespace {

// Calls `visit` for every node that the plan computes, operands first, in the order of the plan.
void walk_plan(const Plan& plan, const std::function<void(NodeId)>& visit) {
  const Graph& g = plan.loss.graph;
  std::set<NodeId> seen;
  std::function<void(NodeId)> walk = [&](NodeId id) {
    if (id == no_node || !seen.insert(id).second) return;
    for (NodeId in : g.node(id).in) walk(in);
    const Node& n = g.node(id);
    // A map's indices are an input of its from-space.
    if (n.op == Op::gather || (n.op >= Op::segment_sum && n.op <= Op::segment_max)) {
      for (NodeId k = 0; k < g.size(); ++k) {
        if (g.node(k).op == Op::input && g.node(k).kind == ir::Kind::index &&
            g.symbol_of(k) == g.symbol(n.symbol)) {
          walk(k);
        }
      }
    }
    visit(id);
  };
  auto steps = [&](const std::vector<Step>& list) {
    for (const Step& step : list) {
      for (NodeId id : step.values) walk(id);
    }
  };
  steps(plan.prologue);
  for (std::size_t r = 0; r < plan.regions.size(); ++r) {
    const Region& region = plan.regions[r];
    walk(plan.loss.active);
    walk(plan.loss.live);
    for (const Phase& phase : region.phases) {
      for (NodeId id : phase.statistics) walk(id);
    }
    for (NodeId id : region.picks) walk(id);
    if (region.emit) {
      for (const ir::DenseTerm& t : plan.loss.dense) {
        walk(t.basis);
        walk(t.coefficient);
      }
      for (const ir::SparseTerm& t : plan.loss.sparse) {
        walk(t.index);
        walk(t.value);
      }
    }
    if (r < plan.seams.size()) steps(plan.seams[r]);
  }
  steps(plan.epilogue);
}

}  // namespace

std::vector<NodeId> plan_order(const Plan& plan) {
  std::vector<NodeId> order;
  walk_plan(plan, [&](NodeId id) { order.push_back(id); });
  return order;
}

int Layout::map_index(const std::string& name) const {
  const auto it = std::find(maps.begin(), maps.end(), name);
  if (it == maps.end()) throw Error(ErrorCode::internal, "map " + name + " is not in the layout");
  return static_cast<int>(it - maps.begin());
}

Layout make_layout(const Plan& plan, const Spec& spec) {
  Layout layout;
  const Graph& g = plan.loss.graph;
  walk_plan(plan, [&](NodeId id) {
    const Node& n = g.node(id);
    if (n.op == Op::parameter) {
      const std::string& name = g.symbol(n.symbol);
      const auto it = std::find(layout.parameters.begin(), layout.parameters.end(), name);
      layout.parameter_of[id] = static_cast<int>(it - layout.parameters.begin());
      if (it == layout.parameters.end()) layout.parameters.push_back(name);
    }
    if (n.op != Op::input) return;
    TensorSlot slot{g.symbol(n.symbol), n.space, n.kind, DType::fp32, n.aux == 0, n.value};
    if (n.kind == ir::Kind::index) slot.dtype = DType::i32;
    if (n.kind == ir::Kind::boolean) slot.dtype = DType::u8;
    if (n.space == Space::element) {
      slot.dtype = spec.logits_dtype;
      if (auto it = spec.tensors.find(slot.name); it != spec.tensors.end() && it->second.dtype) {
        slot.dtype = *it->second.dtype;
      }
    }
    layout.tensor_of[id] = static_cast<int>(layout.tensors.size());
    layout.tensors.push_back(std::move(slot));
  });

  std::set<NodeId> outputs;
  for (const ir::NamedNode& output : plan.loss.rows) outputs.insert(output.node);
  auto add_step_values = [&](const std::vector<Step>& steps) {
    for (const Step& step : steps) {
      for (NodeId id : step.values) {
        if (g.node(id).space == Space::scalar) {
          layout.scalar_of[id] = static_cast<int>(layout.scalars.size());
          layout.scalars.push_back(id);
        } else if (step.kind != Step::Kind::map || outputs.count(id) == 0) {
          layout.buffer_of[id] = static_cast<int>(layout.buffers.size());
          layout.buffers.push_back(id);
        }
        if (step.kind == Step::Kind::segment &&
            std::find(layout.maps.begin(), layout.maps.end(), step.map) == layout.maps.end()) {
          layout.maps.push_back(step.map);
        }
      }
    }
  };
  add_step_values(plan.prologue);
  for (std::size_t r = 0; r < plan.regions.size(); ++r) {
    for (NodeId id : plan.regions[r].stored) {
      layout.buffer_of[id] = static_cast<int>(layout.buffers.size());
      layout.buffers.push_back(id);
    }
    if (r < plan.seams.size()) add_step_values(plan.seams[r]);
  }
  add_step_values(plan.epilogue);

  for (const ir::NamedNode& output : plan.loss.rows) {
    layout.outputs_of[output.node].push_back(static_cast<int>(layout.tensors.size()));
    layout.tensors.push_back({output.name, Space::rows, ir::Kind::real, DType::fp32, false, 0});
  }
  if (plan.gradient != GradientMode::none) {
    layout.gradient = static_cast<int>(layout.tensors.size());
    layout.tensors.push_back({"grad_logits", Space::element, ir::Kind::real, spec.gradient_dtype, true, 0});
  }
  return layout;
}

std::string canonical_text(const Plan& plan, const Layout& layout, const Spec& spec) {
  const Graph& g = plan.loss.graph;
  std::map<NodeId, int> number;
  std::string text = fmt::format("vocab {}\ngradient {} {}\n", spec.vocab, static_cast<int>(plan.gradient),
                                 dtype_name(spec.gradient_dtype));
  walk_plan(plan, [&](NodeId id) {
    const Node& n = g.node(id);
    const int own = static_cast<int>(number.size());
    number[id] = own;
    text += fmt::format("{} {} {} {} {:016x}", own, ir::op_name(n.op), static_cast<int>(n.kind),
                        static_cast<int>(n.space), std::bit_cast<std::uint64_t>(n.value));
    if (n.op == Op::input) {
      const int slot = layout.tensor_of.at(id);
      text += fmt::format(" tensor {} {}", slot,
                          dtype_name(layout.tensors[static_cast<std::size_t>(slot)].dtype));
    } else if (n.op == Op::parameter) {
      text += fmt::format(" parameter {}", layout.parameter_of.at(id));
    } else if (n.symbol >= 0) {
      text += " " + g.symbol(n.symbol);  // a map or a group
    }
    if (n.op == Op::space_size) text += fmt::format(" space {}", n.aux);
    for (NodeId in : n.in) {
      if (in != no_node) text += fmt::format(" %{}", number.at(in));
    }
    text += "\n";
  });
  auto list = [&](const std::vector<NodeId>& ids) {
    std::string s;
    for (NodeId id : ids) s += fmt::format(" %{}", number.at(id));
    return s;
  };
  auto steps = [&](const char* name, const std::vector<Step>& all) {
    for (const Step& step : all) {
      text += fmt::format("{} {} {} {}{}\n", name, static_cast<int>(step.kind), static_cast<int>(step.domain),
                          step.map, list(step.values));
    }
  };
  steps("prologue", plan.prologue);
  for (std::size_t r = 0; r < plan.regions.size(); ++r) {
    const Region& region = plan.regions[r];
    text += fmt::format("region picks{} stored{}\n", list(region.picks), list(region.stored));
    for (const Phase& phase : region.phases) text += "phase" + list(phase.statistics) + "\n";
    if (region.emit) {
      for (const ir::DenseTerm& t : plan.loss.dense) {
        text += fmt::format("dense %{} %{} {}\n", number.at(t.basis), number.at(t.coefficient), t.guarded);
      }
      for (const ir::SparseTerm& t : plan.loss.sparse) {
        text += fmt::format("sparse %{} %{}\n", number.at(t.index), number.at(t.value));
      }
    }
    if (r < plan.seams.size()) steps("seam", plan.seams[r]);
  }
  steps("epilogue", plan.epilogue);
  for (const ir::NamedNode& output : plan.loss.rows)
    text += fmt::format("output %{}\n", number.at(output.node));
  return text;
}

}  // namespace lossc
