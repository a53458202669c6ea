// For tests that compile with NVRTC: where there is none they are skipped.
#pragma once

#include <cstdio>
#include <cstdlib>

#include "compiler/cuda/nvrtc.h"
#include "lossc/error.h"

namespace lossc::test {

// Leaves the whole test, for a case of this version of Catch2 cannot be skipped.
inline void need_nvrtc() {
  try {
    cuda::nvrtc_build();
  } catch (const Error& error) {
    std::printf("skipped: %s\n", error.what());
    std::fflush(stdout);
    std::_Exit(77);
  }
}

}  // namespace lossc::test
