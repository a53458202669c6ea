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
};

constexpr OpInfo kOps[] = {
    {Op::constant, "constant"},
    {Op::parameter, "parameter"},
    {Op::input, "input"},
    {Op::space_size, "space_size"},
    {Op::neg, "neg"},
    {Op::exp, "exp"},
    {Op::log, "log"},
    {Op::log1p, "log1p"},
    {Op::expm1, "expm1"},
    {Op::log1mexp, "log1mexp"},
    {Op::tanh, "tanh"},
    {Op::sigmoid, "sigmoid"},
    {Op::log_sigmoid, "log_sigmoid"},
    {Op::softplus, "softplus"},
    {Op::sqrt, "sqrt"},
    {Op::abs, "abs"},
    {Op::sign, "sign"},
    {Op::is_finite, "is_finite"},
    {Op::logical_not, "logical_not"},
    {Op::to_real, "to_real"},
    {Op::stop_gradient, "stop_gradient"},
    {Op::add, "add"},
    {Op::sub, "sub"},
    {Op::mul, "mul"},
    {Op::div, "div"},
    {Op::zero_mul, "zero_mul"},
    {Op::minimum, "minimum"},
    {Op::maximum, "maximum"},
    {Op::less, "less"},
    {Op::less_equal, "less_equal"},
    {Op::equal, "equal"},
    {Op::logical_and, "logical_and"},
    {Op::logical_or, "logical_or"},
    {Op::select, "select"},
    {Op::clip, "clip"},
    {Op::lse, "lse"},
    {Op::expect, "expect"},
    {Op::vocab_sum, "vocab_sum"},
    {Op::vocab_max, "vocab_max"},
    {Op::vocab_argmax, "vocab_argmax"},
    {Op::pick, "pick"},
    {Op::anchor, "anchor"},
    {Op::log_sum, "log_sum"},
    {Op::softmax, "softmax"},
    {Op::gather, "gather"},
    {Op::segment_sum, "segment_sum"},
    {Op::segment_min, "segment_min"},
    {Op::segment_max, "segment_max"},
    {Op::reduce_sum, "reduce_sum"},
    {Op::reduce_min, "reduce_min"},
    {Op::reduce_max, "reduce_max"},
    {Op::all_reduce, "all_reduce"},
};

constexpr bool in_order() {
  std::size_t i = 0;
  for (const OpInfo& info : kOps) {
    if (static_cast<std::size_t>(info.op) != i++) return false;
  }
  return i == static_cast<std::size_t>(Op::all_reduce) + 1;
}
static_assert(in_order(), "kOps lists every operation in the order of Op");

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

}  // namespace

std::string_view op_name(Op op) {
  return kOps[static_cast<std::size_t>(op)].name;
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

}  // namespace lossc::ir
