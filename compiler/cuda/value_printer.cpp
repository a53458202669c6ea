#include "compiler/cuda/value_printer.h"

#include <fmt/format.h>

#include "compiler/cuda/operations.h"
#include "lossc/error.h"

namespace lossc::cuda {

using ir::Kind;
using ir::no_node;
using ir::Node;
using ir::NodeId;
using ir::Op;
using ir::Space;

ValuePrinter::ValuePrinter(const SourceContext& context, std::string position, Space space,
                           std::function<std::string(NodeId)> statistic, std::string indent)
    : c_(context),
      position_(std::move(position)),
      space_(space),
      statistic_(std::move(statistic)),
      indent_(std::move(indent)) {}

void ValuePrinter::line(const std::string& statement) {
  statements_ += indent_ + statement + "\n";
}

std::string ValuePrinter::declare(NodeId id, const std::string& expression) {
  line(fmt::format("const {} {} = {};", type_of(c_.node(id).kind), c_.name(id), expression));
  return c_.name(id);
}

std::string ValuePrinter::value(NodeId id) {
  if (auto it = memo_.find(id); it != memo_.end()) return it->second;
  const Node& n = c_.node(id);
  std::string v = known ? known(id) : std::string();
  if (!v.empty()) {
    // nothing to compute
  } else if (is_statistic(c_.graph(), id)) {
    v = statistic_(id);
  } else if (auto scalar = c_.layout.scalar_of.find(id); scalar != c_.layout.scalar_of.end()) {
    v = declare(id, fmt::format("a.scalar({})", scalar->second));
  } else if (auto buffer = c_.layout.buffer_of.find(id);
             buffer != c_.layout.buffer_of.end() && n.space == space_) {
    const std::string element = fmt::format("a.buffers[{}][{}]", buffer->second, position_);
    v = declare(id, n.kind == Kind::boolean ? element + " != 0.0f"
                    : n.kind == Kind::index ? fmt::format("static_cast<int>({})", element)
                                            : element);
  } else {
    v = compute(id);
  }
  memo_[id] = v;
  return v;
}

std::string ValuePrinter::compute(NodeId id) {
  const Node& n = c_.node(id);
  if (n.op == Op::gather) return gather(n, id);
  if (n.op == Op::constant || n.op == Op::parameter || n.op == Op::input || n.op == Op::space_size)
    return leaf(id);
  if (!ir::is_pointwise(n.op)) {
    throw Error(ErrorCode::internal, fmt::format("{} is not computed at one place", ir::op_name(n.op)));
  }
  const bool compares = n.op == Op::less || n.op == Op::less_equal || n.op == Op::equal;
  bool indices = false;
  for (NodeId operand : n.in)
    indices = indices || (operand != no_node && c_.node(operand).kind == Kind::index);
  std::array<std::string, 3> in;
  for (std::size_t k = 0; k < 3; ++k) {
    if (n.in[k] == no_node) continue;
    in[k] = value(n.in[k]);
    if ((compares || n.kind == Kind::index) && indices && c_.node(n.in[k]).kind != Kind::boolean) {
      in[k] = as_index(in[k], n.in[k]);
    }
  }
  return declare(id, operation(n.op, in));
}

// Indices are compared as integers; a constant beside one is a whole number.
std::string ValuePrinter::as_index(const std::string& text, NodeId of) const {
  const Node& n = c_.node(of);
  if (n.op == Op::constant) return fmt::format("{}", static_cast<std::int64_t>(n.value));
  return n.kind == Kind::index ? text : fmt::format("static_cast<int>({})", text);
}

std::string ValuePrinter::leaf(NodeId id) {
  const Node& n = c_.node(id);
  switch (n.op) {
    case Op::constant:
      if (n.kind == Kind::boolean) return n.value != 0 ? "true" : "false";
      if (n.kind == Kind::index) return fmt::format("{}", static_cast<std::int64_t>(n.value));
      return literal(n.value);
    case Op::parameter:
      return declare(id, fmt::format("a.parameter({})", c_.layout.parameter_of.at(id)));
    case Op::space_size:
      return declare(id, fmt::format("a.size({})", n.aux));
    default:
      return declare(id, tensor(c_.layout.tensor_of.at(id), n.space == Space::scalar ? "0" : position_));
  }
}

std::string ValuePrinter::tensor(int index, const std::string& position) const {
  const TensorSlot& slot = c_.layout.tensors[static_cast<std::size_t>(index)];
  switch (slot.dtype) {
    case DType::i32:
      if (slot.name == "segment_ids") return fmt::format("a.segment({}, {})", index, position);
      if (slot.name.rfind("pairs.", 0) == 0) return fmt::format("a.member({}, {})", index, position);
      return fmt::format("a.label({}, {}, kVocab)", index, position);
    case DType::u8:
      return fmt::format("a.boolean({}, {})", index, position);
    default:
      return fmt::format("a.real({}, {})", index, position);
  }
}

// Nothing is read where the index is negative: the value is 0 there.
std::string ValuePrinter::gather(const Node& n, NodeId id) {
  const std::string& map = c_.graph().symbol(n.symbol);
  const std::string index = c_.name(id, "at");
  line(fmt::format("const int {} = {};", index, tensor(c_.index_tensor.at(map), position_)));
  const NodeId source = n.in[0];
  std::string v;
  if (auto it = c_.layout.buffer_of.find(source); it != c_.layout.buffer_of.end()) {
    v = fmt::format("a.buffers[{}][{}]", it->second, index);
  } else if (auto input = c_.layout.tensor_of.find(source); input != c_.layout.tensor_of.end()) {
    v = tensor(input->second, index);
  } else {
    throw Error(ErrorCode::internal, "a gathered value has no buffer");
  }
  if (n.kind == Kind::boolean && c_.layout.buffer_of.count(source) > 0) v += " != 0.0f";
  const char* none = n.kind == Kind::boolean ? "false" : n.kind == Kind::index ? "0" : "0.0f";
  return declare(id, fmt::format("{} >= 0 ? {} : {}", index, v, none));
}

std::string ValuePrinter::pick(NodeId id, const std::string& row) {
  const Node& n = c_.node(id);
  std::string index = value(n.in[1]);
  if (c_.node(n.in[1]).kind != Kind::index) index = fmt::format("static_cast<int>({})", index);
  return declare(id, fmt::format("pick<{}>({}, {}, kVocab)", element_type(c_.dtype(n.in[0])), row, index));
}

}  // namespace lossc::cuda
