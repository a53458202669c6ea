// Tensors as kernels are told of them.
#pragma once

#include <cstdint>

#include "compiler/cpu/kernel_abi.h"
#include "templates/abi.h"

namespace lossc::cuda {

/// Elements `stride` bytes apart.
inline Tensor flat_tensor(void* data, std::int64_t stride, TensorRole role = kRoleValues) {
  Tensor tensor{};
  tensor.data = static_cast<char*>(data);
  tensor.stride = stride;
  tensor.inner = kFlat;
  tensor.role = role;
  return tensor;
}

inline Tensor tensor_of(const cpu::Strided& s) {
  Tensor tensor = flat_tensor(s.data, s.stride);
  if (s.inner > 0) tensor.inner = s.inner;
  tensor.outer_stride = s.outer_stride;
  return tensor;
}

}  // namespace lossc::cuda
