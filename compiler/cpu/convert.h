// Loads and stores of fp32, bf16 and fp16 as LLVM IR: in registers a value is always `float` or `<W x
// float>`.
//
// fp16 needs F16C on x86 (every AVX2 machine has it); elsewhere LLVM calls a runtime function for it.
#pragma once

#include "lossc/tensor.h"

namespace llvm {
class IRBuilderBase;
class Type;
class Value;
}  // namespace llvm

namespace lossc::cpu {

struct ConvertTarget {
  bool avx512_bf16 = false;  ///< vcvtneps2bf16 for stores of 8 and 16 lanes; it stores denormals as 0.
};

/// The type of one element in memory: float, or i16 for bf16 and fp16. Throws Error(unsupported) for another
/// dtype.
llvm::Type* memory_type(llvm::IRBuilderBase& builder, DType dtype);

/// `width` elements from `pointer` on, as <width x float>. `align` in bytes is a promise; 0: that of one
/// element.
llvm::Value* load(llvm::IRBuilderBase& builder, DType dtype, llvm::Value* pointer, unsigned width,
                  unsigned align = 0);
/// Reads no memory where the mask (<W x i1>) is false; those lanes get `filler` (float or <W x float>).
llvm::Value* masked_load(llvm::IRBuilderBase& builder, DType dtype, llvm::Value* pointer, llvm::Value* mask,
                         llvm::Value* filler, unsigned align = 0);
/// One element, as float.
llvm::Value* load_scalar(llvm::IRBuilderBase& builder, DType dtype, llvm::Value* pointer);

/// Stores float or <W x float>, rounded to nearest even; NaN stays NaN, quiet. `nontemporal` needs `align` =
/// the bytes stored to take effect.
void store(llvm::IRBuilderBase& builder, DType dtype, llvm::Value* value, llvm::Value* pointer,
           unsigned align = 0, bool nontemporal = false, ConvertTarget target = {});
/// Writes no memory where the mask is false.
void masked_store(llvm::IRBuilderBase& builder, DType dtype, llvm::Value* value, llvm::Value* pointer,
                  llvm::Value* mask, unsigned align = 0, ConvertTarget target = {});

// The conversions alone, between the type in memory and float, for vectors and scalars.
llvm::Value* to_float(llvm::IRBuilderBase& builder, DType dtype, llvm::Value* stored);
llvm::Value* from_float(llvm::IRBuilderBase& builder, DType dtype, llvm::Value* value,
                        ConvertTarget target = {});

}  // namespace lossc::cpu
