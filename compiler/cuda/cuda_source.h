// Plan -> CUDA source: regions and steps as structs of mathematics, in front of them the templates that move
// the data, behind them the kernels.
//
// Promise: the source depends on the structure of the plan, the vocabulary and the types alone; it includes
// no header. Kernels and their launch shapes are described beside it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "compiler/cuda/step_source.h"
#include "compiler/layout.h"

namespace lossc::cuda {

/// How a region is run.
struct RegionKernel {
  std::string name;
  int threads = 0;
  int blocks_per_sm = 1;
  int cluster = 1;          ///< blocks that work on one row
  int shared_bytes = 0;     ///< dynamic shared memory of a block
  std::string description;  ///< "resident, 512 threads, 8 vectors a thread, 1 block a row"
};

/// Kernels that are compiled together. Several units are compiled at once, on as many cores.
struct CudaUnit {
  std::string name;  ///< "prologue", "region0", "seam0", "epilogue"; its kernels' names begin with it
  std::string text;
};

struct CudaSource {
  std::vector<CudaUnit> units;
  std::string text;  ///< all units as one, to be read
  std::vector<RegionKernel> regions;
  std::vector<StepKernel> prologue, epilogue;
  std::vector<std::vector<StepKernel>> seams;
  int tickets = 0;

  std::vector<std::string> kernel_names() const;
};

/// `arch`: "sm_90a"; decides how rows are held, by the clusters and the shared memory that it has. `relax`
/// asks for kernels that need fewer registers: 0 at first, more where the compiler had to spill.
CudaSource cuda_source(const Plan& plan, const Layout& layout, const Spec& spec, std::string_view arch,
                       int relax = 0);

/// The largest `relax` that differs from the one before.
inline constexpr int kMostRelaxed = 2;

}  // namespace lossc::cuda
