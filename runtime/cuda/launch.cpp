#include "runtime/cuda/launch.h"

#include <algorithm>

namespace lossc::cuda {

void launch(const Device& device, const Launch& what, CUstream stream) {
  CUlaunchConfig config{};
  config.gridDimX = static_cast<unsigned>(std::max<std::int64_t>(what.blocks, 1));
  config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = static_cast<unsigned>(what.threads);
  config.blockDimY = config.blockDimZ = 1;
  config.sharedMemBytes = static_cast<unsigned>(what.shared_bytes);
  config.hStream = stream;
  // Kernels begin with begin_kernel() of templates/base.cuh, which waits for the one before: so the next one
  // is launched while it ends.
  CUlaunchAttribute overlap{};
  overlap.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  overlap.value.programmaticStreamSerializationAllowed = 1;
  config.attrs = &overlap;
  config.numAttrs = device.overlaps_launches() && what.overlaps ? 1 : 0;
  void* parameters[] = {const_cast<void*>(what.arguments)};
  check(driver().cuLaunchKernelEx(&config, reinterpret_cast<CUfunction>(what.kernel), parameters, nullptr),
        "launching a kernel", device);
}

StreamScope::StreamScope(const Device& device, CUstream stream) {
  if (stream == nullptr || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
    context_.emplace(device);
  }
}

}  // namespace lossc::cuda
