// Steps: small kernels over positions of a space. What is computed stands in the generated step T:
//
//   T::kValues                 values a position
//   T::fold_of(k)              how value k is reduced
//   T::values(a, i, v)         the values at position i, reduced or stored
//   T::store(a, i, v)          where a segment's results go
//   T::map(a, i)               what follows at the same position
//   T::tail(a, v)              what one thread computes after all positions: totals v of a reduction
//
// Sums are formed in double precision over fixed pieces in a fixed order: the same bits in every run.

namespace lossc::cuda {

enum class Fold { sum, min, max };

LOSSC_INLINE double fold_identity(Fold fold) {
  return fold == Fold::sum ? 0.0 : fold == Fold::min ? double(infinity()) : -double(infinity());
}
// NaN stays.
LOSSC_INLINE double fold(Fold f, double total, double v) {
  if (f == Fold::sum) return total + v;
  if (total != total || v != v) return total != total ? total : v;
  return f == Fold::min ? (v < total ? v : total) : (v > total ? v : total);
}

constexpr int kStepWarps = kStepThreads / 32;

/// The values of all threads of a block: value k is returned in thread k.
template <class T>
LOSSC_INLINE double fold_block(double* totals, double (*warps)[kStepWarps]) {
#pragma unroll 1
  for (int mask = 16; mask > 0; mask /= 2) {
#pragma unroll
    for (int k = 0; k < T::kValues; ++k) {
      totals[k] = fold(T::fold_of(k), totals[k], __shfl_xor_sync(0xffffffffu, totals[k], mask));
    }
  }
  const int thread = threadIdx.x;
  __syncthreads();
  if (thread % 32 == 0) {
#pragma unroll
    for (int k = 0; k < T::kValues; ++k) warps[k][thread / 32] = totals[k];
  }
  __syncthreads();
  if (thread >= T::kValues) return 0.0;
  const Fold f = T::fold_of(thread);
  double v = warps[thread][0];
#pragma unroll 1
  for (int w = 1; w < kStepWarps; ++w) v = fold(f, v, warps[thread][w]);
  return v;
}

/// True in all threads of the block that arrives last; everything the others wrote before is then visible.
LOSSC_INLINE bool last_block(unsigned* ticket) {
  __shared__ int last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(ticket, gridDim.x - 1) == gridDim.x - 1;
  __syncthreads();
  if (last) __threadfence();
  return last != 0;
}

template <class T, class Args>
LOSSC_INLINE void map_step(const Args& a) {
  const i64 count = a.head.counts[T::kSpace];
#pragma unroll 1
  for (i64 i = i64(blockIdx.x) * kStepThreads + threadIdx.x; i < count; i += i64(gridDim.x) * kStepThreads) {
    T::map(a, i);
  }
  if constexpr (T::kTail) {
    if (last_block(a.head.tickets + T::kTicket) && threadIdx.x == 0) T::tail(a, nullptr);
  }
}

template <class T>
LOSSC_INLINE void start_totals(double* totals) {
#pragma unroll
  for (int k = 0; k < T::kValues; ++k) totals[k] = fold_identity(T::fold_of(k));
}

/// The totals of this thread's positions: every kStepThreads-th m of a range, or order[m].
template <class T, class Args>
LOSSC_INLINE void fold_positions(const Args& a, i64 begin, i64 end, const int* order, double* totals) {
  start_totals<T>(totals);
#pragma unroll 1
  for (i64 m = begin + threadIdx.x; m < end; m += kStepThreads) {
    float v[T::kValues];
    T::values(a, order ? i64(order[m]) : m, v);
#pragma unroll
    for (int k = 0; k < T::kValues; ++k) totals[k] = fold(T::fold_of(k), totals[k], v[k]);
  }
}

/// Every block leaves what its positions come to; the last one folds that.
template <class T, class Args>
LOSSC_INLINE void reduce_step(const Args& a) {
  __shared__ double warps[T::kValues][kStepWarps];
  __shared__ float results[T::kValues];
  const i64 count = a.head.counts[T::kSpace];
  const i64 begin = i64(blockIdx.x) * kReductionBlock;
  const int thread = threadIdx.x;
  double totals[T::kValues];
  fold_positions<T>(a, begin, begin + kReductionBlock < count ? begin + kReductionBlock : count, nullptr,
                    totals);
#pragma unroll 1
  for (bool last = false;; last = true) {
    const double folded = fold_block<T>(totals, warps);
    if (last) {
      if (thread < T::kValues) results[thread] = static_cast<float>(folded);
      break;
    }
    if (thread < T::kValues) a.head.partial[i64(blockIdx.x) * T::kValues + thread] = folded;
    if (!last_block(a.head.tickets + T::kTicket)) return;
    start_totals<T>(totals);
#pragma unroll 1
    for (unsigned b = thread; b < gridDim.x; b += kStepThreads) {
#pragma unroll
      for (int k = 0; k < T::kValues; ++k) {
        totals[k] = fold(T::fold_of(k), totals[k], a.head.partial[i64(b) * T::kValues + k]);
      }
    }
  }
  __syncthreads();
  if (thread == 0) T::tail(a, results);
}

/// One block a segment.
template <class T, class Args>
LOSSC_INLINE void segment_step(const Args& a) {
  __shared__ double warps[T::kValues][kStepWarps];
  const Map& map = a.maps[T::kMap];
#pragma unroll 1
  for (i64 s = blockIdx.x; s < a.head.counts[T::kSpace]; s += gridDim.x) {
    double totals[T::kValues];
    fold_positions<T>(a, map.offsets[s], map.offsets[s + 1], map.order, totals);
    const double folded = fold_block<T>(totals, warps);
    const int thread = threadIdx.x;
    if (thread < T::kValues) T::store(a, s, thread, static_cast<float>(folded));
    if constexpr (T::kMaps) {
      __syncthreads();
      if (thread == 0) T::map(a, s);
    }
  }
  if constexpr (T::kTail) {
    if (last_block(a.head.tickets + T::kTicket) && threadIdx.x == 0) T::tail(a, nullptr);
  }
}

/// Scalars alone: one thread.
template <class T, class Args>
LOSSC_INLINE void scalar_step(const Args& a) {
  if (threadIdx.x == 0) T::tail(a, nullptr);
}

}  // namespace lossc::cuda
