// Graph::apply, along and all_reduce: what each operation accepts, and the kind and space of its result.
#include <fmt/format.h>

#include <cmath>
#include <string>

#include "ir/graph.h"
#include "lossc/error.h"

namespace lossc::ir {
namespace {

int arity_of(Op op) {
  if (op < Op::neg) return 0;
  if (op >= Op::select && op <= Op::clip) return 3;
  if ((op >= Op::add && op <= Op::logical_or) || op == Op::expect || op == Op::pick) return 2;
  return 1;
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
  const int arity = arity_of(op);
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
