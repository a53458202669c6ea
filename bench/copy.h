// The yardstick: ways to copy memory. A loss whose gradient is as large as its logits can hardly be faster
// than the fastest of them.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace lossc::bench {

struct CopyKernel {
  std::string_view name;
  /// `to` must be aligned to 64 bytes.
  void (*copy)(char* to, const char* from, std::size_t bytes);
};

/// The kernels that this machine can run.
std::vector<CopyKernel> copy_kernels();

/// True where 64-byte vectors are available.
bool has_avx512();

}  // namespace lossc::bench
