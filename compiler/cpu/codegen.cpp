#include "compiler/cpu/codegen.h"

#include <fmt/format.h>
#include <llvm/IR/Intrinsics.h>

#include <cstddef>

#include "lossc/error.h"

namespace lossc::cpu {

using ir::Op;
using llvm::Value;

llvm::Function* Codegen::function(const std::string& name, llvm::Type* result,
                                  std::vector<llvm::Type*> parameters) {
  auto* type = llvm::FunctionType::get(result, parameters, false);
  auto* f = llvm::Function::Create(type, llvm::Function::ExternalLinkage, name, module);
  f->addFnAttr("target-cpu", target.name);
  f->addFnAttr("target-features", target.features);
  f->addFnAttr("prefer-vector-width", std::to_string(target.width * 32));
  f->addFnAttr("min-legal-vector-width", std::to_string(target.width * 32));
  f->addFnAttr(llvm::Attribute::NoUnwind);
  f->addFnAttr("no-trapping-math", "true");
  for (auto& argument : f->args()) {
    if (argument.getType()->isPointerTy()) argument.addAttr(llvm::Attribute::NoAlias);
  }
  b.SetInsertPoint(llvm::BasicBlock::Create(context, "entry", f));
  entry_loads_.clear();
  last_entry_load_ = nullptr;
  return f;
}

Value* Codegen::entry_load(Value* base, std::int64_t offset, llvm::Type* type) {
  Value*& loaded = entry_loads_[{base, offset}];
  if (loaded != nullptr) return loaded;
  const llvm::IRBuilderBase::InsertPointGuard guard(b);
  llvm::BasicBlock& entry = b.GetInsertBlock()->getParent()->getEntryBlock();
  if (last_entry_load_ != nullptr && last_entry_load_->getNextNode() == nullptr) {
    b.SetInsertPoint(&entry);
  } else {
    b.SetInsertPoint(
        &entry, last_entry_load_ != nullptr ? std::next(last_entry_load_->getIterator()) : entry.begin());
  }
  loaded = b.CreateLoad(type, at(base, offset));
  last_entry_load_ = llvm::cast<llvm::Instruction>(loaded);
  return loaded;
}

Value* Codegen::field(Value* args, std::size_t offset) {
  return entry_load(args, static_cast<std::int64_t>(offset), ptr());
}

Value* Codegen::buffer(Value* args, int index) {
  return entry_load(field(args, offsetof(KernelArgs, buffers)), 8 * index, ptr());
}

Value* Codegen::tensor_address(Value* args, int index, Value* position) {
  Value* table = field(args, offsetof(KernelArgs, tensors));
  const auto slot = static_cast<std::int64_t>(sizeof(Strided)) * index;
  Value* data = entry_load(table, slot + static_cast<std::int64_t>(offsetof(Strided, data)), ptr());
  Value* stride =
      entry_load(table, slot + static_cast<std::int64_t>(offsetof(Strided, stride)), b.getInt64Ty());
  return b.CreateGEP(b.getInt8Ty(), data, b.CreateMul(position, stride));
}

void Codegen::loop(Value* begin, Value* end, std::int64_t step, const std::function<void(Value*)>& body,
                   const char* name) {
  llvm::Function* f = b.GetInsertBlock()->getParent();
  auto* head = llvm::BasicBlock::Create(context, name, f);
  auto* exit = llvm::BasicBlock::Create(context, fmt::format("{}.end", name), f);
  auto* from = b.GetInsertBlock();
  b.CreateCondBr(b.CreateICmpSLT(begin, end), head, exit);
  b.SetInsertPoint(head);
  auto* i = b.CreatePHI(b.getInt64Ty(), 2, "i");
  i->addIncoming(begin, from);
  body(i);
  Value* next = b.CreateAdd(i, i64(step));
  i->addIncoming(next, b.GetInsertBlock());
  b.CreateCondBr(b.CreateICmpSLT(next, end), head, exit);
  b.SetInsertPoint(exit);
}

Value* Codegen::zero_mul(Value* a, Value* v) {
  Value* zero = llvm::Constant::getNullValue(a->getType());
  // The other factor is replaced, not the product, so that the multiplication may join an fma.
  return b.CreateFMul(a, b.CreateSelect(b.CreateFCmpOEQ(a, zero), zero, v));
}

Value* Codegen::apply(Op op, Value* x, Value* y, Value* z) {
  switch (op) {
    case Op::neg:
      return b.CreateFNeg(x);
    case Op::exp:
      return math.exp(x);
    case Op::log:
      return math.log(x);
    case Op::log1p:
      return math.log1p(x);
    case Op::expm1:
      return math.expm1(x);
    case Op::log1mexp:
      return math.log1mexp(x);
    case Op::tanh:
      return math.tanh(x);
    case Op::sigmoid:
      return math.sigmoid(x);
    case Op::log_sigmoid:
      return math.log_sigmoid(x);
    case Op::softplus:
      return math.softplus(x);
    case Op::sqrt:
      return math.sqrt(x);
    case Op::abs:
      return math.abs(x);
    case Op::sign:
      return math.sign(x);
    case Op::is_finite:
      return math.is_finite(x);
    case Op::logical_not:
      return b.CreateNot(x);
    case Op::stop_gradient:
      return x;
    case Op::to_real: {
      llvm::Type* type = f32();
      if (auto* v = llvm::dyn_cast<llvm::FixedVectorType>(x->getType())) {
        type = llvm::FixedVectorType::get(type, v->getNumElements());
      }
      const bool condition = x->getType()->getScalarType()->isIntegerTy(1);
      return condition ? b.CreateUIToFP(x, type) : b.CreateSIToFP(x, type);
    }
    case Op::add:
      return b.CreateFAdd(x, y);
    case Op::sub:
      return b.CreateFSub(x, y);
    case Op::mul:
      return b.CreateFMul(x, y);
    case Op::div:
      return b.CreateFDiv(x, y);
    case Op::zero_mul:
      return zero_mul(x, y);
    case Op::minimum:
      return math.minimum(x, y);
    case Op::maximum:
      return math.maximum(x, y);
    case Op::less:
      return x->getType()->isIntOrIntVectorTy() ? b.CreateICmpSLT(x, y) : b.CreateFCmpOLT(x, y);
    case Op::less_equal:
      return x->getType()->isIntOrIntVectorTy() ? b.CreateICmpSLE(x, y) : b.CreateFCmpOLE(x, y);
    case Op::equal:
      return x->getType()->isIntOrIntVectorTy() ? b.CreateICmpEQ(x, y) : b.CreateFCmpOEQ(x, y);
    case Op::logical_and:
      return b.CreateAnd(x, y);
    case Op::logical_or:
      return b.CreateOr(x, y);
    case Op::select:
      return b.CreateSelect(x, y, z);
    case Op::clip:
      return math.clip(x, y, z);
    default:
      throw Error(ErrorCode::internal, fmt::format("{} is no point-wise operation", ir::op_name(op)));
  }
}

}  // namespace lossc::cpu
