// A module of its own: brings the segments of a batch into the form that steps read.
//
// cu_seqlens become a segment id for each row; unordered ids become an order of rows in which segments are
// contiguous and rows ascend: a stable radix sort, so that sums over a segment have the same bits in every
// run.

namespace lossc::cuda {

constexpr int kBatchThreads = 256;
constexpr int kTile = 2048;  ///< positions that one block sorts: 256 a warp, in order
constexpr int kDigits = 256;
constexpr int kWarps = kBatchThreads / 32;

LOSSC_INLINE i64 integer(const Tensor& t, i64 i) {
  const char* p = address(t, i);
  return t.wide ? *reinterpret_cast<const i64*>(p) : *reinterpret_cast<const int*>(p);
}

/// -1: none; -2: out of range.
LOSSC_INLINE int group_of(const BatchArguments& a, i64 i) {
  const i64 v = integer(a.index, i);
  if (v < 0) return -1;
  return v < a.groups ? static_cast<int>(v) : -2;
}

/// cu_seqlens -> offsets and the id of each row. What does not ascend from 0 to the number of rows is noted
/// in the status, and no address is formed from it.
extern "C" __global__ void __launch_bounds__(kBatchThreads)
    batch_offsets_to_ids(const __grid_constant__ BatchArguments a) {
  begin_kernel();
  const i64 stride = i64(gridDim.x) * kBatchThreads;
  const i64 first = i64(blockIdx.x) * kBatchThreads + threadIdx.x;
  for (i64 s = first; s <= a.groups; s += stride) {
    const i64 row = integer(a.index, s);
    const bool good = (s == 0 ? row == 0 : row >= integer(a.index, s - 1)) && row >= 0 && row <= a.count &&
                      (s < a.groups || row == a.count);
    if (!good) {
      atomicMax(&a.status->bad_offset, ~static_cast<u64>(s));
      atomicMax(&a.status->any_bad_offset, ~static_cast<u64>(s));
    }
    a.offsets[s] = row < 0 ? 0 : row > a.count ? a.count : row;
  }
  for (i64 r = first; r < a.count; r += stride) {
    i64 low = 0, high = a.groups;  // the last segment that begins at r or before
    while (high - low > 1) {
      const i64 middle = (low + high) / 2;
      if (integer(a.index, middle) <= r) {
        low = middle;
      } else {
        high = middle;
      }
    }
    a.keys_out[r] = a.groups > 0 ? static_cast<int>(low) : -1;
  }
}

/// Keys to sort by: what is in no group comes last.
extern "C" __global__ void __launch_bounds__(kBatchThreads)
    batch_keys(const __grid_constant__ BatchArguments a) {
  begin_kernel();
  const i64 stride = i64(gridDim.x) * kBatchThreads;
  for (i64 i = i64(blockIdx.x) * kBatchThreads + threadIdx.x; i < a.count; i += stride) {
    const int group = group_of(a, i);
    a.keys_out[i] = group < 0 ? static_cast<int>(a.groups) : group;
    a.order_out[i] = static_cast<int>(i);
  }
}

LOSSC_INLINE int digit_of(const BatchArguments& a, int key) {
  return (key >> a.shift) & (kDigits - 1);
}

extern "C" __global__ void __launch_bounds__(kBatchThreads)
    batch_histogram(const __grid_constant__ BatchArguments a) {
  begin_kernel();
  __shared__ unsigned counts[kDigits];
  for (int d = threadIdx.x; d < kDigits; d += kBatchThreads) counts[d] = 0;
  __syncthreads();
  const i64 begin = i64(blockIdx.x) * kTile;
  const i64 end = begin + kTile < a.count ? begin + kTile : a.count;
  for (i64 i = begin + threadIdx.x; i < end; i += kBatchThreads)
    atomicAdd(&counts[digit_of(a, a.keys_in[i])], 1u);
  __syncthreads();
  for (int d = threadIdx.x; d < kDigits; d += kBatchThreads)
    a.histogram[d * a.tiles + blockIdx.x] = counts[d];
}

/// Exclusive sums over the whole histogram, digit by digit: one block.
extern "C" __global__ void __launch_bounds__(1024) batch_scan(const __grid_constant__ BatchArguments a) {
  begin_kernel();
  __shared__ unsigned warps[32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  unsigned base = 0;
  for (i64 first = 0; first < kDigits * a.tiles; first += 1024) {
    const i64 i = first + threadIdx.x;
    const unsigned own = i < kDigits * a.tiles ? a.histogram[i] : 0;
    unsigned sum = own;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const unsigned other = __shfl_up_sync(0xffffffffu, sum, d);
      if (lane >= d) sum += other;
    }
    if (lane == 31) warps[warp] = sum;
    __syncthreads();
    if (warp == 0) {
      unsigned w = warps[lane];
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const unsigned other = __shfl_up_sync(0xffffffffu, w, d);
        if (lane >= d) w += other;
      }
      warps[lane] = w;
    }
    __syncthreads();
    const unsigned before = base + (warp > 0 ? warps[warp - 1] : 0) + sum - own;
    if (i < kDigits * a.tiles) a.histogram[i] = before;
    base += warps[31];
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(kBatchThreads)
    batch_scatter(const __grid_constant__ BatchArguments a) {
  begin_kernel();
  __shared__ unsigned next[kWarps][kDigits];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int k = threadIdx.x; k < kWarps * kDigits; k += kBatchThreads) next[k / kDigits][k % kDigits] = 0;
  __syncthreads();
  constexpr int kShare = kTile / kWarps;
  const i64 begin = i64(blockIdx.x) * kTile + warp * kShare;
  for (int k = 0; k < kShare; k += 32) {
    const i64 i = begin + k + lane;
    if (i < a.count) atomicAdd(&next[warp][digit_of(a, a.keys_in[i])], 1u);
  }
  __syncthreads();
  for (int d = threadIdx.x; d < kDigits; d += kBatchThreads) {
    unsigned place = a.histogram[d * a.tiles + blockIdx.x];
    for (int w = 0; w < kWarps; ++w) {
      const unsigned count = next[w][d];
      next[w][d] = place;
      place += count;
    }
  }
  __syncthreads();
  for (int k = 0; k < kShare; k += 32) {
    const i64 i = begin + k + lane;
    const bool mine = i < a.count;
    const int key = mine ? a.keys_in[i] : 0;
    const int digit = mine ? digit_of(a, key) : kDigits;
    const unsigned same = __match_any_sync(0xffffffffu, digit);
    const unsigned rank = __popc(same & ((1u << lane) - 1));
    unsigned place = 0;
    if (mine) place = next[warp][digit] + rank;
    __syncwarp();
    if (mine && rank == 0) next[warp][digit] += __popc(same);
    __syncwarp();
    if (mine) {
      a.keys_out[place] = key;
      a.order_out[place] = a.order_in[i];
    }
  }
}

/// Where each group begins among the sorted keys.
extern "C" __global__ void __launch_bounds__(kBatchThreads)
    batch_offsets(const __grid_constant__ BatchArguments a) {
  begin_kernel();
  const i64 stride = i64(gridDim.x) * kBatchThreads;
  for (i64 s = i64(blockIdx.x) * kBatchThreads + threadIdx.x; s <= a.groups; s += stride) {
    i64 low = 0, high = a.count;
    while (low < high) {
      const i64 middle = (low + high) / 2;
      if (a.keys_in[middle] < s) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    a.offsets[s] = low;
  }
}

/// A segment's value at each of its rows.
extern "C" __global__ void __launch_bounds__(kBatchThreads)
    batch_spread(const __grid_constant__ BatchArguments a) {
  begin_kernel();
  const i64 stride = i64(gridDim.x) * kBatchThreads;
  for (i64 i = i64(blockIdx.x) * kBatchThreads + threadIdx.x; i < a.count; i += stride) {
    const int group = a.status->bad_offset != 0 ? -2 : group_of(a, i);
    a.spread[i] = group >= 0    ? *reinterpret_cast<const float*>(address(a.values, group))
                  : group == -1 ? 0.0f
                                : nan();
  }
}

/// Pairs that name a segment that does not exist.
extern "C" __global__ void __launch_bounds__(kBatchThreads)
    batch_check_pairs(const __grid_constant__ BatchArguments a) {
  begin_kernel();
  const i64 stride = i64(gridDim.x) * kBatchThreads;
  for (i64 i = i64(blockIdx.x) * kBatchThreads + threadIdx.x; i < a.count; i += stride) {
    if (group_of(a, i) == -2) atomicMax(&a.status->bad_pair, ~static_cast<u64>(i));
  }
}

}  // namespace lossc::cuda
