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
namespace cuda {
struct CudaKernels;
}

struct Program::Impl {
  Spec spec;
  Plan plan;
  Layout layout;
  std::string key;
  std::vector<ParameterInfo> parameters;
  std::vector<TensorInfo> inputs, outputs;
  std::set<std::string> advantage_names;                  ///< row inputs that a batch may give one a segment
  std::shared_ptr<const cpu::CpuKernels> kernels;         ///< null: another device's
  std::shared_ptr<const cuda::CudaKernels> cuda_kernels;  ///< null: another device's
  bool asynchronous = false;                              ///< run() returns before the results are there
};

}  // namespace lossc
