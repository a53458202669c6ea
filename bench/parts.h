// The further parts of the benchmark. Those that need a fresh process or another number of threads run this
// program again.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "bench/measure.h"

namespace lossc::bench {

/// One thread against more, for a copy and for cross-entropy + z-loss.
nlohmann::json scaling(const Options& options);

/// Time of the first Program::compile of a process and of a second structure after it, with an empty kernel
/// cache.
nlohmann::json compile_time(const Options& options);
/// What one of its processes does.
nlohmann::json compile_once(const Options& options);

/// Growth of the resident memory during runs, against the promise of 64 bytes a row and segment plus 64 MB.
nlohmann::json memory(const Options& options);
/// The same for one case, dtype and vocabulary, in a process that has done nothing else.
nlohmann::json memory_once(const Options& options);

/// PyTorch's eager autograd on the same shapes, beside the same script's copy.
nlohmann::json torch(const Options& options);

/// Machine code of the sweeps of the first case, dtype and vocabulary, for a processor of LLVM's names.
std::string assembly(const Options& options, const std::string& cpu);

}  // namespace lossc::bench
