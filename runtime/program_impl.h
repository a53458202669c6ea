// What a compiled program holds.
#pragma once

#include <set>

#include "compiler/cpu/kernel_abi.h"
#include "compiler/layout.h"
#include "lossc/program.h"

namespace lossc {

namespace cpu {
struct CpuKernels;
}

struct Program::Impl {
  Spec spec;
  Plan plan;
  Layout layout;
  std::string key;
  std::vector<ParameterInfo> parameters;
  std::vector<TensorInfo> inputs, outputs;
  std::set<std::string> advantage_names;           ///< row inputs that a batch may give one a segment
  std::shared_ptr<const cpu::CpuKernels> kernels;  ///< null: the interpreter's
};

}  // namespace lossc
