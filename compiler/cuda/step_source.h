// Steps of the plan as CUDA structs: what templates/steps.cuh asks of T.
//
// Steps that follow one another at the same positions share a kernel; a step over scalars is the tail of the
// kernel before it.
#pragma once

#include <string>
#include <vector>

#include "compiler/cuda/context.h"

namespace lossc::cuda {

/// One kernel.
struct StepKernel {
  std::string name;
  enum class Kind { map, reduce, segment, scalar } kind = Kind::scalar;
  ir::Space space = ir::Space::scalar;  ///< what its blocks are counted by
  int values = 0;
  int ticket = 0;  ///< index into Head::tickets
};

struct StepSource {
  std::string text;
  std::vector<StepKernel> kernels;
};

/// `last`: the kernels of the epilogue, which also write the results. `tickets` counts those given out.
StepSource step_source(const SourceContext& context, const std::vector<Step>& steps, const std::string& name,
                       bool last, int& tickets);

}  // namespace lossc::cuda
