#include "ir/dump.h"

#include <fmt/format.h>

#include <limits>
#include <map>
#include <set>
#include <string_view>

namespace lossc::ir {
namespace {

std::size_t at(NodeId id) {
  return static_cast<std::size_t>(id);
}

std::vector<bool> reached(const Graph& graph, const std::vector<std::pair<std::string, NodeId>>& roots) {
  std::vector<bool> result(at(graph.size()), false);
  for (const auto& [name, id] : roots) {
    if (id != no_node) result[at(id)] = true;
  }
  for (NodeId id = graph.size() - 1; id >= 0; --id) {
    if (!result[at(id)]) continue;
    for (const NodeId in : graph.node(id).in) {
      if (in != no_node) result[at(in)] = true;
    }
  }
  return result;
}

bool is_leaf(Op op) {
  return op < Op::neg;
}

std::string number(const Node& n) {
  if (n.kind == Kind::boolean) return n.value != 0 ? "true" : "false";
  return fmt::format("{}", n.value);
}

std::string leaf(const Graph& graph, NodeId id, std::string_view parameter_mark) {
  const Node& n = graph.node(id);
  switch (n.op) {
    case Op::constant:
      return number(n);
    case Op::parameter:
      return fmt::format("{}{}", parameter_mark, graph.symbol_of(id));
    case Op::space_size:
      return fmt::format("size({})", graph.space_name(static_cast<Space>(n.aux)));
    default:
      return graph.symbol_of(id);
  }
}

std::string type_text(const Graph& graph, const Node& n) {
  std::string text = graph.space_name(n.space);
  if (n.kind == Kind::index) text += " index";
  if (n.kind == Kind::boolean) text += " boolean";
  return text;
}

std::string operand(const Graph& graph, NodeId id) {
  return is_leaf(graph.node(id).op) ? leaf(graph, id, "$") : fmt::format("%{}", id);
}

// How tightly an expression holds together; an operand that holds less tightly than its place needs
// parentheses.
enum Level { any = 0, disjunction, conjunction, comparison, sum, product, prefix, atom };

struct Text {
  std::string text;
  Level level;
};

std::string within(const Text& t, Level least) {
  return t.level < least ? fmt::format("({})", t.text) : t.text;
}

std::string_view function_name(Op op) {
  switch (op) {
    case Op::to_real:
      return "indicator";
    case Op::minimum:
      return "min";
    case Op::maximum:
      return "max";
    case Op::vocab_argmax:
      return "argmax";
    default:
      return op_name(op);
  }
}

struct Infix {
  std::string_view sign;
  Level level;
  bool repeats;  // a sign b sign c needs no parentheses, read from the left
};

const Infix* infix_of(Op op) {
  static const std::map<Op, Infix> table = {
      {Op::add, {"+", sum, true}},
      {Op::sub, {"-", sum, true}},
      {Op::mul, {"*", product, true}},
      {Op::div, {"/", product, true}},
      {Op::less, {"<", comparison, false}},
      {Op::less_equal, {"<=", comparison, false}},
      {Op::equal, {"==", comparison, false}},
      {Op::logical_and, {"&&", conjunction, true}},
      {Op::logical_or, {"||", disjunction, true}},
  };
  const auto it = table.find(op);
  return it == table.end() ? nullptr : &it->second;
}

class Printer {
 public:
  Printer(const Graph& graph, std::size_t budget) : graph_(graph), budget_(budget) {}

  void bind(NodeId id, std::string name) { names_[id] = std::move(name); }

  // `define` prints what the node is, even where a name is bound to it.
  Text print(NodeId id, bool define = false) {
    const Node& n = graph_.node(id);
    if (!define) {
      if (const auto it = names_.find(id); it != names_.end()) return {it->second, atom};
    }
    if (is_leaf(n.op)) return leaf_text(id);
    if (budget_ == 0) return {fmt::format("%{}", id), atom};
    --budget_;
    if (const Infix* infix = infix_of(n.op)) {
      const Level right = static_cast<Level>(infix->level + 1);
      const std::string left = within(print(n.in[0]), infix->repeats ? infix->level : right);
      return {fmt::format("{} {} {}", left, infix->sign, within(print(n.in[1]), right)), infix->level};
    }
    switch (n.op) {
      case Op::neg:
        return {fmt::format("-{}", within(print(n.in[0]), atom)), prefix};
      case Op::logical_not:
        return {fmt::format("!{}", within(print(n.in[0]), atom)), prefix};
      case Op::pick: {
        const std::string from = within(print(n.in[0]), atom);
        return {fmt::format("{}[{}]", from, print(n.in[1]).text), atom};
      }
      default:
        return call(n);
    }
  }

 private:
  Text leaf_text(NodeId id) const {
    const Node& n = graph_.node(id);
    const bool negative = n.op == Op::constant && n.kind == Kind::real && n.value < 0;
    return {leaf(graph_, id, ""), negative ? prefix : atom};
  }

  Text call(const Node& n) {
    std::string text = fmt::format("{}(", function_name(n.op));
    for (std::size_t i = 0; i < 3 && n.in[i] != no_node; ++i) {
      if (i > 0) text += ", ";
      text += print(n.in[i]).text;
    }
    if (n.symbol >= 0) text += ", " + graph_.symbol(n.symbol);
    return {text + ")", atom};
  }

  const Graph& graph_;
  std::size_t budget_;
  std::map<NodeId, std::string> names_;
};

std::string_view stem_of(Op op) {
  switch (op) {
    case Op::softmax:
      return "p";
    case Op::lse:
      return "L";
    default:
      return "t";
  }
}

}  // namespace

std::string dump(const Graph& graph, const std::vector<std::pair<std::string, NodeId>>& roots) {
  const std::vector<bool> needed = reached(graph, roots);
  std::string out;
  for (NodeId id = 0; id < graph.size(); ++id) {
    if (!needed[at(id)]) continue;
    const Node& n = graph.node(id);
    switch (n.op) {
      case Op::constant:
      case Op::space_size:
        continue;
      case Op::parameter:
        out += fmt::format("parameter ${}\n", graph.symbol_of(id));
        continue;
      case Op::input:
        out += fmt::format("input {}: {}", graph.symbol_of(id), type_text(graph, n));
        if (n.aux != 0) out += fmt::format(", optional, default {}", n.value);
        out += '\n';
        continue;
      default:
        break;
    }
    out += fmt::format("%{} {} = {}", id, type_text(graph, n), op_name(n.op));
    for (std::size_t i = 0; i < 3 && n.in[i] != no_node; ++i) {
      out += fmt::format("{} {}", i > 0 ? "," : "", operand(graph, n.in[i]));
    }
    if (n.symbol >= 0) {
      out += fmt::format(" {} {}", n.op == Op::all_reduce ? "over" : "along", graph.symbol_of(id));
    }
    out += '\n';
  }
  for (const auto& [name, id] : roots) {
    out += fmt::format("{} = {}\n", name, id == no_node ? "none" : operand(graph, id));
  }
  return out;
}

std::string formula(const Graph& graph, NodeId node) {
  constexpr std::size_t limit = 400;
  return Printer(graph, limit).print(node).text;
}

std::string formula(const Graph& graph, NodeId node, const std::map<NodeId, std::string>& names) {
  Printer printer(graph, std::numeric_limits<std::size_t>::max());
  for (const auto& [id, name] : names) printer.bind(id, name);
  return printer.print(node, true).text;
}

std::vector<std::string> formula(const Graph& graph,
                                 const std::vector<std::pair<std::string, NodeId>>& roots) {
  const std::vector<bool> needed = reached(graph, roots);
  std::vector<int> uses(at(graph.size()), 0);
  std::set<std::string> taken;
  for (const auto& [name, id] : roots) {
    taken.insert(name);
    if (id != no_node) ++uses[at(id)];
  }
  for (NodeId id = 0; id < graph.size(); ++id) {
    if (!needed[at(id)]) continue;
    const Node& n = graph.node(id);
    if (n.symbol >= 0) taken.insert(graph.symbol_of(id));
    for (const NodeId in : n.in) {
      if (in != no_node) ++uses[at(in)];
    }
  }

  // With shared subexpressions named, the text grows with the graph only: no limit is needed.
  Printer printer(graph, std::numeric_limits<std::size_t>::max());
  std::vector<std::string> lines;
  std::vector<int> length(at(graph.size()), 1);  // nodes written where the node is used
  std::map<std::string_view, int> count;
  for (NodeId id = 0; id < graph.size(); ++id) {
    const Node& n = graph.node(id);
    if (!needed[at(id)] || is_leaf(n.op)) continue;
    for (const NodeId in : n.in) {
      if (in != no_node) length[at(id)] += length[at(in)];
    }
    if (uses[at(id)] < 2 || length[at(id)] <= 3) continue;
    const std::string_view stem = stem_of(n.op);
    std::string name;
    do {
      const int number = ++count[stem];
      name = number == 1 && stem != "t" ? std::string(stem) : fmt::format("{}{}", stem, number);
    } while (taken.contains(name));
    lines.push_back(fmt::format("{} = {}", name, printer.print(id, true).text));
    printer.bind(id, std::move(name));
    length[at(id)] = 1;
  }
  for (const auto& [name, id] : roots) {
    if (id != no_node) lines.push_back(fmt::format("{} = {}", name, printer.print(id).text));
  }
  return lines;
}

}  // namespace lossc::ir
