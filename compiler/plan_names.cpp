#include "compiler/plan_names.h"

#include <fmt/format.h>

#include "ir/dump.h"

namespace lossc {

using ir::Graph;
using ir::Kind;
using ir::no_node;
using ir::Node;
using ir::NodeId;
using ir::Op;
using ir::Space;

namespace {

// Longer formulas are split, where they have operands longer than a name.
constexpr std::size_t longest_formula = 88, longest_name = 20;
// Shared expressions up to this many nodes are repeated rather than named.
constexpr int shortest_shared = 3;

std::size_t at(NodeId id) {
  return static_cast<std::size_t>(id);
}

bool is_leaf(Op op) {
  return op < Op::neg;
}

}  // namespace

PlanNames::PlanNames(const Graph& graph, const std::vector<NodeId>& roots)
    : graph_(graph), uses_(at(graph.size()), 0) {
  std::vector<bool> reached(at(graph.size()), false);
  for (NodeId id : roots) {
    if (id == no_node) continue;
    reached[at(id)] = true;
    ++uses_[at(id)];
  }
  for (NodeId id = graph.size() - 1; id >= 0; --id) {
    const Node& n = graph.node(id);
    if (n.symbol >= 0) taken_.insert(graph.symbol_of(id));
    if (!reached[at(id)]) continue;
    for (NodeId in : n.in) {
      if (in == no_node) continue;
      reached[at(in)] = true;
      ++uses_[at(in)];
    }
  }
}

std::vector<NodeId> PlanNames::reached() const {
  std::vector<NodeId> ids;
  for (NodeId id = 0; id < graph_.size(); ++id) {
    if (uses_[at(id)] > 0) ids.push_back(id);
  }
  return ids;
}

void PlanNames::bind(NodeId id, std::string_view name) {
  if (named(id) || is_leaf(graph_.node(id).op)) return;
  std::string unique(name);
  for (int number = 2; !taken_.insert(unique).second; ++number) unique = fmt::format("{}{}", name, number);
  names_[id] = std::move(unique);
}

void PlanNames::bind(NodeId id) {
  // Of these a graph has few: the first goes without a number.
  static const std::set<std::string, std::less<>> rare = {"m", "s",   "p",   "q",   "L",   "N",
                                                          "n", "m_t", "s_t", "L_t", "top", "best"};
  if (named(id)) return;
  const std::string name = stem(id);
  if (rare.count(name) > 0) return bind(id, name);
  int number = 1;
  while (taken_.count(fmt::format("{}{}", name, number)) > 0) ++number;
  bind(id, fmt::format("{}{}", name, number));
}

void PlanNames::prefer(NodeId id, std::string_view name) {
  if (id != no_node && !is_leaf(graph_.node(id).op)) preferred_.try_emplace(id, name);
}

bool PlanNames::is_teacher(NodeId element) const {
  std::vector<NodeId> open{element};
  bool other = false;
  std::set<NodeId> seen;
  while (!open.empty()) {
    const NodeId id = open.back();
    open.pop_back();
    const Node& n = graph_.node(id);
    if (n.space != Space::element || !seen.insert(id).second) continue;
    if (n.op == Op::input && graph_.symbol_of(id) == "logits") return false;
    other = other || n.op == Op::input;
    for (NodeId in : n.in) {
      if (in != no_node) open.push_back(in);
    }
  }
  return other;
}

std::string PlanNames::stem(NodeId id) const {
  const Node& n = graph_.node(id);
  const bool teacher = n.in[0] != no_node && is_teacher(n.in[0]);
  switch (n.op) {
    case Op::anchor:
      return teacher ? "m_t" : "m";
    case Op::log_sum:
      return teacher ? "s_t" : "s";
    case Op::lse:
      return teacher ? "L_t" : "L";
    case Op::softmax:
      return teacher ? "q" : "p";
    case Op::expect:
      return teacher ? "E_t" : "E";
    case Op::vocab_sum:
      return "V";
    case Op::vocab_max:
      return "top";
    case Op::vocab_argmax:
      return "best";
    case Op::reduce_sum:
      return graph_.node(n.in[0]).op == Op::to_real ? "N" : "sum";
    case Op::segment_sum:
      return graph_.node(n.in[0]).op == Op::to_real ? "n" : "S";
    case Op::reduce_min:
    case Op::segment_min:
      return "min";
    case Op::reduce_max:
    case Op::segment_max:
      return "max";
    default:
      break;
  }
  if (n.kind == Kind::boolean) return "if";
  switch (n.space) {
    case Space::scalar:
      return "c";
    case Space::rows:
      return "r";
    case Space::vocab:
      return "v";
    case Space::element:
      return "e";
    case Space::segments:
      return "g";
    default:
      return "d";
  }
}

std::vector<Line> PlanNames::operands(const std::vector<NodeId>& ids) {
  const std::set<NodeId> roots(ids.begin(), ids.end());
  std::set<NodeId> reached;
  std::vector<NodeId> open;
  for (NodeId id : roots) {
    if (id != no_node) open.push_back(id);
  }
  while (!open.empty()) {
    const NodeId id = open.back();
    open.pop_back();
    if (!reached.insert(id).second) continue;
    if (named(id) && roots.count(id) == 0) continue;
    for (NodeId in : graph_.node(id).in) {
      if (in != no_node) open.push_back(in);
    }
  }
  std::vector<Line> lines;
  const auto give_line = [&](NodeId id) {
    Line line{"", definition(id), true};
    const auto wanted = preferred_.find(id);
    if (wanted != preferred_.end() && !wanted->second.empty()) bind(id, wanted->second);
    bind(id);
    line.name = names_.at(id);
    lines.push_back(std::move(line));
  };
  std::map<NodeId, int> length;  // nodes written where the node is used
  for (NodeId id : reached) {    // increasing: operands first
    const Node& n = graph_.node(id);
    length[id] = 1;
    if (is_leaf(n.op) || (named(id) && roots.count(id) == 0)) continue;
    while (definition(id).size() > longest_formula) {
      NodeId longest = no_node;
      std::size_t size = longest_name;
      for (NodeId in : n.in) {
        if (in == no_node || named(in) || is_leaf(graph_.node(in).op) || definition(in).size() <= size)
          continue;
        longest = in;
        size = definition(in).size();
      }
      if (longest == no_node) break;
      give_line(longest);
      length[longest] = 1;
    }
    if (named(id)) continue;
    for (NodeId in : n.in) {
      if (in != no_node) length[id] += length[in];
    }
    const bool shared = uses_[at(id)] > 1 && length[id] > shortest_shared;
    if (!shared && preferred_.count(id) == 0) continue;
    give_line(id);
    length[id] = 1;
  }
  return lines;
}

std::string PlanNames::text(NodeId id) const {
  const auto it = names_.find(id);
  return it != names_.end() ? it->second : definition(id);
}

std::string PlanNames::definition(NodeId id) const {
  const Node& n = graph_.node(id);
  if (n.op == Op::softmax) {
    std::string m, s;
    for (const auto& [other, name] : names_) {
      if (graph_.node(other).in[0] != n.in[0]) continue;
      if (graph_.node(other).op == Op::anchor) m = name;
      if (graph_.node(other).op == Op::log_sum) s = name;
    }
    if (!m.empty() && !s.empty()) return fmt::format("exp({} - {} - {})", text(n.in[0]), m, s);
  }
  return ir::formula(graph_, id, names_);
}

Line PlanNames::line(NodeId id) const {
  Line line{text(id), definition(id)};
  if (line.name == line.text) line.text.clear();
  return line;
}

void name_concepts(PlanNames& names, const ir::LossGraph& loss) {
  const Graph& g = loss.graph;
  // guard = counts && 0 < weight; a child of constant weight has the guard `counts`.
  const auto counts_of = [&](NodeId guard) {
    const Node& n = g.node(guard);
    if (n.op != Op::logical_and) return guard;
    if (g.node(n.in[0]).space == Space::scalar) return n.in[1];
    return g.node(n.in[1]).space == Space::scalar ? n.in[0] : guard;
  };
  std::map<NodeId, std::string> counts;  // by the first child
  for (const ir::ChildValue& child : loss.children) {
    counts.try_emplace(counts_of(child.guard), child.name + ".counts");
  }
  for (const auto& [id, name] : counts) names.prefer(id, counts.size() == 1 ? "counts" : name);
  for (const ir::ChildValue& child : loss.children) names.prefer(child.guard, child.name + ".guard");
  names.prefer(loss.bad, "bad");
  names.prefer(loss.active, "active");
  names.prefer(loss.live, "live");
  for (NodeId id = 0; id < g.size(); ++id) {
    const Node& n = g.node(id);
    if (n.op != Op::softmax && n.op != Op::expect && n.op != Op::log_sum && n.op != Op::lse) continue;
    const bool teacher = names.is_teacher(n.in[0]);
    names.prefer(n.in[0], teacher ? "t" : "u");
    if (n.op == Op::softmax) names.prefer(id, teacher ? "q" : "p");
  }
}

}  // namespace lossc
