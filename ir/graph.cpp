#include "ir/graph.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "ir/evaluate_op.h"
#include "lossc/error.h"

namespace lossc::ir {
namespace {

struct OpInfo {
  Op op;
  std::string_view name;
  int arity;
};

constexpr OpInfo kOps[] = {
    {Op::constant, "constant", 0},
    {Op::parameter, "parameter", 0},
    {Op::input, "input", 0},
    {Op::space_size, "space_size", 0},
    {Op::neg, "neg", 1},
    {Op::exp, "exp", 1},
    {Op::log, "log", 1},
    {Op::log1p, "log1p", 1},
    {Op::expm1, "expm1", 1},
    {Op::log1mexp, "log1mexp", 1},
    {Op::tanh, "tanh", 1},
    {Op::sigmoid, "sigmoid", 1},
    {Op::log_sigmoid, "log_sigmoid", 1},
    {Op::softplus, "softplus", 1},
    {Op::sqrt, "sqrt", 1},
    {Op::abs, "abs", 1},
    {Op::sign, "sign", 1},
    {Op::is_finite, "is_finite", 1},
    {Op::logical_not, "logical_not", 1},
    {Op::to_real, "to_real", 1},
    {Op::stop_gradient, "stop_gradient", 1},
    {Op::add, "add", 2},
    {Op::sub, "sub", 2},
    {Op::mul, "mul", 2},
    {Op::div, "div", 2},
    {Op::zero_mul, "zero_mul", 2},
    {Op::minimum, "minimum", 2},
    {Op::maximum, "maximum", 2},
    {Op::less, "less", 2},
    {Op::less_equal, "less_equal", 2},
    {Op::equal, "equal", 2},
    {Op::logical_and, "logical_and", 2},
    {Op::logical_or, "logical_or", 2},
    {Op::select, "select", 3},
    {Op::clip, "clip", 3},
    {Op::lse, "lse", 1},
    {Op::expect, "expect", 2},
    {Op::vocab_sum, "vocab_sum", 1},
    {Op::vocab_max, "vocab_max", 1},
    {Op::vocab_argmax, "vocab_argmax", 1},
    {Op::pick, "pick", 2},
    {Op::anchor, "anchor", 1},
    {Op::log_sum, "log_sum", 1},
    {Op::softmax, "softmax", 1},
    {Op::gather, "gather", 1},
    {Op::segment_sum, "segment_sum", 1},
    {Op::segment_min, "segment_min", 1},
    {Op::segment_max, "segment_max", 1},
    {Op::reduce_sum, "reduce_sum", 1},
    {Op::reduce_min, "reduce_min", 1},
    {Op::reduce_max, "reduce_max", 1},
    {Op::all_reduce, "all_reduce", 1},
};

constexpr bool in_order() {
  std::size_t i = 0;
  for (const OpInfo& info : kOps) {
    if (static_cast<std::size_t>(info.op) != i++) return false;
  }
  return i == static_cast<std::size_t>(Op::all_reduce) + 1;
}
static_assert(in_order(), "kOps lists every operation in the order of Op");

const OpInfo& info_of(Op op) {
  return kOps[static_cast<std::size_t>(op)];
}

std::string_view kind_name(Kind kind) {
  switch (kind) {
    case Kind::real:
      return "number";
    case Kind::index:
      return "index";
    case Kind::boolean:
      return "condition";
  }
  return "?";
}

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, message);
}

// Value numbering may swap these. Minimum and maximum are left alone: which NaN or signed zero comes out
// depends on the order.
bool is_commutative(Op op) {
  switch (op) {
    case Op::add:
    case Op::mul:
    case Op::equal:
    case Op::logical_and:
    case Op::logical_or:
      return true;
    default:
      return false;
  }
}

bool is_comparison(Op op) {
  return op == Op::less || op == Op::less_equal || op == Op::equal;
}

bool is_whole(const Node& n) {
  return n.op == Op::constant && n.kind == Kind::real && std::nearbyint(n.value) == n.value;
}

void need_kind(const Graph& graph, Op op, NodeId operand, Kind kind) {
  const Kind found = graph.node(operand).kind;
  if (found == kind) return;
  std::string hint;
  if (kind == Kind::real)
    hint = found == Kind::boolean ? "; turn a condition into 0 or 1 with indicator()" : "";
  if (kind == Kind::boolean) hint = "; compare it with a value to get a condition";
  refuse(fmt::format("{} needs a {}, found a {}{}", op_name(op), kind_name(kind), kind_name(found), hint));
}

// The kind of two values that stand for each other: a whole constant passes for an index.
Kind common_kind(const Graph& graph, Op op, NodeId a, NodeId b) {
  const Node &na = graph.node(a), &nb = graph.node(b);
  if (na.kind == nb.kind) return na.kind;
  if (na.kind == Kind::index && is_whole(nb)) return Kind::index;
  if (nb.kind == Kind::index && is_whole(na)) return Kind::index;
  refuse(
      fmt::format("{} needs two values of one kind (or an index and a whole constant), found a {} and a {}",
                  op_name(op), kind_name(na.kind), kind_name(nb.kind)));
}

// Checks the operands' kinds; returns the result's.
Kind pointwise_kind(const Graph& graph, Op op, NodeId a, NodeId b, NodeId c) {
  switch (op) {
    case Op::is_finite:
      need_kind(graph, op, a, Kind::real);
      return Kind::boolean;
    case Op::logical_not:
      need_kind(graph, op, a, Kind::boolean);
      return Kind::boolean;
    case Op::logical_and:
    case Op::logical_or:
      need_kind(graph, op, a, Kind::boolean);
      need_kind(graph, op, b, Kind::boolean);
      return Kind::boolean;
    case Op::to_real:
      return Kind::real;
    case Op::stop_gradient:
      return graph.node(a).kind;
    case Op::select:
      need_kind(graph, op, a, Kind::boolean);
      return common_kind(graph, op, b, c);
    default:
      break;
  }
  if (is_comparison(op)) {
    if (common_kind(graph, op, a, b) == Kind::boolean) {
      refuse(fmt::format("{} compares numbers or indices, found conditions; combine them with &&, || and !",
                         op_name(op)));
    }
    return Kind::boolean;
  }
  for (const NodeId operand : {a, b, c}) {
    if (operand != no_node) need_kind(graph, op, operand, Kind::real);
  }
  return Kind::real;
}

void need_element(const Graph& graph, Op op, NodeId a) {
  need_kind(graph, op, a, Kind::real);
  const Space space = graph.node(a).space;
  if (space == Space::element) return;
  refuse(fmt::format("{} needs one value an element (row x vocabulary), found one in the space '{}'",
                     op_name(op), graph.space_name(space)));
}

}  // namespace

std::string_view op_name(Op op) {
  return info_of(op).name;
}

bool is_pointwise(Op op) {
  return op >= Op::neg && op <= Op::clip;
}

bool is_sweep_reduction(Op op) {
  switch (op) {
    case Op::lse:
    case Op::expect:
    case Op::vocab_sum:
    case Op::vocab_max:
    case Op::vocab_argmax:
    case Op::anchor:
    case Op::log_sum:
      return true;
    default:
      return false;
  }
}

bool is_cross_reduction(Op op) {
  return op >= Op::segment_sum && op <= Op::all_reduce;
}

Space broadcast(const Graph& graph, Space a, Space b) {
  if (a == b || b == Space::scalar) return a;
  if (a == Space::scalar) return b;
  const auto spans_element = [](Space s) {
    return s == Space::rows || s == Space::vocab || s == Space::element;
  };
  if (spans_element(a) && spans_element(b)) return Space::element;
  refuse(
      fmt::format("values in the spaces '{}' and '{}' do not meet; implicit are scalar to anything, rows to "
                  "element and vocab to "
                  "element; bring one to the other's space along a map (to_rows, segment_sum, chosen, ...)",
                  graph.space_name(a), graph.space_name(b)));
}

std::vector<bool> depends_on(const Graph& graph, const std::vector<NodeId>& sources) {
  std::vector<bool> result(static_cast<std::size_t>(graph.size()), false);
  for (const NodeId source : sources) result[static_cast<std::size_t>(source)] = true;
  for (NodeId id = 0; id < graph.size(); ++id) {
    for (const NodeId in : graph.node(id).in) {
      if (in != no_node && result[static_cast<std::size_t>(in)]) result[static_cast<std::size_t>(id)] = true;
    }
  }
  return result;
}

// ---------------------------------------------------------------------------------------------------------------
// Declarations

Graph::Graph() : spaces_{"scalar", "rows", "vocab", "element", "segments", "pairs"} {}

std::int32_t Graph::intern(std::string_view text) {
  const auto [it, added] =
      symbol_ids_.try_emplace(std::string(text), static_cast<std::int32_t>(symbols_.size()));
  if (added) symbols_.emplace_back(text);
  return it->second;
}

Space Graph::add_space(std::string_view name) {
  for (std::size_t i = 0; i < spaces_.size(); ++i) {
    if (spaces_[i] == name) return static_cast<Space>(i);
  }
  // A node keeps a space in its 8-bit `aux`.
  constexpr std::size_t limit = std::numeric_limits<std::int8_t>::max();
  if (spaces_.size() >= limit) {
    refuse(fmt::format("no room for the space '{}': a graph holds at most {} spaces", name, limit));
  }
  spaces_.emplace_back(name);
  return static_cast<Space>(spaces_.size() - 1);
}

void Graph::add_map(IndexMap map) {
  for (const IndexMap& known : maps_) {
    if (known.name != map.name) continue;
    if (known.from == map.from && known.to == map.to) return;
    refuse(fmt::format("the map '{}' leads from '{}' to '{}'; it cannot also lead from '{}' to '{}'",
                       map.name, space_name(known.from), space_name(known.to), space_name(map.from),
                       space_name(map.to)));
  }
  maps_.push_back(std::move(map));
}

const IndexMap& Graph::map(std::string_view name) const {
  std::string known;
  for (const IndexMap& map : maps_) {
    if (map.name == name) return map;
    known += (known.empty() ? "" : ", ") + map.name;
  }
  refuse(fmt::format("unknown index map '{}'; the graph has: {}", name, known.empty() ? "none" : known));
}

void Graph::copy_declarations(const Graph& other) {
  // Symbols too: in a fresh graph their numbers then agree with the other's, so that nodes can be copied as
  // they are.
  for (const std::string& text : other.symbols_) intern(text);
  std::vector<Space> here;
  for (const std::string& name : other.spaces_) here.push_back(add_space(name));
  for (const IndexMap& map : other.maps_) {
    add_map({map.name, here[static_cast<std::size_t>(map.from)], here[static_cast<std::size_t>(map.to)]});
  }
}

// ---------------------------------------------------------------------------------------------------------------
// Value numbering and folding

std::size_t Graph::Hash::operator()(const Node& n) const {
  std::uint64_t h = 0x9e3779b97f4a7c15u;
  const auto mix = [&h](std::uint64_t v) {
    h ^= v + 0x9e3779b97f4a7c15u + (h << 6) + (h >> 2);
    h *= 0xff51afd7ed558ccdu;
    h ^= h >> 32;
  };
  mix(static_cast<std::uint64_t>(n.op) | static_cast<std::uint64_t>(n.kind) << 8 |
      static_cast<std::uint64_t>(n.space) << 16 |
      static_cast<std::uint64_t>(static_cast<std::uint8_t>(n.aux)) << 24 |
      static_cast<std::uint64_t>(static_cast<std::uint32_t>(n.symbol)) << 32);
  for (const NodeId in : n.in) mix(static_cast<std::uint32_t>(in));
  mix(std::bit_cast<std::uint64_t>(n.value));
  return h;
}

bool Graph::Equal::operator()(const Node& a, const Node& b) const {
  return a.op == b.op && a.kind == b.kind && a.space == b.space && a.aux == b.aux && a.symbol == b.symbol &&
         a.in == b.in && std::bit_cast<std::uint64_t>(a.value) == std::bit_cast<std::uint64_t>(b.value);
}

namespace {

// An existing node that `n` equals everywhere, or no_node. The result keeps the space of `n`, because
// reductions depend on it: `select(counts, 0, 0)` stays a value of rows. The one exception is zero_mul(0, x):
// the constant 0 is what lets a derivative drop the term.
NodeId identity(const Graph& graph, const Node& n) {
  const auto [a, b, c] = n.in;
  const auto same_space = [&](NodeId id) { return graph.node(id).space == n.space ? id : no_node; };
  const auto constant = [&](NodeId id, double value) { return graph.is_constant(id, value); };
  const Node& first = graph.node(a);
  switch (n.op) {
    case Op::neg:
    case Op::logical_not:
      return first.op == n.op ? first.in[0] : no_node;
    case Op::to_real:
      return first.kind == Kind::real ? a : no_node;
    case Op::stop_gradient:
      // Only real values have a derivative to stop.
      return first.op == Op::stop_gradient || first.kind != Kind::real ? a : no_node;
    case Op::add:
      if (constant(b, 0)) return a;
      return constant(a, 0) ? b : no_node;
    case Op::sub:
      return constant(b, 0) ? a : no_node;
    case Op::mul:
      if (constant(b, 1)) return a;
      return constant(a, 1) ? b : no_node;
    case Op::div:
      return constant(b, 1) ? a : no_node;
    case Op::zero_mul:
      if (constant(a, 0)) return a;
      return constant(a, 1) ? b : no_node;
    case Op::logical_and:
      if (constant(a, 1) || a == b) return b;
      if (constant(b, 1)) return a;
      if (constant(a, 0)) return same_space(a);
      return constant(b, 0) ? same_space(b) : no_node;
    case Op::logical_or:
      if (constant(a, 0) || a == b) return b;
      if (constant(b, 0)) return a;
      if (constant(a, 1)) return same_space(a);
      return constant(b, 1) ? same_space(b) : no_node;
    case Op::select: {
      NodeId taken = no_node;
      if (b == c) taken = b;
      if (first.op == Op::constant) taken = first.value != 0 ? b : c;
      // A whole constant among indices is a number by itself.
      return taken != no_node && graph.node(taken).kind == n.kind ? same_space(taken) : no_node;
    }
    default:
      return no_node;
  }
}

}  // namespace

NodeId Graph::add(Node n) {
  if (is_commutative(n.op) && n.in[1] < n.in[0]) std::swap(n.in[0], n.in[1]);
  if (is_pointwise(n.op)) {
    double value[3] = {0, 0, 0};
    bool all_constant = true;
    for (std::size_t i = 0; i < 3; ++i) {
      if (n.in[i] == no_node) continue;
      all_constant = all_constant && node(n.in[i]).op == Op::constant;
      value[i] = node(n.in[i]).value;
    }
    if (all_constant) {
      Node folded;
      folded.kind = n.kind;
      folded.value = evaluate_op(n.op, value[0], value[1], value[2]);
      return add(folded);
    }
    if (const NodeId same = identity(*this, n); same != no_node) return same;
  }
  // One NaN, whatever made it: its bits carry no meaning.
  if (std::isnan(n.value)) n.value = std::numeric_limits<double>::quiet_NaN();
  const auto [it, added] = numbering_.try_emplace(n, size());
  if (added) nodes_.push_back(n);
  return it->second;
}

bool Graph::is_constant(NodeId id, double value) const {
  const Node& n = node(id);
  return n.op == Op::constant && (n.value == value || (std::isnan(n.value) && std::isnan(value)));
}

// ---------------------------------------------------------------------------------------------------------------
// Leaves

NodeId Graph::constant(double value) {
  Node n;
  n.value = value;
  return add(n);
}

NodeId Graph::boolean(bool value) {
  Node n;
  n.kind = Kind::boolean;
  n.value = value ? 1 : 0;
  return add(n);
}

NodeId Graph::parameter(std::string_view name) {
  Node n;
  n.op = Op::parameter;
  n.symbol = intern(name);
  return add(n);
}

NodeId Graph::input(std::string_view name, Space space, Kind kind) {
  Node n;
  n.op = Op::input;
  n.kind = kind;
  n.space = space;
  n.symbol = intern(name);
  return add(n);
}

NodeId Graph::optional_input(std::string_view name, Space space, Kind kind, double fallback) {
  Node n;
  n.op = Op::input;
  n.kind = kind;
  n.space = space;
  n.aux = 1;
  n.symbol = intern(name);
  n.value = fallback;
  return add(n);
}

NodeId Graph::space_size(Space space) {
  if (space == Space::scalar) return constant(1);
  Node n;
  n.op = Op::space_size;
  n.aux = static_cast<std::int8_t>(space);
  return add(n);
}

// ---------------------------------------------------------------------------------------------------------------
// Operations

NodeId Graph::apply(Op op, NodeId a, NodeId b, NodeId c) {
  Node n;
  n.op = op;
  n.in = {a, b, c};
  for (const NodeId in : n.in) {
    if (in < no_node || in >= size()) {
      throw Error(ErrorCode::internal,
                  fmt::format("{}: operand {} is no node of this graph", op_name(op), in));
    }
  }
  const int arity = info_of(op).arity;
  for (int i = 0; i < 3; ++i) {
    if ((n.in[static_cast<std::size_t>(i)] != no_node) == (i < arity)) continue;
    throw Error(ErrorCode::internal, fmt::format("{} takes {} operands", op_name(op), arity));
  }

  if (is_pointwise(op)) {
    n.kind = pointwise_kind(*this, op, a, b, c);
    n.space = node(a).space;
    if (b != no_node) n.space = broadcast(*this, n.space, node(b).space);
    if (c != no_node) n.space = broadcast(*this, n.space, node(c).space);
    return add(n);
  }
  switch (op) {
    case Op::lse:
    case Op::vocab_max:
    case Op::anchor:
    case Op::log_sum:
      need_element(*this, op, a);
      n.space = Space::rows;
      return add(n);
    case Op::vocab_argmax:
      need_element(*this, op, a);
      n.space = Space::rows;
      n.kind = Kind::index;
      return add(n);
    case Op::softmax:
      need_element(*this, op, a);
      n.space = Space::element;
      return add(n);
    case Op::expect:
      need_element(*this, op, a);
      need_kind(*this, op, b, Kind::real);
      broadcast(*this, Space::element, node(b).space);
      n.space = Space::rows;
      return add(n);
    case Op::vocab_sum:
      if (node(a).space != Space::vocab) need_element(*this, op, a);
      need_kind(*this, op, a, Kind::real);
      n.space = node(a).space == Space::vocab ? Space::scalar : Space::rows;
      return add(n);
    case Op::pick: {
      need_kind(*this, op, a, Kind::real);
      need_kind(*this, op, b, Kind::index);
      if (node(b).space != Space::rows) {
        refuse(fmt::format("pick needs one index a row, found an index in the space '{}'",
                           space_name(node(b).space)));
      }
      const Space space = node(a).space;
      if (space == Space::rows || space == Space::scalar) return a;
      if (space != Space::vocab) need_element(*this, op, a);
      n.space = Space::rows;
      return add(n);
    }
    case Op::reduce_sum:
    case Op::reduce_min:
    case Op::reduce_max: {
      need_kind(*this, op, a, Kind::real);
      const Space space = node(a).space;
      if (space == Space::scalar) refuse(fmt::format("{} of a scalar: nothing to reduce", op_name(op)));
      if (space == Space::element) {
        refuse(fmt::format("{} of one value an element: reduce over the vocabulary first", op_name(op)));
      }
      n.space = Space::scalar;
      return add(n);
    }
    default:
      throw Error(ErrorCode::internal, fmt::format("{} is not made by apply", op_name(op)));
  }
}

NodeId Graph::along(Op op, NodeId a, std::string_view map_name) {
  const IndexMap& map = this->map(map_name);
  const bool gathers = op == Op::gather;
  if (!gathers && op != Op::segment_sum && op != Op::segment_min && op != Op::segment_max) {
    throw Error(ErrorCode::internal, fmt::format("{} does not go along a map", op_name(op)));
  }
  if (!gathers) need_kind(*this, op, a, Kind::real);
  const Space needed = gathers ? map.to : map.from;
  if (node(a).space != needed) {
    refuse(fmt::format("{} along '{}' needs a value in the space '{}', found one in '{}'", op_name(op),
                       map.name, space_name(needed), space_name(node(a).space)));
  }
  Node n;
  n.op = op;
  n.kind = node(a).kind;
  n.space = gathers ? map.from : map.to;
  n.in[0] = a;
  n.symbol = intern(map.name);
  return add(n);
}

NodeId Graph::all_reduce(NodeId a, std::string_view group) {
  need_kind(*this, Op::all_reduce, a, Kind::real);
  Node n;
  n.op = Op::all_reduce;
  n.space = node(a).space;
  n.in[0] = a;
  n.symbol = intern(group);
  return add(n);
}

}  // namespace lossc::ir
