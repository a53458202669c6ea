// What the files of the driver share.
#pragma once

#include "runtime/cuda/driver.h"

namespace lossc::cuda {

/// The driver if it is initialised and may be called; null before the first driver() and in a child of
/// fork(). For destructors, which must neither throw nor bring the driver up.
const Driver* usable_driver() noexcept;

}  // namespace lossc::cuda
