// The one place where kernels are put on a stream.
#pragma once

#include <cstdint>
#include <optional>

#include "runtime/cuda/driver.h"

namespace lossc::cuda {

/// A kernel whose only argument is one block of memory.
struct Launch {
  CUkernel kernel = nullptr;
  std::int64_t blocks = 0;  ///< fewer than 1 are 1
  int threads = 0;
  int shared_bytes = 0;
  const void* arguments = nullptr;  ///< read before launch() returns
  bool overlaps = true;             ///< false: what comes before it in the stream is no kernel
};

/// Puts a kernel on a stream of the device. The default stream needs a current context, others need none.
void launch(const Device& device, const Launch& what, CUstream stream);

/// While it lives, work may be put on the stream: the default one is that of the current context, which is
/// then one of the device. Other streams know their own.
class StreamScope {
 public:
  StreamScope(const Device& device, CUstream stream);

 private:
  std::optional<ContextScope> context_;
};

}  // namespace lossc::cuda
