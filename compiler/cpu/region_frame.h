// The frame of a row: what the functions of a region hand to each other. First the addresses of the row in
// each element tensor that the region touches and in the gradient, which the runtime fills in; then 4-byte
// slots by name.
#pragma once

#include <map>
#include <string>

#include "compiler/cpu/codegen.h"
#include "compiler/cpu/region_shape.h"

namespace lossc::cpu {

/// What a slot holds; it belongs to a node, or to a term of the gradient by its number.
enum class Slot : char {
  value = 'n',    ///< a row value
  sum = 's',      ///< softmax argument: the sum of its exponentials
  inverse = 'i',  ///< softmax argument: 1 / that sum
  factor = 'f',   ///< softmax argument: its exponentials are 2^(x * factor - offset)
  offset = 'o',
  excess = 'e',       ///< softmax argument: log of what the exponentials exceed exp(x - anchor) by
  coefficient = 'c',  ///< dense term
  sparse_value = 'v',
  sparse_index = 'x',
  sparse_old = 'p',  ///< what stood in the gradient at the sparse term's place
};

class RegionFrame {
 public:
  RegionFrame(Codegen& codegen, const RegionShape& shape)
      : c_(codegen), shape_(shape), pointers_(static_cast<std::int64_t>(shape.tensors().size()) + 1) {}

  llvm::Value* row_address(llvm::Value* frame, ir::NodeId input);
  llvm::Value* gradient_address(llvm::Value* frame);

  llvm::Value* load(llvm::Value* frame, Slot slot, std::int64_t of, llvm::Type* type = nullptr);
  void store(llvm::Value* frame, Slot slot, std::int64_t of, llvm::Value* v);
  /// The slot's float in every lane of a vector.
  llvm::Value* lanes(llvm::Value* frame, Slot slot, std::int64_t of) {
    return c_.splat(load(frame, slot, of));
  }

  /// Sets the anchor of a softmax argument, and what its exponentials are formed with.
  void store_anchor(llvm::Value* frame, ir::NodeId x, llvm::Value* anchor);

  std::int64_t bytes() const {
    return (8 * pointers_ + 4 * static_cast<std::int64_t>(slots_.size()) + 63) / 64 * 64;
  }

 private:
  llvm::Value* pointer(llvm::Value* frame, std::int64_t index);
  llvm::Value* place(llvm::Value* frame, Slot slot, std::int64_t of);

  Codegen& c_;
  const RegionShape& shape_;
  std::int64_t pointers_;
  std::map<std::pair<Slot, std::int64_t>, std::int64_t> slots_;
};

}  // namespace lossc::cpu
