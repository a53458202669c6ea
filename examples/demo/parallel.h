// Loops over threads. What a task computes does not depend on how tasks are spread, so results are the same
// for any number of threads.
#pragma once

#include <tbb/parallel_for.h>

#include <cstddef>

namespace demo {

/// Calls `body(i)` for i in [0, count), several at once.
template <class Body>
void parallel_for(std::size_t count, const Body& body) {
  tbb::parallel_for(std::size_t{0}, count, body);
}

/// Calls `body(begin, end)` over [0, count) in pieces of `grain`.
template <class Body>
void parallel_chunks(std::size_t count, std::size_t grain, const Body& body) {
  tbb::parallel_for(std::size_t{0}, (count + grain - 1) / grain, [&](std::size_t chunk) {
    const std::size_t begin = chunk * grain;
    body(begin, begin + grain < count ? begin + grain : count);
  });
}

}  // namespace demo
