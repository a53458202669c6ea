// A spec as a graph with named results, on its way through the passes:
//
//   build_graph (spec -> values) -> differentiate (adds the gradient) -> simplify -> compiler/plan
#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"
#include "lossc/spec.h"

namespace lossc::ir {

struct NamedNode {
  std::string name;
  NodeId node = no_node;
};

/// coefficient * basis, added to every element of a row. `basis` is an element value, or the constant 1.
/// A guarded term is dropped by selection in rows where its coefficient is 0, so that a basis which is NaN
/// there (the teacher of a child that the row does not count for) cannot leak.
struct DenseTerm {
  NodeId basis = no_node;
  NodeId coefficient = no_node;  // rows or scalar
  bool guarded = false;
};

/// `coefficient` added to the element `index` of each row; nothing where the index is negative.
struct SparseTerm {
  NodeId index = no_node;
  NodeId coefficient = no_node;
  /// rows: the whole gradient of that element, dense and sparse, so that p - 1 is formed before anything is
  /// rounded. Set by simplify in LossGraph::sparse.
  NodeId value = no_node;
};

/// The derivative of one child's weighted loss with respect to the logits.
struct ChildGradient {
  std::string name;
  std::vector<DenseTerm> dense;
  std::vector<SparseTerm> sparse;
};

/// One child of the spec.
struct ChildValue {
  std::string name;
  NodeId loss = no_node;    // scalar: reduced, unweighted
  NodeId weight = no_node;  // scalar
  NodeId guard = no_node;   // rows, boolean: the row counts for the child and its weight is not 0
};

struct LossGraph {
  Graph graph;
  std::int64_t vocab = 0;
  NodeId logits = no_node;  // the element input
  std::vector<ChildValue> children;
  std::vector<NamedNode> scalars;  // "loss", "loss.<child>", "metric.<name>"
  std::vector<NamedNode> rows;     // "output.<name>"
  NodeId active = no_node;         // rows, boolean: the row's logits are read
  NodeId live = no_node;           // rows, boolean: the row has a gradient; implies active
  NodeId bad = no_node;            // rows, boolean: a label or segment id out of range
  NodeId grad_scale = no_node;     // rows: the upstream gradient

  // From differentiate on, when the spec asks for a gradient:
  std::vector<ChildGradient> child_gradients;
  std::vector<DenseTerm> dense;
  std::vector<SparseTerm> sparse;

  bool has_gradient() const { return !dense.empty() || !sparse.empty(); }
  /// All nodes that results are read from, named: for dumps and dead-code elimination.
  std::vector<NamedNode> roots() const;
};

/// The element `index` of each row of an element or vocabulary value, computed from picks of raw inputs: no
/// sweep.
NodeId pick_element(Graph& graph, NodeId value, NodeId index);

/// Sets dense and sparse to the sum of child_gradients, times grad_scale.
void sum_child_gradients(LossGraph& loss);

}  // namespace lossc::ir
