#include "compiler/cuda/element_printer.h"

#include <fmt/format.h>

#include <algorithm>

#include "compiler/cuda/operations.h"
#include "lossc/error.h"

namespace lossc::cuda {

using ir::no_node;
using ir::Node;
using ir::NodeId;
using ir::Op;
using ir::Space;

std::string ElementPrinter::declare(const std::string& name, std::string_view type,
                                    const std::string& expression) {
  statements_ += fmt::format("{}const {} {} = {};\n", indent_, type, name, expression);
  return name;
}

std::string ElementPrinter::row_value(NodeId id) {
  if (std::find(rows_.begin(), rows_.end(), id) == rows_.end()) rows_.push_back(id);
  return c_.name(id);
}

std::string ElementPrinter::value(NodeId id) {
  if (auto it = memo_.find(id); it != memo_.end()) return it->second;
  const Node& n = c_.node(id);
  std::string v;
  if (n.op == Op::constant) {
    v = n.kind == ir::Kind::boolean ? (n.value != 0 ? "true" : "false") : literal(n.value);
  } else if (n.space == Space::vocab) {
    throw Error(ErrorCode::unsupported, "values of the vocabulary space are not available in sweeps");
  } else if (n.space != Space::element) {
    v = row_value(id);
  } else if (n.op == Op::input) {
    tensors_.insert(id);
    v = "x." + c_.name(id);
  } else if (n.op == Op::softmax) {
    inverses_.insert(n.in[0]);
    v = declare(c_.name(id), "float",
                fmt::format("{} * {}", exponential(n.in[0]), c_.name(n.in[0], "inverse")));
  } else if (n.op == Op::zero_mul && c_.node(n.in[0]).op == Op::softmax) {
    const NodeId x = c_.node(n.in[0]).in[0];
    inverses_.insert(x);
    v = declare(c_.name(id), "float", fmt::format("{} * {}", weighted(x, n.in[1]), c_.name(x, "inverse")));
  } else if (n.op == Op::div && c_.node(n.in[1]).space != Space::element) {
    const std::string dividend = value(n.in[0]);
    if (std::find(divisors_.begin(), divisors_.end(), n.in[1]) == divisors_.end())
      divisors_.push_back(n.in[1]);
    v = declare(c_.name(id), "float", fmt::format("{} * {}", dividend, c_.name(n.in[1], "per")));
  } else if (ir::is_pointwise(n.op)) {
    std::array<std::string, 3> in;
    for (std::size_t k = 0; k < 3; ++k) {
      if (n.in[k] != no_node) in[k] = value(n.in[k]);
    }
    v = declare(c_.name(id), type_of(n.kind), operation(n.op, in));
  } else {
    throw Error(ErrorCode::internal, fmt::format("{} inside of a sweep", ir::op_name(n.op)));
  }
  memo_[id] = v;
  return v;
}

std::string ElementPrinter::exponential(NodeId x) {
  if (auto it = exponentials_.find(x); it != exponentials_.end()) return it->second;
  const std::string argument = value(x);
  anchors_.insert(x);
  return exponentials_[x] = declare(c_.name(x, "exp"), "float",
                                    fmt::format("exponential({}, {})", argument, c_.name(x, "anchor")));
}

std::string ElementPrinter::weighted(NodeId x, NodeId a) {
  if (auto it = weighted_.find({x, a}); it != weighted_.end()) return it->second;
  const std::string e = exponential(x), v = value(a);
  const std::string name =
      fmt::format("exp{}x{}", c_.number.at(x), c_.number.count(a) > 0 ? c_.number.at(a) : -1);
  return weighted_[{x, a}] = declare(name, "float", fmt::format("zero_mul({}, {})", e, v));
}

}  // namespace lossc::cuda
