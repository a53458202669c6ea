// Tensors as kernels are told of them.
#pragma once

#include <bit>
#include <cstdint>

#include "compiler/cpu/kernel_abi.h"
#include "templates/abi.h"

namespace lossc::cuda {

/// Elements `stride` bytes apart.
inline Tensor flat_tensor(void* data, std::int64_t stride, TensorRole role = kRoleValues) {
  Tensor tensor{};
  tensor.data = static_cast<char*>(data);
  tensor.stride = stride;
  tensor.role = role;
  return tensor;
}

inline Tensor tensor_of(const cpu::Strided& s) {
  if (s.inner == 1) return flat_tensor(s.data, s.outer_stride);
  Tensor tensor = flat_tensor(s.data, s.stride);
  if (s.inner <= 0) return tensor;
  tensor.jump = s.outer_stride - s.inner * s.stride;
  // i / inner for i of 31 bits (Granlund and Montgomery, Division by invariant integers using multiplication,
  // 1994).
  const auto inner = static_cast<std::uint64_t>(s.inner);
  const int bits = std::bit_width(inner - 1);
  tensor.factor = static_cast<unsigned>(((std::uint64_t{1} << (31 + bits)) + inner - 1) / inner);
  tensor.shift = bits - 1;
  return tensor;
}

}  // namespace lossc::cuda
