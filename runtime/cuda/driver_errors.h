// The driver's error codes in words.
#pragma once

#include <string>

#include "lossc/error.h"
#include "runtime/cuda/driver.h"

namespace lossc::cuda {

/// Name, number and meaning of an error, and what to do about it where that is known. `driver` may be null.
std::string describe_error(const Driver* driver, CUresult result);

/// Which of lossc's codes it is.
ErrorCode error_code(CUresult result);

}  // namespace lossc::cuda
