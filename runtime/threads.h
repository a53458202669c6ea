// Threads of the CPU backend: TBB, bounded by LOSSC_NUM_THREADS.
#pragma once

#include <cstdint>
#include <functional>

namespace lossc {

/// body(begin, end) over disjoint pieces of [0, count), each of `piece` or fewer, on num_threads() threads.
/// Denormals count as zero while a body runs; the caller's floating-point mode is left as it was. Exceptions
/// reach the caller.
void parallel_pieces(std::int64_t count, std::int64_t piece,
                     const std::function<void(std::int64_t, std::int64_t)>& body);

}  // namespace lossc
