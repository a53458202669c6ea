#include "ir/simplify.h"

#include <map>
#include <set>

#include "ir/linear_form.h"

namespace lossc::ir {

namespace {

/// A sum of constant multiples of (new) nodes, and of anchors, which cancel wherever a sum is invariant to a
/// shift.
struct Affine {
  std::vector<std::pair<double, NodeId>> terms;
  std::map<NodeId, double> anchors;  // by anchor node

  void add(double factor, NodeId node) {
    for (auto& [f, id] : terms) {
      if (id == node) {
        f += factor;
        return;
      }
    }
    terms.emplace_back(factor, node);
  }
  void add(double factor, const Affine& other) {
    for (const auto& [f, id] : other.terms) add(factor * f, id);
    for (const auto& [id, f] : other.anchors) anchors[id] += factor * f;
  }
  /// Anchors met, and none left. 1/V * V may miss 1 by rounding.
  bool anchors_cancel() const {
    for (const auto& [id, f] : anchors) {
      if (f > 1e-9 || f < -1e-9) return false;
    }
    return !anchors.empty();
  }
};

class Simplifier {
 public:
  explicit Simplifier(const LossGraph& loss) : source_(loss), old_(source_.graph) {
    result_.graph.copy_declarations(old_);
    result_.vocab = source_.vocab;
    for (NodeId id = 0; id < old_.size(); ++id) {
      const Node& n = old_.node(id);
      if (n.op == Op::lse || n.op == Op::softmax || n.op == Op::expect) softmax_arguments_.insert(n.in[0]);
    }
  }

  LossGraph run() {
    result_.logits = rebuild(source_.logits);
    result_.active = rebuild(source_.active);
    result_.live = rebuild(source_.live);
    result_.bad = rebuild(source_.bad);
    result_.grad_scale = rebuild(source_.grad_scale);
    for (const ChildValue& c : source_.children) {
      result_.children.push_back({c.name, rebuild(c.loss), rebuild(c.weight), rebuild(c.guard)});
    }
    for (const NamedNode& n : source_.scalars) result_.scalars.push_back({n.name, rebuild(n.node)});
    for (const NamedNode& n : source_.rows) result_.rows.push_back({n.name, rebuild(n.node)});
    for (const ChildGradient& child : source_.child_gradients)
      result_.child_gradients.push_back(gradient(child));
    sum_child_gradients(result_);
    form_sparse_values();
    return std::move(result_);
  }

 private:
  Graph& g() { return result_.graph; }
  NodeId apply(Op op, NodeId a, NodeId b = no_node, NodeId c = no_node) { return g().apply(op, a, b, c); }
  bool is_element(NodeId id) { return g().node(id).space == Space::element; }

  NodeId rebuild(NodeId id) {
    if (id == no_node) return no_node;
    if (auto it = memo_.find(id); it != memo_.end()) return it->second;
    const NodeId fresh = rebuild_node(id);
    memo_[id] = fresh;
    return fresh;
  }

  NodeId rebuild_node(NodeId id) {
    const Node n = old_.node(id);  // a copy: linear_form grows the old graph
    if (n.kind == Kind::real && is_affine(n) && softmax_arguments_.count(id) == 0) {
      const Affine sum = expand(id);
      if (sum.anchors_cancel()) return build(sum.terms);
    }
    switch (n.op) {
      case Op::constant:
      case Op::parameter:
      case Op::input:
      case Op::space_size:
        return copy_leaf(n);
      case Op::stop_gradient:
        return rebuild(n.in[0]);  // derivatives are taken
      case Op::lse: {
        const NodeId x = rebuild(n.in[0]);
        return apply(Op::add, apply(Op::anchor, x), apply(Op::log_sum, x));
      }
      case Op::expect:
      case Op::vocab_sum:
        return whole(expand_reduction(n));
      case Op::pick:
        return pick_element(g(), rebuild(n.in[0]), rebuild(n.in[1]));
      case Op::gather:
      case Op::segment_sum:
      case Op::segment_min:
      case Op::segment_max:
        return g().along(n.op, rebuild(n.in[0]), old_.symbol(n.symbol));
      case Op::all_reduce:
        return g().all_reduce(rebuild(n.in[0]), old_.symbol(n.symbol));
      default:
        break;
    }
    const NodeId a = rebuild(n.in[0]), b = rebuild(n.in[1]), c = rebuild(n.in[2]);
    if (n.op == Op::select) {
      // select(c, select(c, x, y), z) = select(c, x, z)
      const Node inner = g().node(b);
      if (inner.op == Op::select && inner.in[0] == a) return apply(Op::select, a, inner.in[1], c);
    }
    return apply(n.op, a, b, c);
  }

  NodeId copy_leaf(const Node& n) {
    Node copy = n;
    if (n.symbol >= 0) copy.symbol = g().intern(old_.symbol(n.symbol));
    return g().add(copy);
  }

  static bool is_affine(const Node& n) { return n.op == Op::add || n.op == Op::sub || n.op == Op::neg; }

  // The value as a sum in which each softmax's anchor is split off. Terms are new nodes.
  Affine expand(NodeId id) {
    const Node n = old_.node(id);
    Affine sum;
    if (softmax_arguments_.count(id) > 0) {
      const NodeId x = rebuild(id), a = apply(Op::anchor, x);
      sum.add(1, apply(Op::sub, x, a));
      sum.anchors[a] += 1;
      return sum;
    }
    switch (n.op) {
      case Op::add:
        sum.add(1, expand_operand(n.in[0]));
        sum.add(1, expand_operand(n.in[1]));
        return sum;
      case Op::sub:
        sum.add(1, expand_operand(n.in[0]));
        sum.add(-1, expand_operand(n.in[1]));
        return sum;
      case Op::neg:
        sum.add(-1, expand_operand(n.in[0]));
        return sum;
      case Op::mul:
        for (std::size_t k : {0u, 1u}) {
          if (old_.node(n.in[k]).op != Op::constant) continue;
          const double factor = old_.node(n.in[k]).value;
          sum.add(factor, expand(n.in[1 - k]));
          return sum;
        }
        break;
      case Op::div:
        if (old_.node(n.in[1]).op == Op::constant) {
          const double factor = 1 / old_.node(n.in[1]).value;
          sum.add(factor, expand(n.in[0]));
          return sum;
        }
        break;
      case Op::lse: {
        const NodeId x = rebuild(n.in[0]);
        sum.add(1, apply(Op::log_sum, x));
        sum.anchors[apply(Op::anchor, x)] += 1;
        return sum;
      }
      case Op::expect:
      case Op::vocab_sum:
        return expand_reduction(n);
      case Op::pick:
        if (softmax_arguments_.count(n.in[0]) > 0) {
          const NodeId a = apply(Op::anchor, rebuild(n.in[0]));
          sum.add(1, apply(Op::sub, pick_element(g(), rebuild(n.in[0]), rebuild(n.in[1])), a));
          sum.anchors[a] += 1;
          return sum;
        }
        break;
      default:
        break;
    }
    sum.add(1, rebuild(id));
    return sum;
  }

  // A part of a sum that is free of anchors by itself stays whole: exp(d) - 1 - d needs both d to be the same
  // number.
  Affine expand_operand(NodeId id) {
    Affine sum = expand(id);
    if (!is_affine(old_.node(id)) || softmax_arguments_.count(id) > 0 || !sum.anchors_cancel()) return sum;
    Affine part;
    part.add(1, rebuild(id));
    return part;
  }

  // expect(x, a) and vocab_sum(a) with all that is constant in a row taken out.
  Affine expand_reduction(const Node& n) {
    const bool mean = n.op == Op::expect;
    const NodeId a = mean ? n.in[1] : n.in[0];
    Affine sum;
    if (!mean && old_.node(a).space != Space::element) {
      sum.add(1, apply(Op::vocab_sum, rebuild(a)));
      return sum;
    }
    auto reduce = [&](NodeId e) {
      if (mean) return apply(Op::expect, rebuild(n.in[0]), e);
      const Node node = g().node(e);
      // sum_k p_k a_k of a softmax is its mean, sum_k p_k is 1.
      if (node.op == Op::softmax) return g().constant(1);
      if (node.op == Op::zero_mul && g().node(node.in[0]).op == Op::softmax) {
        return apply(Op::expect, g().node(node.in[0]).in[0], node.in[1]);
      }
      return apply(Op::vocab_sum, e);
    };
    const double size = mean ? 1 : static_cast<double>(vocab());
    auto add_reduced = [&](double factor, const Affine& inner, NodeId coefficient) {
      std::vector<std::pair<double, NodeId>> elements;
      Affine part;
      for (const auto& [f, id] : inner.terms) {
        if (is_element(id)) {
          elements.emplace_back(f, id);
        } else {
          part.add(f * size, id);
        }
      }
      for (const auto& [id, f] : inner.anchors) part.anchors[id] += f * size;
      if (!elements.empty()) part.add(1, reduce(build(elements)));
      if (coefficient == no_node) {
        sum.add(factor, part);
      } else {
        sum.add(1, scaled(g(), rebuild(coefficient), whole(part)));
      }
    };
    // A sum of softmax arguments keeps together, relative to their anchors. In other sums row factors come
    // out, through the linear form.
    const Affine whole_sum = expand(a);
    if (!whole_sum.anchors.empty()) {
      add_reduced(1, whole_sum, no_node);
      return sum;
    }
    for (const DenseTerm& term : linear_form(old_, a)) {
      const bool constant = old_.node(term.coefficient).op == Op::constant;
      const double factor = constant ? old_.node(term.coefficient).value : 1;
      add_reduced(factor, expand(term.basis), constant ? no_node : term.coefficient);
    }
    return sum;
  }

  std::int64_t vocab() const { return source_.vocab; }

  NodeId whole(const Affine& sum) {
    auto terms = sum.terms;
    for (const auto& [id, f] : sum.anchors) {
      if (f != 0) terms.insert(terms.begin(), {f, id});
    }
    return build(terms);
  }

  NodeId build(std::vector<std::pair<double, NodeId>> terms) {
    std::erase_if(terms, [](const auto& t) { return t.first == 0; });
    if (terms.empty()) return g().constant(0);
    if (terms.size() > 1 && terms[0].first < 0 && terms[1].first > 0) std::swap(terms[0], terms[1]);
    auto factor = [&](double f, NodeId id) { return f == 1 ? id : apply(Op::mul, id, g().constant(f)); };
    NodeId sum =
        terms[0].first == -1 ? apply(Op::neg, terms[0].second) : factor(terms[0].first, terms[0].second);
    for (std::size_t i = 1; i < terms.size(); ++i) {
      const auto [f, id] = terms[i];
      sum = f < 0 ? apply(Op::sub, sum, factor(-f, id)) : apply(Op::add, sum, factor(f, id));
    }
    return sum;
  }

  void form_sparse_values() {
    const NodeId zero = g().constant(0);
    for (SparseTerm& term : result_.sparse) {
      NodeId value = zero;
      for (const DenseTerm& dense : result_.dense) {
        const NodeId basis = pick_element(g(), dense.basis, term.index);
        value = apply(Op::add, value, scaled(g(), dense.coefficient, basis));
      }
      for (const SparseTerm& other : result_.sparse) {
        const NodeId same =
            other.index == term.index ? g().boolean(true) : apply(Op::equal, other.index, term.index);
        value = apply(Op::add, value, apply(Op::select, same, other.coefficient, zero));
      }
      term.value = value;
    }
  }

  ChildGradient gradient(const ChildGradient& child) {
    ChildGradient fresh{child.name, {}, {}};
    for (const DenseTerm& term : child.dense) {
      const NodeId coefficient = rebuild(term.coefficient);
      for (const auto& [factor, basis] : anchored(term.basis)) {
        const NodeId c = scaled(g(), coefficient, factor);
        bool found = false;
        for (DenseTerm& t : fresh.dense) {
          if (t.basis != basis) continue;
          t.coefficient = apply(Op::add, t.coefficient, c);
          found = true;
        }
        if (!found) fresh.dense.push_back({basis, c, false});
      }
    }
    for (const SparseTerm& term : child.sparse) {
      fresh.sparse.push_back({rebuild(term.index), rebuild(term.coefficient), no_node});
    }
    return fresh;
  }

  // A basis as row factor x anchored basis: p (a - E[a]) becomes p (a - anchor) and p times what is left of
  // E.
  std::vector<std::pair<NodeId, NodeId>> anchored(NodeId basis) {
    const Node n = old_.node(basis);
    std::vector<std::pair<NodeId, NodeId>> parts;
    if (n.op == Op::zero_mul && old_.node(n.in[0]).op == Op::softmax) {
      const Affine a = expand(n.in[1]);
      if (a.anchors_cancel()) {
        const NodeId p = rebuild(n.in[0]);
        std::vector<std::pair<double, NodeId>> elements, rows;
        for (const auto& term : a.terms) (is_element(term.second) ? elements : rows).push_back(term);
        if (!elements.empty()) parts.emplace_back(g().constant(1), apply(Op::zero_mul, p, build(elements)));
        if (!rows.empty()) parts.emplace_back(build(rows), p);
        return parts;
      }
    } else if (n.op == Op::zero_mul && old_.node(n.in[0]).space == Space::element) {
      const NodeId factor = rebuild(n.in[1]);
      for (const auto& [c, b] : anchored(n.in[0])) parts.emplace_back(c, apply(Op::zero_mul, b, factor));
      return parts;
    } else if (n.op == Op::select && n.space == Space::element) {
      const NodeId zero = old_.constant(0), condition = rebuild(n.in[0]), new_zero = g().constant(0);
      if (n.in[2] == zero) {
        for (const auto& [c, b] : anchored(n.in[1]))
          parts.emplace_back(c, apply(Op::select, condition, b, new_zero));
        return parts;
      }
      if (n.in[1] == zero) {
        for (const auto& [c, b] : anchored(n.in[2]))
          parts.emplace_back(c, apply(Op::select, condition, new_zero, b));
        return parts;
      }
    }
    parts.emplace_back(g().constant(1), rebuild(basis));
    return parts;
  }

  LossGraph source_;  // a copy: linear_form adds nodes
  Graph& old_;
  LossGraph result_;
  std::set<NodeId> softmax_arguments_;
  std::map<NodeId, NodeId> memo_;
};

}  // namespace

LossGraph simplify(const LossGraph& loss) {
  return Simplifier(loss).run();
}

}  // namespace lossc::ir
