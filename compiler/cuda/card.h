// What the choice of kernels needs to know of an architecture.
#pragma once

#include <string_view>

namespace lossc::cuda {

struct Card {
  bool clusters = false;         ///< blocks of a cluster read each other's shared memory: sm_90 and newer
  int shared_bytes = 100 << 10;  ///< shared memory of a multiprocessor, 1024 bytes a block reserved included
};

/// `arch`: "sm_80", "sm_90a". Sizes: CUDA C++ Programming Guide, technical specifications per compute
/// capability.
Card card_of(std::string_view arch);

}  // namespace lossc::cuda
