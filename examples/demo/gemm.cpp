// Blocks of both operands are copied into panels that the inner loop reads front to back: 6 rows of a, 16
// columns of b, so that the 6 x 16 sums stay in registers (12 of AVX2's 16).
#include "gemm.h"

#include <algorithm>
#include <vector>

#include "parallel.h"

namespace demo {
namespace {

constexpr std::size_t panel_rows = 6, panel_columns = 16;
constexpr std::size_t block_k = 256;  // A panel of each operand: 6 KB and 16 KB, together within an L1 cache.
constexpr std::size_t block_rows = 8 * panel_rows;

typedef float Vector __attribute__((vector_size(32), aligned(4), may_alias));

/// sums[6, 16] = the product of one panel of each operand.
[[gnu::always_inline]] inline void multiply_panels(std::size_t k, const float* a, const float* b,
                                                   float* sums) {
  Vector sum[panel_rows][2] = {};
  for (std::size_t i = 0; i < k; ++i) {
    const Vector low = *reinterpret_cast<const Vector*>(b + i * panel_columns);
    const Vector high = *reinterpret_cast<const Vector*>(b + i * panel_columns + 8);
#pragma GCC unroll 6
    for (std::size_t row = 0; row < panel_rows; ++row) {
      const float factor = a[i * panel_rows + row];
      sum[row][0] += factor * low;
      sum[row][1] += factor * high;
    }
  }
#pragma GCC unroll 6
  for (std::size_t row = 0; row < panel_rows; ++row) {
    *reinterpret_cast<Vector*>(sums + row * panel_columns) = sum[row][0];
    *reinterpret_cast<Vector*>(sums + row * panel_columns + 8) = sum[row][1];
  }
}

void multiply_panels_plain(std::size_t k, const float* a, const float* b, float* sums) {
  multiply_panels(k, a, b, sums);
}

#if defined(__x86_64__)
[[gnu::target("avx2,fma")]] void multiply_panels_avx2(std::size_t k, const float* a, const float* b,
                                                      float* sums) {
  multiply_panels(k, a, b, sums);
}
#endif

using MultiplyPanels = void (*)(std::size_t, const float*, const float*, float*);

MultiplyPanels choose_multiply_panels() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return multiply_panels_avx2;
#endif
  return multiply_panels_plain;
}

/// Copies `width` lines of k numbers side by side: out[i * width + line]. Lines beyond `lines` are zeros.
template <std::size_t width>
void pack(const float* data, std::size_t line_stride, std::size_t k_stride, std::size_t lines, std::size_t k,
          float* out) {
  if (lines == width && line_stride == 1) {
    for (std::size_t i = 0; i < k; ++i) {
      for (std::size_t line = 0; line < width; ++line) out[i * width + line] = data[i * k_stride + line];
    }
    return;
  }
  for (std::size_t line = 0; line < width; ++line) {
    const float* from = data + line * line_stride;
    for (std::size_t i = 0; i < k; ++i) out[i * width + line] = line < lines ? from[i * k_stride] : 0;
  }
}

/// Stores or adds the part of a 6 x 16 product that lies within c.
void put(const float* sums, std::size_t rows, std::size_t columns, std::size_t row_stride, bool add,
         float* c) {
  for (std::size_t row = 0; row < rows; ++row) {
    const float* from = sums + row * panel_columns;
    float* to = c + row * row_stride;
    if (columns == panel_columns) {  // A count known here lets the compiler use whole vectors.
      for (std::size_t i = 0; i < panel_columns; ++i) to[i] = add ? to[i] + from[i] : from[i];
    } else {
      for (std::size_t i = 0; i < columns; ++i) to[i] = add ? to[i] + from[i] : from[i];
    }
  }
}

}  // namespace

void gemm(std::size_t m, std::size_t n, std::size_t k, MatrixView a, MatrixView b, float* c,
          bool accumulate) {
  static const MultiplyPanels multiply = choose_multiply_panels();
  const std::size_t column_panels = (n + panel_columns - 1) / panel_columns;
  std::vector<float> packed_b(column_panels * panel_columns * std::min(k, block_k));

  for (std::size_t k_begin = 0; k_begin < k; k_begin += block_k) {
    const std::size_t depth = std::min(block_k, k - k_begin);
    const bool add = accumulate || k_begin > 0;
    parallel_chunks(column_panels, 4, [&](std::size_t begin, std::size_t end) {
      for (std::size_t panel = begin; panel < end; ++panel) {
        const std::size_t column = panel * panel_columns;
        pack<panel_columns>(b.data + k_begin * b.row_stride + column * b.column_stride, b.column_stride,
                            b.row_stride, std::min(panel_columns, n - column), depth,
                            &packed_b[column * depth]);
      }
    });
    parallel_chunks(m, block_rows, [&](std::size_t row_begin, std::size_t row_end) {
      float packed_a[block_rows * block_k];
      for (std::size_t row = row_begin; row < row_end; row += panel_rows) {
        pack<panel_rows>(a.data + row * a.row_stride + k_begin * a.column_stride, a.row_stride,
                         a.column_stride, std::min(panel_rows, row_end - row), depth,
                         packed_a + (row - row_begin) * depth);
      }
      for (std::size_t column = 0; column < n; column += panel_columns) {
        const std::size_t columns = std::min(panel_columns, n - column);
        for (std::size_t row = row_begin; row < row_end; row += panel_rows) {
          float sums[panel_rows * panel_columns];
          multiply(depth, packed_a + (row - row_begin) * depth, &packed_b[column * depth], sums);
          put(sums, std::min(panel_rows, row_end - row), columns, n, add, c + row * n + column);
        }
      }
    });
  }
}

}  // namespace demo
