// Steps: small kernels over positions of a space. What is computed stands in the generated step T:
//
//   T::kValues                 values a position
//   T::kFold[]                 how they are reduced
//   T::values(a, i, v)         the values at position i, reduced or stored
//   T::store(a, i, v)          where a segment's results go
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

constexpr int kStepThreads = 256;
constexpr int kReductionBlock = 4096;  ///< positions that one block reduces; part of the result's bits

/// All threads' values, in every thread. One function for all steps: code that is compiled once.
static __device__ __noinline__ double fold_block(Fold f, double v, double* warps) {
#pragma unroll 1
  for (int mask = 16; mask > 0; mask /= 2) v = fold(f, v, __shfl_xor_sync(0xffffffffu, v, mask));
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  __syncthreads();
  if (lane == 0) warps[warp] = v;
  __syncthreads();
  v = warps[0];
#pragma unroll 1
  for (int w = 1; w < kStepThreads / 32; ++w) v = fold(f, v, warps[w]);
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

template <class T, class Args>
LOSSC_INLINE void reduce_step(const Args& a) {
  __shared__ double warps[kStepThreads / 32];
  const i64 count = a.head.counts[T::kSpace];
  const i64 begin = i64(blockIdx.x) * kReductionBlock;
  const i64 end = begin + kReductionBlock < count ? begin + kReductionBlock : count;
  double totals[T::kValues];
#pragma unroll
  for (int k = 0; k < T::kValues; ++k) totals[k] = fold_identity(T::fold_of(k));
#pragma unroll 1
  for (i64 i = begin + threadIdx.x; i < end; i += kStepThreads) {
    float v[T::kValues];
    T::values(a, i, v);
#pragma unroll
    for (int k = 0; k < T::kValues; ++k) totals[k] = fold(T::fold_of(k), totals[k], v[k]);
  }
#pragma unroll
  for (int k = 0; k < T::kValues; ++k) {
    const double v = fold_block(T::fold_of(k), totals[k], warps);
    if (threadIdx.x == 0) a.head.partial[i64(blockIdx.x) * T::kValues + k] = v;
  }
  if (!last_block(a.head.tickets + T::kTicket)) return;
  float results[T::kValues];
#pragma unroll
  for (int k = 0; k < T::kValues; ++k) {
    double v = fold_identity(T::fold_of(k));
#pragma unroll 1
    for (int b = threadIdx.x; b < gridDim.x; b += kStepThreads) {
      v = fold(T::fold_of(k), v, a.head.partial[i64(b) * T::kValues + k]);
    }
    results[k] = static_cast<float>(fold_block(T::fold_of(k), v, warps));
  }
  if (threadIdx.x == 0) T::tail(a, results);
}

/// One block a segment.
template <class T, class Args>
LOSSC_INLINE void segment_step(const Args& a) {
  __shared__ double warps[kStepThreads / 32];
  const Map& map = a.maps[T::kMap];
#pragma unroll 1
  for (i64 s = blockIdx.x; s < a.head.counts[T::kSpace]; s += gridDim.x) {
    double totals[T::kValues];
#pragma unroll
    for (int k = 0; k < T::kValues; ++k) totals[k] = fold_identity(T::fold_of(k));
#pragma unroll 1
    for (i64 m = map.offsets[s] + threadIdx.x; m < map.offsets[s + 1]; m += kStepThreads) {
      float v[T::kValues];
      T::values(a, map.order ? i64(map.order[m]) : m, v);
#pragma unroll
      for (int k = 0; k < T::kValues; ++k) totals[k] = fold(T::fold_of(k), totals[k], v[k]);
    }
#pragma unroll
    for (int k = 0; k < T::kValues; ++k) {
      const double v = fold_block(T::fold_of(k), totals[k], warps);
      if (threadIdx.x == 0) T::store(a, s, k, static_cast<float>(v));
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
