// Loaded kernels of this process by key: a structure is loaded once, however many programs name it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lossc/program.h"

namespace lossc {

namespace cpu {
struct CpuKernels;
}

/// The kernels of `key`, loaded by `load` if this process does not have them. One thread loads a key, others
/// wait. Counts in statistics().
std::shared_ptr<const cpu::CpuKernels> kernels_of(
    const std::string& key, const std::function<std::shared_ptr<const cpu::CpuKernels>()>& load);

}  // namespace lossc
