#include "runtime/threads.h"

#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <algorithm>
#include <cstdlib>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "lossc/program.h"

namespace lossc {

namespace {

// FTZ and DAZ: products of tiny probabilities would otherwise cost a microcode assist each.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040); }
  ~FlushDenormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#endif
};

tbb::task_arena& arena() {
  static auto* arena = new tbb::task_arena(num_threads());  // leaked: workers may outlive static destructors
  return *arena;
}

}  // namespace

int num_threads() {
  static const int threads = [] {
    if (const char* text = std::getenv("LOSSC_NUM_THREADS")) {
      char* end = nullptr;
      const long n = std::strtol(text, &end, 10);
      if (end != text && *end == '\0' && n >= 1 && n <= 4096) return static_cast<int>(n);
    }
    return std::max(1, static_cast<int>(tbb::this_task_arena::max_concurrency()));
  }();
  return threads;
}

void parallel_pieces(std::int64_t count, std::int64_t piece,
                     const std::function<void(std::int64_t, std::int64_t)>& body) {
  if (count <= 0) return;
  if (count <= piece || num_threads() == 1) {
    const FlushDenormals mode;
    for (std::int64_t begin = 0; begin < count; begin += piece) body(begin, std::min(begin + piece, count));
    return;
  }
  const std::int64_t pieces = (count + piece - 1) / piece;
  arena().execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<std::int64_t>(0, pieces, 1),
        [&](const tbb::blocked_range<std::int64_t>& range) {
          const FlushDenormals mode;
          for (std::int64_t i = range.begin(); i < range.end(); ++i) {
            body(i * piece, std::min((i + 1) * piece, count));
          }
        },
        tbb::simple_partitioner());
  });
}

}  // namespace lossc
