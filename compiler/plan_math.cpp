// The derivative as a person would write it. A copy of the graph is freed of what numerics needs and
// mathematics does not: the anchors (every value is the same whatever they are, so they are 0 here), the
// selections of rows that do not count and of infinite logits, the products that are 0 whatever their second
// factor.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "compiler/plan_names.h"
#include "compiler/plan_print.h"

namespace lossc {

namespace {

using ir::Graph;
using ir::no_node;
using ir::Node;
using ir::NodeId;
using ir::Op;
using ir::Space;

struct Term {
  bool negative = false;
  NodeId value = no_node;
};

struct Derivative {
  std::string title;
  std::vector<Term> terms;
};

class Mathematics {
 public:
  explicit Mathematics(const ir::LossGraph& loss) : loss_(loss), old_(loss.graph) {
    g_.copy_declarations(old_);
    for (const ir::ChildValue& child : loss_.children) {
      view_.children.push_back({child.name, no_node, no_node, rebuild(child.guard, true)});
    }
  }

  std::string run() {
    std::vector<Derivative> all;
    for (const ir::ChildGradient& child : loss_.child_gradients) {
      assume({child.name});
      all.push_back(
          {fmt::format("d(weight * loss.{}) / d logits[k]", child.name), terms(child.dense, child.sparse)});
    }
    std::vector<std::string> names;
    for (const ir::ChildGradient& child : loss_.child_gradients) names.push_back(child.name);
    assume(names);
    all.push_back({"grad_logits[k]", terms(loss_.dense, loss_.sparse)});
    return print(all);
  }

 private:
  // The row counts for these children, and their weights are not 0.
  void assume(const std::vector<std::string>& children) {
    known_.clear();
    memo_.clear();
    const std::function<void(NodeId)> holds = [&](NodeId id) {
      known_.insert(id);
      if (old_.node(id).op != Op::logical_and) return;
      holds(old_.node(id).in[0]);
      holds(old_.node(id).in[1]);
    };
    for (const ir::ChildValue& child : loss_.children) {
      for (const std::string& name : children) {
        if (child.name == name) holds(child.guard);
      }
    }
  }

  // `all_rows`: the value is taken over all rows, so that nothing is known of one.
  NodeId rebuild(NodeId id, bool all_rows = false) {
    if (id == no_node) return no_node;
    const Node& n = old_.node(id);
    if (id == loss_.bad) return g_.boolean(false);
    if (!all_rows && n.op != Op::constant && known_.count(id) > 0) return g_.boolean(true);
    auto& memo = memo_[{id, all_rows}];
    if (memo == 0) memo = rebuild_node(n, all_rows || ir::is_cross_reduction(n.op)) + 1;
    return memo - 1;
  }

  NodeId rebuild_node(const Node& n, bool all_rows) {
    if (n.op <= Op::space_size) {
      Node copy = n;
      if (n.symbol >= 0) copy.symbol = g_.intern(old_.symbol(n.symbol));
      return g_.add(copy);
    }
    if (n.op == Op::anchor) return g_.constant(0);
    const NodeId a = rebuild(n.in[0], all_rows), b = rebuild(n.in[1], all_rows),
                 c = rebuild(n.in[2], all_rows);
    switch (n.op) {
      case Op::log_sum:
        return g_.apply(Op::lse, a);
      case Op::gather:
      case Op::segment_sum:
      case Op::segment_min:
      case Op::segment_max:
        return g_.along(n.op, a, old_.symbol(n.symbol));
      case Op::all_reduce:
        return g_.all_reduce(a, old_.symbol(n.symbol));
      case Op::add:
        return sum(a, b);
      case Op::sub:
        return sum(a, g_.apply(Op::neg, b));
      case Op::equal: {
        // Is a logit -inf? Here it is finite.
        const double infinity = std::numeric_limits<double>::infinity();
        if (g_.is_constant(a, -infinity) || g_.is_constant(b, -infinity)) return g_.boolean(false);
        return g_.apply(n.op, a, b);
      }
      case Op::mul:
      case Op::zero_mul:
        return product(a, b);
      default:
        return g_.apply(n.op, a, b, c);
    }
  }

  bool is(NodeId id, Op op) const { return g_.node(id).op == op; }

  NodeId sum(NodeId a, NodeId b) {
    if (g_.is_constant(a, 0)) return b;
    if (g_.is_constant(b, 0)) return a;
    if (is(a, Op::neg)) std::swap(a, b);
    if (a == b) return product(g_.constant(2), a);
    if (!is(b, Op::neg)) return g_.apply(Op::add, a, b);
    const NodeId x = g_.node(b).in[0];
    return a == x ? g_.constant(0) : g_.apply(Op::sub, a, x);
  }

  NodeId product(NodeId a, NodeId b) {
    if (g_.is_constant(a, 0) || g_.is_constant(b, 0)) return g_.constant(0);
    if (is(a, Op::neg)) return g_.apply(Op::neg, product(g_.node(a).in[0], b));
    if (is(b, Op::neg)) return g_.apply(Op::neg, product(a, g_.node(b).in[0]));
    for (const auto& [x, y] : {std::pair{a, b}, std::pair{b, a}}) {
      if (is(y, Op::div) && g_.is_constant(g_.node(y).in[0], 1)) return quotient(x, g_.node(y).in[1]);
    }
    return g_.apply(Op::mul, a, b);
  }

  NodeId quotient(NodeId a, NodeId b) {
    const Node& n = g_.node(a);
    if (n.op == Op::mul && n.in[0] == b) return n.in[1];
    if (n.op == Op::mul && n.in[1] == b) return n.in[0];
    return g_.apply(Op::div, a, b);
  }

  std::vector<Term> terms(const std::vector<ir::DenseTerm>& dense,
                          const std::vector<ir::SparseTerm>& sparse) {
    std::vector<Term> list;
    const auto add = [&](NodeId coefficient, NodeId basis) {
      NodeId value = product(rebuild(coefficient), basis);
      if (g_.is_constant(value, 0)) return;
      const bool negative = is(value, Op::neg);
      if (negative) value = g_.node(value).in[0];
      list.push_back({negative, value});
    };
    for (const ir::DenseTerm& term : dense) add(term.coefficient, rebuild(term.basis));
    for (const ir::SparseTerm& term : sparse) {
      const std::string index = fmt::format("[k == {}]", PlanNames(old_, {}).text(term.index));
      add(term.coefficient, g_.input(index, Space::element));
    }
    return list;
  }

  std::string print(const std::vector<Derivative>& all) {
    std::vector<NodeId> values;
    for (const Derivative& d : all) {
      for (const Term& term : d.terms) values.push_back(term.value);
    }
    PlanNames names(g_, values);
    name_concepts(names, view_);
    for (NodeId id = 0; id < g_.size(); ++id) {
      const Op op = g_.node(id).op;
      if (ir::is_sweep_reduction(op) || ir::is_cross_reduction(op)) names.prefer(id);
    }
    std::string text =
        "For rows that count, finite logits, labels and segments in range; p, logits, ... are those of "
        "element k;\n"
        "0 times anything is 0. A row that does not count for a child has no gradient of it.\n";
    for (const Derivative& d : all) {
      text += fmt::format("\n{} =\n", d.title);
      if (d.terms.empty()) text += "    0\n";
      std::vector<NodeId> ids;
      for (const Term& term : d.terms) ids.push_back(term.value);
      const std::vector<Line> where = names.operands(ids);
      for (std::size_t i = 0; i < d.terms.size(); ++i) {
        const char* sign = d.terms[i].negative ? "- " : i > 0 ? "+ " : "  ";
        text += fmt::format("  {}{}\n", sign, names.text(d.terms[i].value));
      }
      if (where.empty()) continue;
      std::size_t width = 0;
      for (const Line& line : where) width = std::max(width, line.name.size());
      text += "  where\n";
      for (const Line& line : where) text += fmt::format("    {:<{}} = {}\n", line.name, width, line.text);
    }
    return text;
  }

  const ir::LossGraph& loss_;
  const Graph& old_;
  ir::LossGraph view_;  // the graph without the numerics, and what names its values
  Graph& g_ = view_.graph;
  std::set<NodeId> known_;                          // conditions that hold
  std::map<std::pair<NodeId, bool>, NodeId> memo_;  // new node + 1
};

}  // namespace

std::string plan_math(const Plan& plan, const Spec&) {
  if (plan.loss.child_gradients.empty()) return "The spec asks for no gradient.\n";
  return Mathematics(plan.loss).run();
}

}  // namespace lossc
