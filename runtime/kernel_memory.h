// Kernels of this process by key: a structure is compiled once, however many programs name it.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lossc/program.h"

namespace lossc {

namespace cpu {
struct CpuKernels;
}

/// The kernels of `key`, made by `compile` if this process does not have them. One thread compiles a key,
/// others wait. Counts in statistics().
std::shared_ptr<const cpu::CpuKernels> kernels_of(
    const std::string& key, const std::function<std::shared_ptr<const cpu::CpuKernels>()>& compile);

}  // namespace lossc
