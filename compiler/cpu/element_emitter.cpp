#include "compiler/cpu/element_emitter.h"

#include <fmt/format.h>

#include "compiler/cpu/paired.h"
#include "lossc/error.h"

namespace lossc::cpu {

using ir::no_node;
using ir::Node;
using ir::NodeId;
using ir::Op;
using ir::Space;
using llvm::Value;

namespace {

constexpr double kLeastArgument = -105;  // exp of it is below the smallest denormal

}  // namespace

Value* ElementEmitter::value(NodeId id) {
  if (auto it = memo_.find(id); it != memo_.end()) return it->second;
  const Node& n = c_.node(id);
  Value* v = nullptr;
  if (n.op == Op::constant) {
    v = n.kind == ir::Kind::boolean ? c_.splat(c_.b.getInt1(n.value != 0)) : c_.splat(c_.f32(n.value));
  } else if (n.space == Space::vocab) {
    throw Error(ErrorCode::unsupported,
                "values of the vocabulary space are not available in sweeps of the CPU backend");
  } else if (n.space != Space::element) {
    v = operands_.rows.at(id);
  } else if (n.op == Op::input) {
    v = input(id);
  } else if (n.op == Op::softmax) {
    v = c_.b.CreateFMul(exponential(n.in[0]), operands_.inverses.at(n.in[0]));
  } else if (n.op == Op::zero_mul && c_.node(n.in[0]).op == Op::softmax) {
    v = c_.b.CreateFMul(weighted(c_.node(n.in[0]).in[0], n.in[1]),
                        operands_.inverses.at(c_.node(n.in[0]).in[0]));
  } else if (ir::is_pointwise(n.op)) {
    std::array<Value*, 3> in{nullptr, nullptr, nullptr};
    for (std::size_t k = 0; k < 3; ++k) {
      if (n.in[k] != no_node) in[k] = value(n.in[k]);
    }
    v = c_.apply(n.op, in[0], in[1], in[2]);
  } else {
    throw Error(ErrorCode::internal, fmt::format("{} inside of a sweep", ir::op_name(n.op)));
  }
  memo_[id] = v;
  return v;
}

Value* ElementEmitter::input(NodeId id) {
  const DType dtype = c_.layout.tensors[static_cast<std::size_t>(c_.layout.tensor_of.at(id))].dtype;
  Value* row = operands_.tensors.at(id);
  const auto size = static_cast<std::int64_t>(dtype_size(dtype));
  auto address = [&](Value* j) { return c_.at(row, c_.b.CreateMul(j, c_.i64(size))); };
  if (place_.pair != nullptr) {
    VectorPair& pair = place_.pair->inputs[row];
    if (pair[0] == nullptr) pair = load_pair(c_.b, dtype, address(place_.pair->j));
    return pair[place_.u];
  }
  if (place_.mask == nullptr) return load(c_.b, dtype, address(place_.j), c_.target.width);
  return masked_load(c_.b, dtype, address(place_.j), place_.mask, c_.f32(0.0));
}

Value* ElementEmitter::exponential(NodeId x) {
  Value*& v = exponentials_[x];
  if (v == nullptr) v = kept(x, no_node);
  if (v == nullptr) {
    const SweepOperands::Exponent& e = operands_.exponents.at(x);
    v = c_.math.exp2(c_.math.fma(value(x), e.factor, e.offset));
  }
  return v;
}

Value* ElementEmitter::kept(NodeId x, NodeId a) {
  const auto it = operands_.kept.find({x, a});
  if (it == operands_.kept.end()) return nullptr;
  return load(c_.b, DType::fp32, c_.at(it->second, c_.b.CreateShl(place_.j, 2)), c_.target.width);
}

Value* ElementEmitter::weighted(NodeId x, NodeId a) {
  Value*& v = weighted_[{x, a}];
  if (v == nullptr) v = kept(x, a);
  if (v == nullptr) v = form_weighted(x, a);
  return v;
}

Value* ElementEmitter::form_weighted(NodeId x, NodeId a) {
  Value* e = exponential(x);
  const Node& n = c_.node(a);
  const bool own_argument =
      n.op == Op::sub && n.in[0] == x && c_.node(n.in[1]).op == Op::anchor && c_.node(n.in[1]).in[0] == x;
  if (!own_argument) return c_.zero_mul(e, value(a));
  // A finite argument needs no selection: below the bound the exponential is 0.
  return c_.b.CreateFMul(e, c_.math.maximum(value(a), c_.splat(c_.f32(kLeastArgument))));
}

}  // namespace lossc::cpu
