// The functions of a region that run once a row: before its first sweep, between sweeps, after the last.
#pragma once

#include <string>

#include "compiler/cpu/codegen.h"
#include "compiler/cpu/region_frame.h"
#include "compiler/cpu/region_shape.h"
#include "compiler/cpu/row_emitter.h"

namespace lossc::cpu {

class RegionRows {
 public:
  RegionRows(Codegen& codegen, const RegionShape& shape, RegionFrame& frame, std::string prefix)
      : c_(codegen), b_(codegen.b), shape_(shape), frame_(frame), prefix_(std::move(prefix)) {}

  // Each emits one function and returns its name.
  std::string begin();
  std::string finish(std::size_t k);
  std::string sparse();

 private:
  RowEmitter row_emitter(llvm::Value* args, llvm::Value* row, llvm::Value* frame);
  void stage(RowEmitter& rows, llvm::Value* args, llvm::Value* row, llvm::Value* frame, std::size_t k);
  void store_operands(RowEmitter& rows, llvm::Value* frame, const std::vector<ir::NodeId>& roots,
                      std::size_t k);
  void store_gradient_terms(RowEmitter& rows, llvm::Value* frame);
  llvm::Value* inverse_sum(RowEmitter& rows, llvm::Value* frame, ir::NodeId x);

  Codegen& c_;
  llvm::IRBuilder<>& b_;
  const RegionShape& shape_;
  RegionFrame& frame_;
  std::string prefix_;
};

/// Whether the sum of a softmax's exponentials tells that its anchor was near the maximum; false for NaN.
llvm::Value* good_sum(Codegen& codegen, RegionFrame& frame, llvm::Value* of, ir::NodeId x);
/// Where the i-th sparse term lies in the gradient; `inside` receives whether it does. Element 0 if not.
llvm::Value* sparse_place(Codegen& codegen, RegionFrame& frame, llvm::Value* of, std::size_t i,
                          llvm::Value*& inside);

}  // namespace lossc::cpu
