#include "ir/differentiate.h"

#include <fmt/format.h>

#include <limits>
#include <map>

#include "ir/linear_form.h"
#include "lossc/error.h"

namespace lossc::ir {

namespace {

/// The adjoint of a value: `dense` in the value's space or a smaller one (then it is the same everywhere),
/// and for element values a list of sparse terms.
struct Adjoint {
  NodeId dense = no_node;
  std::vector<SparseTerm> sparse;
};

class Reverse {
 public:
  Reverse(LossGraph& loss, NodeId root, NodeId seed)
      : g_(loss.graph),
        logits_(loss.logits),
        vocab_(loss.vocab),
        active_(depends_on(loss.graph, {loss.logits})) {
    if (root >= static_cast<NodeId>(active_.size()) || !active_[static_cast<std::size_t>(root)]) return;
    adjoints_[root].dense = seed;
    // Adjoints are new nodes with larger ids; only nodes of the value are visited, from the largest id down.
    while (!adjoints_.empty()) {
      auto last = std::prev(adjoints_.end());
      const NodeId id = last->first;
      const Adjoint adjoint = last->second;
      adjoints_.erase(last);
      if (id == logits_) {
        result_ = adjoint;
        continue;
      }
      visit(id, adjoint);
    }
  }

  const Adjoint& result() const { return result_; }

 private:
  bool active(NodeId id) const {
    return id != no_node && static_cast<std::size_t>(id) < active_.size() &&
           active_[static_cast<std::size_t>(id)];
  }
  Space space(NodeId id) const { return g_.node(id).space; }
  NodeId constant(double v) { return g_.constant(v); }
  NodeId apply(Op op, NodeId a, NodeId b = no_node, NodeId c = no_node) { return g_.apply(op, a, b, c); }
  NodeId times(NodeId adjoint, NodeId local) { return scaled(g_, adjoint, local); }

  NodeId sum_of(NodeId a, NodeId b) {
    if (a == no_node) return b;
    if (b == no_node) return a;
    return apply(Op::add, a, b);
  }

  // The sum over the vocabulary of an adjoint that belongs to an element value.
  NodeId over_vocab(NodeId dense) {
    if (space(dense) == Space::element || space(dense) == Space::vocab) return apply(Op::vocab_sum, dense);
    return apply(Op::mul, dense, constant(static_cast<double>(vocab_)));
  }

  // The sum over space `from` of an adjoint, as a scalar.
  NodeId over_space(NodeId dense, Space from) {
    if (space(dense) != Space::scalar) return apply(Op::reduce_sum, dense);
    return apply(Op::mul, dense, g_.space_size(from));
  }

  // Adds an adjoint that was formed in space `from` (the space of the node that uses `id`) to `id`.
  void give(NodeId id, NodeId dense, Space from) {
    if (dense == no_node || !active(id) || g_.is_constant(dense, 0)) return;
    const Space own = space(id);
    if (own != from) {
      if (from == Space::element) dense = over_vocab(dense);
      if (own == Space::scalar) dense = over_space(dense, from == Space::element ? Space::rows : from);
    }
    Adjoint& a = adjoints_[id];
    a.dense = sum_of(a.dense, dense);
  }

  void give_sparse(NodeId id, NodeId index, NodeId coefficient) {
    if (!active(id) || g_.is_constant(coefficient, 0)) return;
    if (space(id) != Space::element) return give(id, coefficient, Space::rows);
    Adjoint& a = adjoints_[id];
    for (SparseTerm& term : a.sparse) {
      if (term.index == index) {
        term.coefficient = apply(Op::add, term.coefficient, coefficient);
        return;
      }
    }
    a.sparse.push_back({index, coefficient, no_node});
  }

  // The adjoints that a point-wise node's operands get for the adjoint `y_bar` of its value `y`. Used with
  // element values for the dense part and with picked ones for each sparse term.
  std::array<NodeId, 3> pointwise(Op op, const std::array<NodeId, 3>& x, NodeId y, NodeId y_bar) {
    const NodeId zero = constant(0), one = constant(1);
    auto none = no_node;
    switch (op) {
      case Op::neg:
        return {apply(Op::neg, y_bar), none, none};
      case Op::exp:
        return {times(y_bar, y), none, none};
      case Op::log:
        return {times(y_bar, apply(Op::div, one, x[0])), none, none};
      case Op::log1p:
        return {times(y_bar, apply(Op::div, one, apply(Op::add, one, x[0]))), none, none};
      case Op::expm1:
        return {times(y_bar, apply(Op::exp, x[0])), none, none};
      case Op::log1mexp:
        return {times(y_bar, apply(Op::neg, apply(Op::exp, apply(Op::sub, x[0], y)))), none, none};
      case Op::tanh:
        return {times(y_bar, apply(Op::sub, one, apply(Op::mul, y, y))), none, none};
      case Op::sigmoid:
        return {times(y_bar, apply(Op::mul, y, apply(Op::sub, one, y))), none, none};
      case Op::log_sigmoid:
        return {times(y_bar, apply(Op::sigmoid, apply(Op::neg, x[0]))), none, none};
      case Op::softplus:
        return {times(y_bar, apply(Op::sigmoid, x[0])), none, none};
      case Op::sqrt:
        return {times(y_bar, apply(Op::div, constant(0.5), y)), none, none};
      case Op::abs:
        return {times(y_bar, apply(Op::sign, x[0])), none, none};
      case Op::add:
        return {y_bar, y_bar, none};
      case Op::sub:
        return {y_bar, apply(Op::neg, y_bar), none};
      case Op::mul:
        return {times(y_bar, x[1]), times(y_bar, x[0]), none};
      case Op::div:
        return {times(y_bar, apply(Op::div, one, x[1])),
                times(y_bar, apply(Op::neg, apply(Op::div, y, x[1]))), none};
      case Op::zero_mul:
        return {times(y_bar, x[1]), apply(Op::zero_mul, x[0], y_bar), none};
      case Op::minimum: {
        const NodeId first = apply(Op::less_equal, x[0], x[1]);
        return {apply(Op::select, first, y_bar, zero), apply(Op::select, first, zero, y_bar), none};
      }
      case Op::maximum: {
        const NodeId first = apply(Op::less_equal, x[1], x[0]);
        return {apply(Op::select, first, y_bar, zero), apply(Op::select, first, zero, y_bar), none};
      }
      case Op::select:
        return {none, apply(Op::select, x[0], y_bar, zero), apply(Op::select, x[0], zero, y_bar)};
      case Op::clip: {
        const NodeId below = apply(Op::less, x[0], x[1]), above = apply(Op::less, x[2], x[0]);
        const NodeId outside = apply(Op::logical_or, below, above);
        return {apply(Op::select, outside, zero, y_bar), apply(Op::select, below, y_bar, zero),
                apply(Op::select, above, y_bar, zero)};
      }
      default:
        return {none, none, none};  // constants, conditions, sign, stop_gradient: no derivative
    }
  }

  // The operand at one element of each row. A condition is formed there from what it compares: pick takes
  // numbers.
  NodeId picked_operand(NodeId id, NodeId index) {
    const Node n = g_.node(id);  // a copy: the graph grows below
    if (n.space != Space::element && n.space != Space::vocab) return id;
    if (n.kind != Kind::boolean) return apply(Op::pick, id, index);
    std::array<NodeId, 3> in{no_node, no_node, no_node};
    for (std::size_t k = 0; k < 3; ++k) {
      if (n.in[k] != no_node) in[k] = picked_operand(n.in[k], index);
    }
    return apply(n.op, in[0], in[1], in[2]);
  }

  void visit(NodeId id, const Adjoint& adjoint) {
    const Node n = g_.node(id);  // a copy: the graph grows below
    const NodeId y_bar = adjoint.dense;
    if (is_pointwise(n.op)) {
      if (y_bar != no_node) {
        const auto bars = pointwise(n.op, n.in, id, y_bar);
        for (std::size_t k = 0; k < 3; ++k) give(n.in[k], bars[k], n.space);
      }
      for (const SparseTerm& term : adjoint.sparse) {
        std::array<NodeId, 3> picked{no_node, no_node, no_node};
        for (std::size_t k = 0; k < 3; ++k) {
          if (n.in[k] != no_node) picked[k] = picked_operand(n.in[k], term.index);
        }
        const auto bars = pointwise(n.op, picked, apply(Op::pick, id, term.index), term.coefficient);
        for (std::size_t k = 0; k < 3; ++k) {
          if (n.in[k] != no_node && bars[k] != no_node) give_sparse(n.in[k], term.index, bars[k]);
        }
      }
      return;
    }
    const NodeId x = n.in[0];
    switch (n.op) {
      case Op::lse:
        return give(x, times(y_bar, apply(Op::softmax, x)), Space::element);
      case Op::expect: {
        const NodeId p = apply(Op::softmax, x);
        give(x, times(y_bar, apply(Op::zero_mul, p, apply(Op::sub, n.in[1], id))), Space::element);
        give(n.in[1], times(y_bar, p), Space::element);
        return;
      }
      case Op::softmax: {
        NodeId mean = no_node;
        if (y_bar != no_node) {
          const bool row = space(y_bar) != Space::element;
          if (!row) {
            give(x, apply(Op::zero_mul, id, y_bar), Space::element);
            mean = apply(Op::expect, x, y_bar);
          }  // a constant row adjoint cancels against its own mean
        }
        for (const SparseTerm& term : adjoint.sparse) {
          const NodeId weight = apply(Op::zero_mul, apply(Op::pick, id, term.index), term.coefficient);
          give_sparse(x, term.index, weight);
          mean = sum_of(mean, weight);
        }
        if (mean != no_node) give(x, apply(Op::neg, times(mean, id)), Space::element);
        return;
      }
      case Op::vocab_sum:
        return give(x, y_bar, space(x));
      case Op::vocab_max:
        return give_sparse(x, apply(Op::vocab_argmax, x), y_bar);
      case Op::pick:
        return give_sparse(x, n.in[1], y_bar);
      case Op::gather: {
        const std::string map = g_.symbol(n.symbol);
        return give(
            x, space(y_bar) == Space::scalar ? spread(y_bar, map) : g_.along(Op::segment_sum, y_bar, map),
            space(x));
      }
      case Op::segment_sum: {
        const std::string map = g_.symbol(n.symbol);
        return give(x, space(y_bar) == Space::scalar ? y_bar : g_.along(Op::gather, y_bar, map), space(x));
      }
      case Op::reduce_sum:
        return give(x, y_bar, space(x));
      case Op::all_reduce:
        return give(x, y_bar, space(x));
      default:
        throw Error(ErrorCode::unsupported,
                    fmt::format("{} has no derivative; put stop_gradient around it", op_name(n.op)));
    }
  }

  // A scalar adjoint of a gathered value, summed over the places that gather from each element.
  NodeId spread(NodeId y_bar, const std::string& map) {
    const IndexMap& m = g_.map(map);
    const NodeId present =
        apply(Op::logical_not, apply(Op::less, g_.input(map, m.from, Kind::index), constant(0)));
    return g_.along(Op::segment_sum, apply(Op::select, present, y_bar, constant(0)), map);
  }

  Graph& g_;
  NodeId logits_;
  std::int64_t vocab_;
  std::vector<bool> active_;
  std::map<NodeId, Adjoint> adjoints_;
  Adjoint result_;
};

}  // namespace

void differentiate(LossGraph& loss) {
  Graph& g = loss.graph;
  const NodeId zero = g.constant(0), nan = g.constant(std::numeric_limits<double>::quiet_NaN());
  loss.child_gradients.clear();
  for (const ChildValue& child : loss.children) {
    Reverse reverse(loss, child.loss, child.weight);
    // What the child does not count is selected away; what is bad is NaN.
    auto guarded = [&](NodeId coefficient) {
      return g.apply(Op::select, child.guard, g.apply(Op::select, loss.bad, nan, coefficient), zero);
    };
    ChildGradient gradient{child.name, {}, {}};
    for (DenseTerm term : linear_form(g, reverse.result().dense)) {
      term.coefficient = guarded(term.coefficient);
      gradient.dense.push_back(term);
    }
    for (const SparseTerm& term : reverse.result().sparse) {
      gradient.sparse.push_back({term.index, guarded(term.coefficient), no_node});
    }
    loss.child_gradients.push_back(std::move(gradient));
  }

  sum_child_gradients(loss);
}

}  // namespace lossc::ir
