// A plan's kernels on one device: compiled or from the cache, loaded, ready to be launched.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compiler/cuda/cuda_source.h"
#include "compiler/kernel_key.h"
#include "runtime/cuda/driver.h"

namespace lossc::cuda {

struct StepLaunch {
  StepKernel step;
  CUkernel kernel = nullptr;
};

struct RegionLaunch {
  RegionKernel region;
  CUkernel kernel = nullptr;
};

/// The kernels of templates/batch.cuh.
struct BatchKernels {
  CUkernel offsets_to_ids = nullptr, keys = nullptr, histogram = nullptr, scan = nullptr, scatter = nullptr,
           offsets = nullptr, spread = nullptr, check_pairs = nullptr;
};

struct CudaKernels {
  const Device* device = nullptr;
  std::vector<RegionLaunch> regions;
  std::vector<StepLaunch> prologue, epilogue;
  std::vector<std::vector<StepLaunch>> seams;
  int tickets = 0;
  std::shared_ptr<const BatchKernels> batch;  ///< Null where the plan knows no segments.
  std::string source;
};

/// The ordinal of "cuda" or "cuda:N"; -1 for another device's name.
int cuda_ordinal(const std::string& device);

/// Compiles what the cache does not hold, loads it and prepares every kernel, so that nothing is compiled or
/// loaded later. `segments`: the batch's kernels are needed, too. Throws Error(unsupported | compile_failed).
std::shared_ptr<const CudaKernels> load_cuda_kernels(const Plan& plan, const Layout& layout, const Spec& spec,
                                                     const KeyFields& key, const Device& device,
                                                     bool segments, const std::string& title);

}  // namespace lossc::cuda
