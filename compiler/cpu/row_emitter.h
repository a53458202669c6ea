// Emits values of rows, segments, pairs and scalars at one position of their space: the small graph between
// sweeps.
#pragma once

#include <map>

#include "compiler/cpu/codegen.h"

namespace lossc::cpu {

class RowEmitter {
 public:
  /// `position` is an index into `space` (ignored for scalars). `statistic` supplies values that sweeps
  /// computed.
  RowEmitter(Codegen& codegen, llvm::Value* args, llvm::Value* position, ir::Space space,
             std::function<llvm::Value*(ir::NodeId)> statistic)
      : c_(codegen), args_(args), position_(position), space_(space), statistic_(std::move(statistic)) {}

  /// float, i32 (an index) or i1 (a condition). A materialised value is loaded, unless `computing` names it:
  /// a step that fills its buffer computes it.
  llvm::Value* value(ir::NodeId id);
  llvm::Value* compute(ir::NodeId id);
  /// pick of an element tensor whose row begins at `row`: one load.
  llvm::Value* pick(ir::NodeId id, llvm::Value* row);

 private:
  llvm::Value* leaf(ir::NodeId id);
  llvm::Value* load_tensor(int index, llvm::Value* position);
  llvm::Value* load_buffer(int index, llvm::Value* position);
  llvm::Value* gather(const ir::Node& node);
  llvm::Value* as_index(llvm::Value* v, const ir::Node& of);

  Codegen& c_;
  llvm::Value* args_;
  llvm::Value* position_;
  ir::Space space_;
  std::function<llvm::Value*(ir::NodeId)> statistic_;
  std::map<ir::NodeId, llvm::Value*> memo_;
};

}  // namespace lossc::cpu
