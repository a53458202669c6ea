// What NVRTC's log says.
#pragma once

#include <string>

namespace lossc::cuda {

/// The lines of `source` round each of the first errors that `log` reports in the file `name`, numbered and
/// the line of the error marked; empty where it reports none there.
std::string source_excerpt(const std::string& log, const std::string& name, const std::string& source);

}  // namespace lossc::cuda
