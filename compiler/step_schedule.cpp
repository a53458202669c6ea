#include "compiler/step_schedule.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace lossc {

using ir::Graph;
using ir::Node;
using ir::NodeId;
using ir::Op;
using ir::Space;

namespace {

Step step_of(const Graph& graph, NodeId id) {
  const Node& n = graph.node(id);
  Step step;
  if (n.op == Op::segment_sum || n.op == Op::segment_min || n.op == Op::segment_max) {
    step.kind = Step::Kind::segment;
    step.map = graph.symbol(n.symbol);
    step.domain = graph.map(step.map).to;
  } else if (ir::is_cross_reduction(n.op)) {
    step.kind = Step::Kind::reduce;
    step.domain = graph.node(n.in[0]).space;
  } else {
    step.kind = Step::Kind::map;
    step.domain = n.space;
  }
  return step;
}

// Of a value: the values of its stage that it is computed from.
class Needs {
 public:
  Needs(const std::vector<NodeId>& values, const OperandsOf& operands)
      : stage_(values.begin(), values.end()), operands_(operands) {}

  const std::set<NodeId>& of(NodeId id) {
    if (const auto found = known_.find(id); found != known_.end()) return found->second;
    std::set<NodeId> needs;
    for (NodeId in : operands_(id)) {
      if (stage_.count(in) > 0) needs.insert(in);
      const std::set<NodeId>& more = of(in);
      needs.insert(more.begin(), more.end());
    }
    return known_.emplace(id, std::move(needs)).first->second;
  }

 private:
  std::set<NodeId> stage_;
  const OperandsOf& operands_;
  std::map<NodeId, std::set<NodeId>> known_;
};

}  // namespace

// The next step is of a kind whose remaining values are all ready, so that none of them has to come later;
// scalars wait until something needs them.
std::vector<Step> schedule_steps(const Graph& graph, const std::vector<NodeId>& values,
                                 const OperandsOf& operands) {
  using Key = std::tuple<bool, int, int, std::string>;  // scalar, kind, domain, map
  Needs needs(values, operands);
  std::set<NodeId> open(values.begin(), values.end());
  std::vector<Step> steps;
  while (!open.empty()) {
    std::map<Key, Step> ready;
    std::map<Key, int> waiting;
    for (NodeId id : values) {
      if (open.count(id) == 0) continue;
      Step step = step_of(graph, id);
      const Key key(step.domain == Space::scalar, static_cast<int>(step.kind), static_cast<int>(step.domain),
                    step.map);
      const std::set<NodeId>& in = needs.of(id);
      if (std::any_of(in.begin(), in.end(), [&](NodeId need) { return open.count(need) > 0; })) {
        ++waiting[key];
        continue;
      }
      Step& group = ready[key];
      if (group.values.empty()) group = std::move(step);
      group.values.push_back(id);
    }
    const auto rank = [&](const auto& entry) {
      return std::tuple(std::get<0>(entry.first), waiting.count(entry.first) > 0);
    };
    const auto next = std::min_element(ready.begin(), ready.end(),
                                       [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
    for (NodeId id : next->second.values) open.erase(id);
    steps.push_back(std::move(next->second));
  }
  return steps;
}

}  // namespace lossc
