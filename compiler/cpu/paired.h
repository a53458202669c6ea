// Loads and stores of two vectors at once whose elements are dealt as in a PairedUnit (vectors of 16 floats).
#pragma once

#include <array>

#include "compiler/cpu/convert.h"

namespace lossc::cpu {

using VectorPair = std::array<llvm::Value*, 2>;

/// 32 elements from `pointer` on.
VectorPair load_pair(llvm::IRBuilderBase& builder, DType dtype, llvm::Value* pointer);
void store_pair(llvm::IRBuilderBase& builder, DType dtype, const VectorPair& values, llvm::Value* pointer,
                ConvertTarget target);

}  // namespace lossc::cpu
