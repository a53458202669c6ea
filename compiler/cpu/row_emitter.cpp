#include "compiler/cpu/row_emitter.h"

#include <fmt/format.h>

#include <cstddef>
#include <limits>

#include "lossc/error.h"

namespace lossc::cpu {

using ir::Kind;
using ir::no_node;
using ir::Node;
using ir::NodeId;
using ir::Op;
using ir::Space;
using llvm::Value;

Value* RowEmitter::value(NodeId id) {
  if (auto it = memo_.find(id); it != memo_.end()) return it->second;
  const Node& n = c_.node(id);
  Value* v = nullptr;
  if (is_statistic(c_.graph(), id)) {
    v = statistic_(id);
  } else if (auto scalar = c_.layout.scalar_of.find(id); scalar != c_.layout.scalar_of.end()) {
    Value* table = c_.field(args_, offsetof(KernelArgs, scalars));
    v = c_.b.CreateLoad(c_.f32(), c_.at(table, 4 * scalar->second));
  } else if (auto buffer = c_.layout.buffer_of.find(id);
             buffer != c_.layout.buffer_of.end() && n.space == space_) {
    v = load_buffer(buffer->second, position_);
    if (n.kind == Kind::boolean) v = c_.b.CreateFCmpUNE(v, c_.f32(0.0));
  } else {
    v = compute(id);
  }
  memo_[id] = v;
  return v;
}

Value* RowEmitter::compute(NodeId id) {
  const Node& n = c_.node(id);
  if (n.op == Op::gather) return gather(n);
  if (n.op == Op::constant || n.op == Op::parameter || n.op == Op::input || n.op == Op::space_size)
    return leaf(id);
  if (!ir::is_pointwise(n.op)) {
    throw Error(ErrorCode::internal, fmt::format("{} is not computed at one place", ir::op_name(n.op)));
  }
  std::array<Value*, 3> in{nullptr, nullptr, nullptr};
  const bool compares = n.op == Op::less || n.op == Op::less_equal || n.op == Op::equal;
  bool indices = false;
  for (NodeId operand : n.in)
    indices = indices || (operand != no_node && c_.node(operand).kind == Kind::index);
  for (std::size_t k = 0; k < 3; ++k) {
    if (n.in[k] == no_node) continue;
    in[k] = value(n.in[k]);
    if (compares && indices) in[k] = as_index(in[k], c_.node(n.in[k]));
  }
  return c_.apply(n.op, in[0], in[1], in[2]);
}

// Indices are compared as integers; a constant beside one is a whole number.
Value* RowEmitter::as_index(Value* v, const Node& of) {
  if (v->getType()->isIntegerTy()) return v;
  if (of.op == Op::constant)
    return c_.b.getInt32(static_cast<std::uint32_t>(static_cast<std::int64_t>(of.value)));
  return c_.b.CreateFPToSI(v, c_.b.getInt32Ty());
}

Value* RowEmitter::leaf(NodeId id) {
  const Node& n = c_.node(id);
  switch (n.op) {
    case Op::constant:
      if (n.kind == Kind::boolean) return c_.b.getInt1(n.value != 0);
      return c_.f32(n.value);
    case Op::parameter: {
      Value* table = c_.field(args_, offsetof(KernelArgs, parameters));
      return c_.b.CreateLoad(c_.f32(), c_.at(table, 4 * c_.layout.parameter_of.at(id)));
    }
    case Op::space_size: {
      Value* table = c_.field(args_, offsetof(KernelArgs, sizes));
      return c_.b.CreateLoad(c_.f32(), c_.at(table, 4 * n.aux));
    }
    default: {
      Value* position = n.space == Space::scalar ? c_.i64(0) : position_;
      return load_tensor(c_.layout.tensor_of.at(id), position);
    }
  }
}

Value* RowEmitter::load_tensor(int index, Value* position) {
  Value* address = c_.tensor_address(args_, index, position);
  switch (c_.layout.tensors[static_cast<std::size_t>(index)].dtype) {
    case DType::i32:
      return c_.b.CreateAlignedLoad(c_.b.getInt32Ty(), address, llvm::Align(4));
    case DType::u8:
      return c_.b.CreateICmpNE(c_.b.CreateAlignedLoad(c_.b.getInt8Ty(), address, llvm::Align(1)),
                               c_.b.getInt8(0));
    default:
      return c_.b.CreateAlignedLoad(c_.f32(), address, llvm::Align(4));
  }
}

Value* RowEmitter::load_buffer(int index, Value* position) {
  return c_.b.CreateLoad(c_.f32(), c_.at(c_.buffer(args_, index), c_.b.CreateShl(position, 2)));
}

// Nothing is read where the index is negative: the value is 0 there.
Value* RowEmitter::gather(const Node& n) {
  const std::string& map = c_.graph().symbol(n.symbol);
  int indices = -1;
  for (std::size_t i = 0; i < c_.layout.tensors.size(); ++i) {
    if (c_.layout.tensors[i].name == map) indices = static_cast<int>(i);
  }
  Value* index = load_tensor(indices, position_);
  llvm::Function* f = c_.b.GetInsertBlock()->getParent();
  auto* from = c_.b.GetInsertBlock();
  auto* read = llvm::BasicBlock::Create(c_.context, "gather", f);
  auto* done = llvm::BasicBlock::Create(c_.context, "gathered", f);
  c_.b.CreateCondBr(c_.b.CreateICmpSGE(index, c_.b.getInt32(0)), read, done);
  c_.b.SetInsertPoint(read);
  Value* place = c_.b.CreateSExt(index, c_.b.getInt64Ty());
  const NodeId source = n.in[0];
  Value* v = nullptr;
  if (auto it = c_.layout.buffer_of.find(source); it != c_.layout.buffer_of.end()) {
    v = load_buffer(it->second, place);
  } else if (auto tensor = c_.layout.tensor_of.find(source); tensor != c_.layout.tensor_of.end()) {
    v = load_tensor(tensor->second, place);
  } else {
    throw Error(ErrorCode::internal, "a gathered value has no buffer");
  }
  auto* last = c_.b.GetInsertBlock();
  c_.b.CreateBr(done);
  c_.b.SetInsertPoint(done);
  auto* phi = c_.b.CreatePHI(v->getType(), 2);
  phi->addIncoming(llvm::Constant::getNullValue(v->getType()), from);
  phi->addIncoming(v, last);
  return phi;
}

Value* RowEmitter::pick(NodeId id, Value* row) {
  const Node& n = c_.node(id);
  const int tensor = c_.layout.tensor_of.at(n.in[0]);
  const DType dtype = c_.layout.tensors[static_cast<std::size_t>(tensor)].dtype;
  Value* index = value(n.in[1]);
  if (!index->getType()->isIntegerTy()) index = c_.b.CreateFPToSI(index, c_.b.getInt32Ty());
  Value* inside = c_.b.CreateICmpULT(index, c_.b.getInt32(static_cast<std::uint32_t>(c_.spec.vocab)));
  // Outside of the vocabulary element 0 is read and dropped.
  Value* safe = c_.b.CreateZExt(c_.b.CreateSelect(inside, index, c_.b.getInt32(0)), c_.b.getInt64Ty());
  Value* address = c_.at(row, c_.b.CreateMul(safe, c_.i64(static_cast<std::int64_t>(dtype_size(dtype)))));
  Value* loaded = load_scalar(c_.b, dtype, address);
  Value* negative = c_.b.CreateICmpSLT(index, c_.b.getInt32(0));
  Value* other = c_.b.CreateSelect(negative, c_.f32(0.0), c_.f32(std::numeric_limits<double>::quiet_NaN()));
  return c_.b.CreateSelect(inside, loaded, other);
}

}  // namespace lossc::cpu
