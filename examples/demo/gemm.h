// Dense matrix product in fp32, for the layers of the demo's model.
#pragma once

#include <cstddef>

namespace demo {

/// A matrix in someone else's memory; a transpose is the same memory with the strides exchanged.
struct MatrixView {
  const float* data;
  std::size_t row_stride, column_stride;
};

inline MatrixView row_major(const float* data, std::size_t columns) {
  return {data, columns, 1};
}
inline MatrixView transposed(const float* data, std::size_t columns) {
  return {data, 1, columns};
}

/// c[m, n] = a[m, k] · b[k, n], added to what c holds if `accumulate`. c is row-major with n columns.
void gemm(std::size_t m, std::size_t n, std::size_t k, MatrixView a, MatrixView b, float* c, bool accumulate);

}  // namespace demo
