#include "compiler/cpu/region_shape.h"

#include <fmt/format.h>

#include <algorithm>

#include "lossc/error.h"

namespace lossc::cpu {

using ir::no_node;
using ir::Node;
using ir::NodeId;
using ir::Op;
using ir::Space;

namespace {

void collect_softmaxes(const ir::Graph& graph, NodeId id, std::set<NodeId>& out, std::set<NodeId>& seen) {
  const Node& n = graph.node(id);
  if (n.space != Space::element || !seen.insert(id).second) return;
  if (n.op == Op::softmax) out.insert(n.in[0]);
  for (NodeId in : n.in) {
    if (in != no_node) collect_softmaxes(graph, in, out, seen);
  }
}

}  // namespace

RegionShape::RegionShape(const Plan& plan, const Region& region, std::int64_t vocab)
    : plan_(plan),
      region_(region),
      vocab_(vocab),
      tensors_(region_tensors(plan.loss.graph, region)),
      from_sweeps_(values_from_sweeps(plan.loss.graph, region)) {
  for (NodeId id : region.picks) own_.insert(id);
  for (const Phase& phase : region.phases) own_.insert(phase.statistics.begin(), phase.statistics.end());
  find_kept();
}

std::size_t RegionShape::phase_of(NodeId id) const {
  for (std::size_t k = 0; k < region_.phases.size(); ++k) {
    const auto& s = region_.phases[k].statistics;
    if (std::find(s.begin(), s.end(), id) != s.end()) return k;
  }
  return 0;
}

std::vector<NodeId> RegionShape::phase_roots(std::size_t k) const {
  std::vector<NodeId> roots;
  for (NodeId id : region_.phases[k].statistics) {
    for (NodeId in : node(id).in) {
      if (in != no_node && node(in).space == Space::element) roots.push_back(in);
    }
  }
  return roots;
}

std::vector<NodeId> RegionShape::emit_roots() const {
  std::vector<NodeId> roots;
  for (const ir::DenseTerm& t : plan_.loss.dense) {
    if (node(t.basis).space == Space::element) roots.push_back(t.basis);
  }
  return roots;
}

std::set<NodeId> RegionShape::softmaxes(const std::vector<NodeId>& roots) const {
  std::set<NodeId> out, seen;
  for (NodeId id : roots) collect_softmaxes(plan_.loss.graph, id, out, seen);
  return out;
}

std::set<NodeId> RegionShape::phase_exponentials(std::size_t k) const {
  std::set<NodeId> out = softmaxes(phase_roots(k));
  for (NodeId id : region_.phases[k].statistics) {
    const Node& n = node(id);
    if (n.op == Op::log_sum || n.op == Op::expect) out.insert(n.in[0]);
  }
  return out;
}

std::set<NodeId> RegionShape::anchors_of(std::size_t k) const {
  std::set<NodeId> out;
  for (NodeId id : region_.phases[k].statistics) {
    if (node(id).op == Op::anchor) out.insert(node(id).in[0]);
  }
  return out;
}

NodeId RegionShape::softmax_of(NodeId basis) const {
  const Node& n = node(basis);
  if (n.op == Op::softmax) return n.in[0];
  if (n.op == Op::zero_mul && node(n.in[0]).op == Op::softmax) return node(n.in[0]).in[0];
  return no_node;
}

NodeId RegionShape::find(Op op, NodeId x) const {
  for (NodeId id = x + 1; id < plan_.loss.graph.size(); ++id) {
    if (node(id).op == op && node(id).in[0] == x) return id;
  }
  throw Error(ErrorCode::internal, fmt::format("a softmax without its {}", ir::op_name(op)));
}

// What the emit would otherwise form anew from inputs that have left the near caches: exponentials of the
// last phase, and products with them that the phase forms for its means.
void RegionShape::find_kept() {
  if (!region_.emit || region_.phases.empty()) return;
  const std::size_t last = region_.phases.size() - 1;
  const std::set<NodeId> formed = phase_exponentials(last);
  auto keep = [&](Kept k) {
    if (std::find(kept_.begin(), kept_.end(), k) == kept_.end()) kept_.push_back(k);
  };
  for (NodeId basis : emit_roots()) {
    const Node& n = node(basis);
    const NodeId x = softmax_of(basis);
    const bool product = x != no_node && n.op == Op::zero_mul;
    const auto& statistics = region_.phases[last].statistics;
    const bool averaged =
        product && std::any_of(statistics.begin(), statistics.end(), [&](NodeId id) {
          return node(id).op == Op::expect && node(id).in[0] == x && node(id).in[1] == n.in[1];
        });
    if (averaged) {
      keep({x, n.in[1]});
      continue;
    }
    for (NodeId argument : softmaxes({basis})) {
      if (formed.count(argument) > 0) keep({argument, no_node});
    }
  }
}

}  // namespace lossc::cpu
