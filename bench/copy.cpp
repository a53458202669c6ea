#include "bench/copy.h"

#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lossc::bench {
namespace {

void copy_memcpy(char* to, const char* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}

#if defined(__x86_64__)

// How far ahead of the loads to prefetch. Hardware prefetchers alone leave a quarter of the bandwidth unused;
// anything from 4 to 16 KB does.
constexpr std::size_t prefetch_bytes = 8192;

__attribute__((target("avx512f"))) void copy_stream_512(char* to, const char* from, std::size_t bytes) {
  std::size_t i = 0;
  for (; i + 64 <= bytes; i += 64) {
    _mm_prefetch(from + i + prefetch_bytes, _MM_HINT_T0);
    _mm512_stream_si512(reinterpret_cast<__m512i*>(to + i), _mm512_loadu_si512(from + i));
  }
  std::memcpy(to + i, from + i, bytes - i);
  _mm_sfence();
}

__attribute__((target("avx2"))) void copy_stream_256(char* to, const char* from, std::size_t bytes) {
  std::size_t i = 0;
  for (; i + 64 <= bytes; i += 64) {
    _mm_prefetch(from + i + prefetch_bytes, _MM_HINT_T0);
    const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i));
    const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + i + 32));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i), low);
    _mm256_stream_si256(reinterpret_cast<__m256i*>(to + i + 32), high);
  }
  std::memcpy(to + i, from + i, bytes - i);
  _mm_sfence();
}

void copy_rep_movsb(char* to, const char* from, std::size_t bytes) {
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes)::"memory");
}

#endif

}  // namespace

bool has_avx512() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f") != 0;
#else
  return false;
#endif
}

std::vector<CopyKernel> copy_kernels() {
  std::vector<CopyKernel> kernels{{"memcpy", copy_memcpy}};
#if defined(__x86_64__)
  kernels.push_back({"rep movsb", copy_rep_movsb});
  if (has_avx512()) {
    kernels.push_back({"stream 64 B", copy_stream_512});
  } else if (__builtin_cpu_supports("avx2")) {
    kernels.push_back({"stream 2x32 B", copy_stream_256});
  }
#endif
  return kernels;
}

}  // namespace lossc::bench
