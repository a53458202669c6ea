#include "ir/linear_form.h"

namespace lossc::ir {

namespace {

class Collector {
 public:
  explicit Collector(Graph& graph) : g_(graph), one_(graph.constant(1)), zero_(graph.constant(0)) {}

  void add(NodeId e, NodeId coefficient) {
    const Node n = g_.node(e);  // a copy: the graph grows below
    if (n.space != Space::element) return put(one_, scaled(g_, coefficient, e));
    switch (n.op) {
      case Op::add:
        add(n.in[0], coefficient);
        add(n.in[1], coefficient);
        return;
      case Op::sub:
        add(n.in[0], coefficient);
        add(n.in[1], g_.apply(Op::neg, coefficient));
        return;
      case Op::neg:
        return add(n.in[0], g_.apply(Op::neg, coefficient));
      case Op::div:
        if (is_row(n.in[1])) return add(n.in[0], g_.apply(Op::div, coefficient, n.in[1]));
        break;
      case Op::mul:
      case Op::zero_mul:
        if (is_row(n.in[0])) return add(n.in[1], scaled(g_, coefficient, n.in[0]));
        if (is_row(n.in[1])) return add(n.in[0], scaled(g_, coefficient, n.in[1]));
        if (n.op == Op::zero_mul) return product(n, coefficient);
        break;
      case Op::select:
        if (is_row(n.in[0])) {
          add(n.in[1], g_.apply(Op::select, n.in[0], coefficient, zero_));
          add(n.in[2], g_.apply(Op::select, n.in[0], zero_, coefficient));
          return;
        }
        if (n.in[1] == zero_ || n.in[2] == zero_) return selection(n, coefficient);
        break;
      default:
        break;
    }
    put(e, coefficient);
  }

  std::vector<DenseTerm> take() { return std::move(terms_); }

 private:
  bool is_row(NodeId id) const { return g_.node(id).space != Space::element; }

  // (sum_i c_i b_i) * f = sum_i c_i (b_i * f). Only the first operand, the adjoint, is taken apart: a sum in
  // the second is a local derivative such as 1 - tanh^2, which would cancel.
  void product(const Node& n, NodeId coefficient) {
    for (const DenseTerm& t : linear_form(g_, n.in[0])) {
      const NodeId c = scaled(g_, coefficient, t.coefficient);
      if (t.basis == one_) {
        add(n.in[1], c);
      } else {
        put(g_.apply(Op::zero_mul, t.basis, n.in[1]), c);
      }
    }
  }

  // select(element condition, sum, 0) distributes over the sum.
  void selection(const Node& n, NodeId coefficient) {
    const bool then = n.in[2] == zero_;
    const NodeId inner = then ? n.in[1] : n.in[2];
    for (const DenseTerm& t : linear_form(g_, inner)) {
      const NodeId basis = then ? g_.apply(Op::select, n.in[0], t.basis, zero_)
                                : g_.apply(Op::select, n.in[0], zero_, t.basis);
      put(basis, scaled(g_, coefficient, t.coefficient));
    }
  }

  void put(NodeId basis, NodeId coefficient) {
    if (coefficient == zero_) return;
    for (DenseTerm& t : terms_) {
      if (t.basis == basis) {
        t.coefficient = g_.apply(Op::add, t.coefficient, coefficient);
        return;
      }
    }
    terms_.push_back({basis, coefficient, false});
  }

  Graph& g_;
  NodeId one_, zero_;
  std::vector<DenseTerm> terms_;
};

}  // namespace

NodeId scaled(Graph& graph, NodeId a, NodeId b) {
  if (graph.is_constant(a, 1)) return b;
  if (graph.is_constant(b, 1)) return a;
  const Node& left = graph.node(a);
  const Node& right = graph.node(b);
  const bool a_not_zero = left.op == Op::constant && left.value != 0;
  const bool b_finite = right.op == Op::constant;
  return graph.apply(a_not_zero || b_finite ? Op::mul : Op::zero_mul, a, b);
}

std::vector<DenseTerm> linear_form(Graph& graph, NodeId e) {
  if (e == no_node) return {};
  Collector collector(graph);
  collector.add(e, graph.constant(1));
  return collector.take();
}

}  // namespace lossc::ir
