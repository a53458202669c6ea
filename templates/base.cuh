// Types, conversions, memory access and small mathematics of the generated kernels.

typedef long long i64;
typedef unsigned long long u64;

#define LOSSC_INLINE static __device__ __forceinline__

namespace lossc::cuda {

/// What every kernel begins with. One that is launched while the kernel before it still runs waits here for
/// its results, and lets the next one be launched.
LOSSC_INLINE void begin_kernel() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

LOSSC_INLINE float infinity() {
  return __int_as_float(0x7f800000);
}
LOSSC_INLINE float nan() {
  return __int_as_float(0x7fffffff);
}
constexpr float kLog2e = 1.44269504088896341f;
constexpr float kLn2 = 0.693147180559945309f;

// ---- element types

struct fp32 {
  typedef float Bits;
  static constexpr int kPerWord = 1;
  LOSSC_INLINE float get(unsigned word, int) { return __uint_as_float(word); }
  LOSSC_INLINE unsigned pack(const float* v) { return __float_as_uint(v[0]); }
  LOSSC_INLINE float read(const char* p) { return *reinterpret_cast<const float*>(p); }
  LOSSC_INLINE void write(char* p, float v) { *reinterpret_cast<float*>(p) = v; }
};

struct bf16 {
  typedef unsigned short Bits;
  static constexpr int kPerWord = 2;
  LOSSC_INLINE float get(unsigned word, int i) {
    return __uint_as_float(i == 0 ? word << 16 : word & 0xffff0000u);
  }
  LOSSC_INLINE unsigned pack(const float* v) {
    unsigned word;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(v[1]), "f"(v[0]));
    return word;
  }
  LOSSC_INLINE float read(const char* p) { return get(*reinterpret_cast<const unsigned short*>(p), 0); }
  LOSSC_INLINE void write(char* p, float v) {
    const float pair[2] = {v, 0.0f};
    *reinterpret_cast<unsigned short*>(p) = static_cast<unsigned short>(pack(pair));
  }
};

struct fp16 {
  typedef unsigned short Bits;
  static constexpr int kPerWord = 2;
  LOSSC_INLINE float get(unsigned word, int i) {
    const unsigned short half = static_cast<unsigned short>(i == 0 ? word & 0xffffu : word >> 16);
    float v;
    asm("cvt.f32.f16 %0, %1;" : "=f"(v) : "h"(half));
    return v;
  }
  LOSSC_INLINE unsigned pack(const float* v) {
    unsigned word;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(v[1]), "f"(v[0]));
    return word;
  }
  LOSSC_INLINE float read(const char* p) { return get(*reinterpret_cast<const unsigned short*>(p), 0); }
  LOSSC_INLINE void write(char* p, float v) {
    const float pair[2] = {v, 0.0f};
    *reinterpret_cast<unsigned short*>(p) = static_cast<unsigned short>(pack(pair));
  }
};

// ---- 16-byte accesses with a cache hint

// How long a line is wanted in the second-level cache: a row that is swept again, one that is not.
enum class Keep { normal, last, first };

LOSSC_INLINE u64 cache_policy(Keep keep) {
  u64 policy = 0;
  if (keep == Keep::last) asm("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  if (keep == Keep::first) asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

template <Keep kKeep>
LOSSC_INLINE void load16(unsigned* w, const char* p, u64 policy) {
  if constexpr (kKeep == Keep::normal) {
    asm volatile("ld.global.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "l"(p));
  } else {
    asm volatile("ld.global.L1::no_allocate.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "l"(p), "l"(policy));
  }
}

template <Keep kKeep>
LOSSC_INLINE void store16(char* p, const unsigned* w, u64 policy) {
  if constexpr (kKeep == Keep::normal) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(w[0]), "r"(w[1]), "r"(w[2]),
                 "r"(w[3])
                 : "memory");
  } else {
    asm volatile("st.global.L2::cache_hint.v4.u32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(p), "r"(w[0]), "r"(w[1]),
                 "r"(w[2]), "r"(w[3]), "l"(policy)
                 : "memory");
  }
}

/// kWidth elements of type T in registers, as they lie in memory.
template <class T, int kWidth>
struct Vector {
  static constexpr int kWords = kWidth / T::kPerWord;
  unsigned words[kWords];

  __device__ __forceinline__ float get(int i) const {
    return T::get(words[i / T::kPerWord], i % T::kPerWord);
  }
  __device__ __forceinline__ void set(const float* v) {
#pragma unroll
    for (int i = 0; i < kWords; ++i) words[i] = T::pack(v + i * T::kPerWord);
  }
  /// At multiples of 16 bytes.
  template <Keep kKeep>
  __device__ __forceinline__ void load(const char* p, u64 policy) {
#pragma unroll
    for (int i = 0; i < kWords; i += 4) load16<kKeep>(words + i, p + 4 * i, policy);
  }
  template <Keep kKeep>
  __device__ __forceinline__ void store(char* p, u64 policy) const {
#pragma unroll
    for (int i = 0; i < kWords; i += 4) store16<kKeep>(p + 4 * i, words + i, policy);
  }
};

/// Begins to copy a Vector from global into shared memory, which the compiler does not see before
/// wait_for_copies(); its pieces of 16 bytes `kStride` pieces apart.
/// Returns the place behind it.
template <class V, int kStride>
LOSSC_INLINE uint4* copy_async(uint4* to, const char* from) {
#pragma unroll
  for (int i = 0; i < V::kWords / 4; ++i) {
    asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16;" ::"r"(
                     static_cast<unsigned>(__cvta_generic_to_shared(to))),
                 "l"(from + 16 * i));
    to += kStride;
  }
  return to;
}
/// Until everything this thread began to copy has arrived.
LOSSC_INLINE void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

// ---- the argument block

LOSSC_INLINE char* address(const Tensor& t, i64 i) {
  const unsigned n = static_cast<unsigned>(i), outer = __umulhi(n, t.factor) >> t.shift;
  return t.data + n * t.stride + outer * t.jump;
}

template <int kTensors, int kBuffers, int kMaps, int kParameters, int kResults>
struct Arguments {
  Head head;
  Tensor tensors[kTensors > 0 ? kTensors : 1];
  float* buffers[kBuffers > 0 ? kBuffers : 1];
  Map maps[kMaps > 0 ? kMaps : 1];
  const float* parameter_pointers[kParameters > 0 ? kParameters : 1];
  float* results[kResults > 0 ? kResults : 1];
  float parameters[kParameters > 0 ? kParameters : 1];

  __device__ __forceinline__ float real(int t, i64 i) const {
    return *reinterpret_cast<const float*>(address(tensors[t], i));
  }
  __device__ __forceinline__ bool boolean(int t, i64 i) const {
    return *reinterpret_cast<const unsigned char*>(address(tensors[t], i)) != 0;
  }
  __device__ __forceinline__ i64 integer(int t, i64 i) const {
    const char* p = address(tensors[t], i);
    return tensors[t].wide ? *reinterpret_cast<const i64*>(p) : *reinterpret_cast<const int*>(p);
  }
  // What is out of range never becomes an address.
  /// Negative or ignored: -1; beyond the vocabulary: vocab.
  __device__ __forceinline__ int label(int t, i64 i, int vocab) const {
    const i64 v = integer(t, i);
    const i64 ignored = head.ignore_pointer ? *head.ignore_pointer : head.ignore_index;
    if (v < 0 || (head.ignores && v == ignored)) return -1;
    return v < vocab ? static_cast<int>(v) : vocab;
  }
  /// Negative: -1; no segment of the batch: -2. An absent tensor has a value of its own.
  __device__ __forceinline__ int segment(int t, i64 i) const {
    const i64 v = integer(t, i);
    if (tensors[t].role == kRoleValues) return static_cast<int>(v);
    if (head.status->bad_offset != 0) return -2;
    return v < 0 ? -1 : v < head.counts[4] ? static_cast<int>(v) : -2;
  }
  /// A member of a pair; negative or no segment of the batch: -1.
  __device__ __forceinline__ int member(int t, i64 i) const {
    const i64 v = integer(t, i);
    return v >= 0 && v < head.counts[4] ? static_cast<int>(v) : -1;
  }
  __device__ __forceinline__ float parameter(int k) const {
    return parameter_pointers[k] ? *parameter_pointers[k] : parameters[k];
  }
  __device__ __forceinline__ float scalar(int k) const { return head.scalars[k]; }
  __device__ __forceinline__ float size(int space) const { return static_cast<float>(head.counts[space]); }
};

// ---- mathematics

/// a * b, and 0 where a is 0, whatever b is.
LOSSC_INLINE float zero_mul(float a, float b) {
  return a == 0.0f ? 0.0f : a * b;
}
LOSSC_INLINE float minimum(float a, float b) {
  return a != a || b != b ? nan() : fminf(a, b);
}
LOSSC_INLINE float maximum(float a, float b) {
  return a != a || b != b ? nan() : fmaxf(a, b);
}
LOSSC_INLINE float clip(float x, float low, float high) {
  return minimum(maximum(x, low), high);
}
LOSSC_INLINE float sign(float x) {
  return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x;
}
LOSSC_INLINE bool is_finite(float x) {
  return fabsf(x) < infinity();
}
LOSSC_INLINE float sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return (x < 0.0f ? e : 1.0f) / (1.0f + e);
}
LOSSC_INLINE float softplus(float x) {
  return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))) + (x != x ? x : 0.0f);
}
LOSSC_INLINE float log_sigmoid(float x) {
  return -softplus(-x);
}
/// log(1 - exp(x)) for x <= 0
LOSSC_INLINE float log1mexp(float x) {
  return x > -kLn2 ? logf(-expm1f(x)) : log1pf(-expf(x));
}

/// 2^x; one instruction.
LOSSC_INLINE float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/// exp(x - anchor) as a sweep forms it. The difference comes first: products of large logits would not be
/// finite.
LOSSC_INLINE float exponential(float x, float anchor) {
  return exp2_fast((x - anchor) * kLog2e);
}

/// Whether a sum of exponentials tells that its sampled anchor was near the maximum; false for NaN. The true
/// maximum is then at most 30 above it, which costs the logarithm no more digits than the logits' own spread.
LOSSC_INLINE bool good_sum(float sum) {
  return sum > 0.0f && sum < 1e13f;
}

/// The element of a row at an index; negative: 0, beyond the vocabulary: NaN.
template <class T>
LOSSC_INLINE float pick(const char* row, int index, int vocab) {
  if (static_cast<unsigned>(index) < static_cast<unsigned>(vocab))
    return T::read(row + i64(index) * sizeof(typename T::Bits));
  return index < 0 ? 0.0f : nan();
}

LOSSC_INLINE void mark_bad(Status* status, i64 row) {
  atomicAdd(&status->bad_rows, 1ull);
  atomicMax(&status->first_bad_row, ~static_cast<u64>(row));
}

}  // namespace lossc::cuda
