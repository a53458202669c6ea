// The loss graph: typed nodes over index spaces, built by value numbering, so equal expressions are one node.
//
// A node's operands always have smaller ids: increasing ids are a topological order. Nodes are never changed;
// a pass that rewrites builds a new graph.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace lossc::ir {

/// Where a value lives. The fixed spaces come first; graphs may add named ones, each with a run-time size.
enum class Space : std::uint8_t { scalar, rows, vocab, element, segments, pairs, first_named };

enum class Kind : std::uint8_t { real, index, boolean };

enum class Op : std::uint8_t {
  // leaves
  constant,    // value
  parameter,   // symbol: run-time scalar
  input,       // symbol: tensor; space, kind; optional inputs carry a default in value (aux = 1)
  space_size,  // scalar: the run-time size of space aux
  // point-wise, one operand
  neg,
  exp,
  log,
  log1p,
  expm1,
  log1mexp,  // log(1 - exp(x)), x <= 0
  tanh,
  sigmoid,
  log_sigmoid,
  softplus,
  sqrt,
  abs,
  sign,
  is_finite,
  logical_not,
  to_real,
  stop_gradient,
  // point-wise, two operands
  add,
  sub,
  mul,
  div,
  zero_mul,  // 0 where the first operand is 0, whatever the second is; else the product
  minimum,
  maximum,
  less,
  less_equal,
  equal,
  logical_and,
  logical_or,
  // point-wise, three operands
  select,  // condition, then, else
  clip,    // x, low, high; its derivative is 1 on the closed interval
  // element -> rows
  lse,        // log sum exp(x)
  expect,     // x, a: the mean of a under softmax(x); 0 * log 0 = 0
  vocab_sum,  // element -> rows, vocab -> scalar
  vocab_max,
  vocab_argmax,  // smallest index of the maximum
  pick,          // a, index: a[index]; index < 0: 0, index >= vocab: NaN. element -> rows, vocab -> rows
  anchor,        // x: a number near max(x), free of rounding concerns; lse(x) = anchor(x) + log_sum(x)
  log_sum,       // x: log sum exp(x - anchor(x))
  // element -> element
  softmax,  // exp(x - lse(x))
  // between spaces along a map (symbol)
  gather,       // to-space -> from-space; index < 0: 0
  segment_sum,  // from-space -> to-space
  segment_min,
  segment_max,
  // to scalar
  reduce_sum,
  reduce_min,
  reduce_max,
  all_reduce,  // symbol: group; sum over its ranks
};

using NodeId = std::int32_t;
inline constexpr NodeId no_node = -1;

struct Node {
  Op op = Op::constant;
  Kind kind = Kind::real;
  Space space = Space::scalar;
  std::int8_t aux = 0;
  std::int32_t symbol = -1;
  std::array<NodeId, 3> in{no_node, no_node, no_node};
  double value = 0;

  int arity() const { return (in[0] >= 0) + (in[1] >= 0) + (in[2] >= 0); }
};

/// A named index map: for every element of `from`, an element of `to` or none (a negative index).
struct IndexMap {
  std::string name;
  Space from, to;
};

class Graph {
 public:
  Graph();

  const Node& node(NodeId id) const { return nodes_[static_cast<std::size_t>(id)]; }
  NodeId size() const { return static_cast<NodeId>(nodes_.size()); }

  /// The node, folded where its value is known and no rounding or special value could differ (x + 0, x * 1,
  /// constants).
  NodeId add(Node node);

  NodeId constant(double value);
  NodeId boolean(bool value);
  NodeId parameter(std::string_view name);
  NodeId input(std::string_view name, Space space, Kind kind = Kind::real);
  /// An input that a batch may leave out: it then reads `fallback` everywhere.
  NodeId optional_input(std::string_view name, Space space, Kind kind, double fallback);
  NodeId space_size(Space space);
  /// Point-wise and vocabulary operations; spaces are checked and the result's space derived.
  NodeId apply(Op op, NodeId a, NodeId b = no_node, NodeId c = no_node);
  /// gather / segment_* along a map.
  NodeId along(Op op, NodeId a, std::string_view map);
  NodeId all_reduce(NodeId a, std::string_view group);

  std::int32_t intern(std::string_view text);
  const std::string& symbol(std::int32_t id) const { return symbols_[static_cast<std::size_t>(id)]; }
  const std::string& symbol_of(NodeId id) const { return symbol(node(id).symbol); }

  Space add_space(std::string_view name);
  void add_map(IndexMap map);
  const IndexMap& map(std::string_view name) const;
  const std::vector<IndexMap>& maps() const { return maps_; }
  const std::string& space_name(Space space) const { return spaces_[static_cast<std::size_t>(space)]; }
  /// Copies spaces and maps (not nodes) of another graph.
  void copy_declarations(const Graph& other);

  bool is_constant(NodeId id, double value) const;

 private:
  struct Hash {
    std::size_t operator()(const Node& n) const;
  };
  struct Equal {
    bool operator()(const Node& a, const Node& b) const;
  };
  std::vector<Node> nodes_;
  std::vector<std::string> symbols_, spaces_;
  std::vector<IndexMap> maps_;
  std::unordered_map<Node, NodeId, Hash, Equal> numbering_;
  std::unordered_map<std::string, std::int32_t> symbol_ids_;
};

std::string_view op_name(Op op);
/// True for maps from values to a value at the same place (with broadcast).
bool is_pointwise(Op op);
/// True for element -> rows reductions computed by a sweep (pick is not one: it reads one element).
bool is_sweep_reduction(Op op);
/// True for reductions that couple rows: along a map, to a scalar, over ranks.
bool is_cross_reduction(Op op);
/// The space of a point-wise result over `a` and `b`; throws Error(invalid_argument) where no implicit
/// broadcast exists.
Space broadcast(const Graph& graph, Space a, Space b);

/// For every node of the graph: does it depend on one of `sources`?
std::vector<bool> depends_on(const Graph& graph, const std::vector<NodeId>& sources);

}  // namespace lossc::ir
