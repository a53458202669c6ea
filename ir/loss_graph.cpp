#include "ir/loss_graph.h"

#include <fmt/format.h>

#include <map>

namespace lossc::ir {

std::vector<NamedNode> LossGraph::roots() const {
  std::vector<NamedNode> all = scalars;
  all.insert(all.end(), rows.begin(), rows.end());
  all.push_back({"active", active});
  all.push_back({"live", live});
  for (std::size_t i = 0; i < dense.size(); ++i) {
    all.push_back({fmt::format("grad.basis{}", i), dense[i].basis});
    all.push_back({fmt::format("grad.coefficient{}", i), dense[i].coefficient});
  }
  for (std::size_t i = 0; i < sparse.size(); ++i) {
    all.push_back({fmt::format("grad.index{}", i), sparse[i].index});
    all.push_back({fmt::format("grad.onehot{}", i), sparse[i].coefficient});
  }
  return all;
}

NodeId pick_element(Graph& graph, NodeId value, NodeId index) {
  const Node n = graph.node(value);  // a copy: the graph grows below
  if (n.space != Space::element && n.space != Space::vocab) return value;
  if (n.op == Op::softmax) {
    const NodeId x = n.in[0];
    const NodeId shifted = graph.apply(Op::sub, pick_element(graph, x, index), graph.apply(Op::anchor, x));
    return graph.apply(Op::exp, graph.apply(Op::sub, shifted, graph.apply(Op::log_sum, x)));
  }
  if (!is_pointwise(n.op)) return graph.apply(Op::pick, value, index);
  std::array<NodeId, 3> in{no_node, no_node, no_node};
  for (std::size_t k = 0; k < 3; ++k) {
    if (n.in[k] != no_node) in[k] = pick_element(graph, n.in[k], index);
  }
  return graph.apply(n.op, in[0], in[1], in[2]);
}

void sum_child_gradients(LossGraph& loss) {
  Graph& g = loss.graph;
  loss.dense.clear();
  loss.sparse.clear();
  std::map<NodeId, std::size_t> users;  // children with a term on a basis
  for (const ChildGradient& child : loss.child_gradients) {
    for (const DenseTerm& term : child.dense) {
      ++users[term.basis];
      bool found = false;
      for (DenseTerm& total : loss.dense) {
        if (total.basis != term.basis) continue;
        total.coefficient = g.apply(Op::add, total.coefficient, term.coefficient);
        found = true;
      }
      if (!found) loss.dense.push_back(term);
    }
    for (const SparseTerm& term : child.sparse) {
      bool found = false;
      for (SparseTerm& total : loss.sparse) {
        if (total.index != term.index) continue;
        total.coefficient = g.apply(Op::add, total.coefficient, term.coefficient);
        found = true;
      }
      if (!found) loss.sparse.push_back(term);
    }
  }
  for (DenseTerm& term : loss.dense) {
    const bool constant = g.node(term.basis).op == Op::constant;
    term.guarded = !constant && users[term.basis] < loss.child_gradients.size();
    term.coefficient = g.apply(Op::mul, term.coefficient, loss.grad_scale);
  }
  for (SparseTerm& term : loss.sparse) term.coefficient = g.apply(Op::mul, term.coefficient, loss.grad_scale);
}

}  // namespace lossc::ir
