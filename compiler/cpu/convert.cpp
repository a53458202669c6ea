#include "compiler/cpu/convert.h"

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsX86.h>

#include <string>

#include "lossc/error.h"

namespace lossc::cpu {

using llvm::Type;
using llvm::Value;

namespace {

llvm::Align alignment(DType dtype, unsigned align) {
  return llvm::Align(align ? align : static_cast<unsigned>(dtype_size(dtype)));
}

Value* round_to_bf16(llvm::IRBuilderBase& builder, Value* value, ConvertTarget target) {
  Type* type = value->getType();
  Type* half_word = type->getWithNewType(builder.getInt16Ty());
  auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(type);
  if (target.avx512_bf16 && vector && (vector->getNumElements() == 16 || vector->getNumElements() == 8)) {
    auto id = vector->getNumElements() == 16 ? llvm::Intrinsic::x86_avx512bf16_cvtneps2bf16_512
                                             : llvm::Intrinsic::x86_avx512bf16_cvtneps2bf16_256;
    return builder.CreateBitCast(builder.CreateIntrinsic(id, {}, {value}), half_word);
  }
  Type* word = type->getWithNewType(builder.getInt32Ty());
  auto constant = [word](unsigned n) { return llvm::ConstantInt::get(word, n); };
  Value* bits = builder.CreateBitCast(value, word);
  Value* high = builder.CreateLShr(bits, constant(16));
  // Adding just below half of the last place kept, plus that place's lowest bit, carries where nearest-even
  // rounds up.
  Value* half = builder.CreateAdd(builder.CreateAnd(high, constant(1)), constant(0x7fff));
  Value* rounded = builder.CreateLShr(builder.CreateAdd(bits, half), constant(16));
  // A NaN would carry into infinity or the sign; its payload may lie in the bits cut off.
  Value* is_nan = builder.CreateFCmpUNO(value, value);
  Value* result = builder.CreateSelect(is_nan, builder.CreateOr(high, constant(0x40)), rounded);
  return builder.CreateTrunc(result, half_word);
}

}  // namespace

Type* memory_type(llvm::IRBuilderBase& builder, DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return builder.getFloatTy();
    case DType::bf16:
    case DType::fp16:
      return builder.getInt16Ty();
    default:
      throw Error(ErrorCode::unsupported, "the CPU backend computes on fp32, bf16 or fp16 elements, found " +
                                              std::string(dtype_name(dtype)) + "; convert the tensor first");
  }
}

Value* to_float(llvm::IRBuilderBase& builder, DType dtype, Value* stored) {
  Type* type = stored->getType()->getWithNewType(builder.getFloatTy());
  if (dtype == DType::fp32) return stored;
  if (dtype == DType::fp16) {
    Type* half = type->getWithNewType(builder.getHalfTy());
    return builder.CreateFPExt(builder.CreateBitCast(stored, half), type);
  }
  Type* word = type->getWithNewType(builder.getInt32Ty());
  Value* wide = builder.CreateShl(builder.CreateZExt(stored, word), llvm::ConstantInt::get(word, 16));
  return builder.CreateBitCast(wide, type);
}

Value* from_float(llvm::IRBuilderBase& builder, DType dtype, Value* value, ConvertTarget target) {
  if (dtype == DType::fp32) return value;
  if (dtype == DType::bf16) return round_to_bf16(builder, value, target);
  Type* type = value->getType();
  Value* half = builder.CreateFPTrunc(value, type->getWithNewType(builder.getHalfTy()));
  return builder.CreateBitCast(half, type->getWithNewType(builder.getInt16Ty()));
}

Value* load(llvm::IRBuilderBase& builder, DType dtype, Value* pointer, unsigned width, unsigned align) {
  Type* type = llvm::FixedVectorType::get(memory_type(builder, dtype), width);
  return to_float(builder, dtype, builder.CreateAlignedLoad(type, pointer, alignment(dtype, align)));
}

Value* masked_load(llvm::IRBuilderBase& builder, DType dtype, Value* pointer, Value* mask, Value* filler,
                   unsigned align) {
  auto* lanes = llvm::cast<llvm::FixedVectorType>(mask->getType());
  Type* type = llvm::FixedVectorType::get(memory_type(builder, dtype), lanes->getNumElements());
  if (!filler->getType()->isVectorTy()) filler = builder.CreateVectorSplat(lanes->getNumElements(), filler);
  if (dtype == DType::fp32) {
    return builder.CreateMaskedLoad(type, pointer, alignment(dtype, align), mask, filler);
  }
  Value* stored = builder.CreateMaskedLoad(type, pointer, alignment(dtype, align), mask,
                                           llvm::Constant::getNullValue(type));
  return builder.CreateSelect(mask, to_float(builder, dtype, stored), filler);
}

Value* load_scalar(llvm::IRBuilderBase& builder, DType dtype, Value* pointer) {
  Value* stored = builder.CreateAlignedLoad(memory_type(builder, dtype), pointer, alignment(dtype, 0));
  return to_float(builder, dtype, stored);
}

void store(llvm::IRBuilderBase& builder, DType dtype, Value* value, Value* pointer, unsigned align,
           bool nontemporal, ConvertTarget target) {
  memory_type(builder, dtype);  // refuses other dtypes
  auto* instruction =
      builder.CreateAlignedStore(from_float(builder, dtype, value, target), pointer, alignment(dtype, align));
  if (!nontemporal) return;
  auto* one = llvm::ConstantAsMetadata::get(builder.getInt32(1));
  instruction->setMetadata(llvm::LLVMContext::MD_nontemporal, llvm::MDNode::get(builder.getContext(), {one}));
}

void masked_store(llvm::IRBuilderBase& builder, DType dtype, Value* value, Value* pointer, Value* mask,
                  unsigned align, ConvertTarget target) {
  memory_type(builder, dtype);
  builder.CreateMaskedStore(from_float(builder, dtype, value, target), pointer, alignment(dtype, align),
                            mask);
}

}  // namespace lossc::cpu
