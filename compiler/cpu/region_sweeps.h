// The functions of a region whose loops run over a row's elements.
#pragma once

#include <string>

#include "compiler/cpu/codegen.h"
#include "compiler/cpu/element_emitter.h"
#include "compiler/cpu/region_frame.h"
#include "compiler/cpu/region_shape.h"

namespace lossc::cpu {

class RegionSweeps {
 public:
  RegionSweeps(Codegen& codegen, const RegionShape& shape, RegionFrame& frame, std::string prefix)
      : c_(codegen), b_(codegen.b), shape_(shape), frame_(frame), prefix_(std::move(prefix)) {}

  // Each emits one function and returns its name.

  /// anchor(x) of a phase: the largest of a sample, or (exact) of the whole row.
  std::string anchor(std::size_t k, bool exact);
  /// Accumulates a phase's statistics.
  std::string sweep(std::size_t k);
  /// Writes the gradient; `stream`: past the caches.
  std::string emit(bool stream);
  /// Both at once, of neighbouring rows.
  std::string fused(bool stream);
  /// Whether there are forms that stream. They pay where a vector is a line of memory and stores, not
  /// arithmetic, are the limit.
  bool streams() const;

 private:
  class PhaseBody;
  class EmitBody;

  /// Operands of a sweep over expressions and exponentials, spread over lanes.
  SweepOperands operands(llvm::Value* frame, const std::vector<ir::NodeId>& roots,
                         const std::set<ir::NodeId>& exponentials);
  llvm::Value* kept_address(llvm::Value* kept, std::size_t i) {
    return c_.at(kept, 4 * shape_.kept_stride() * static_cast<std::int64_t>(i));
  }
  DType dtype_of(ir::NodeId input) const {
    return c_.layout.tensors[static_cast<std::size_t>(c_.layout.tensor_of.at(input))].dtype;
  }
  void preload_sparse(llvm::Value* frame);

  Codegen& c_;
  llvm::IRBuilder<>& b_;
  const RegionShape& shape_;
  RegionFrame& frame_;
  std::string prefix_;
};

}  // namespace lossc::cpu
