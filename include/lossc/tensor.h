// Element types and the view of a caller's tensor that every lossc interface takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace lossc {

enum class DType { fp32, bf16, fp16, fp64, i32, i64, u8, boolean };

/// Bytes of one element.
std::size_t dtype_size(DType dtype);
/// The name used in specs and messages: "fp32", "bf16", "i64", "bool", ...
std::string_view dtype_name(DType dtype);
/// The inverse of dtype_name; throws Error(invalid_argument) with the allowed names.
DType parse_dtype(std::string_view name);

/// A view of memory that the caller owns and keeps alive while lossc uses it.
/// Strides count elements, not bytes; an empty `strides` means contiguous, row-major.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::fp32;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;

  /// Product of the shape; 1 for a 0-d tensor.
  std::int64_t size() const;
  /// The strides, with the contiguous ones filled in when none are given.
  std::vector<std::int64_t> full_strides() const;
  /// "fp32 [8, 128]": for messages.
  std::string describe() const;
};

/// The C++ types that map to a DType.
template <class T>
struct dtype_of;
template <>
struct dtype_of<float> {
  static constexpr DType value = DType::fp32;
};
template <>
struct dtype_of<double> {
  static constexpr DType value = DType::fp64;
};
template <>
struct dtype_of<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct dtype_of<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct dtype_of<std::uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct dtype_of<bool> {
  static constexpr DType value = DType::boolean;
};

/// A contiguous view of a vector: `tensor(labels, {rows})`. Without a shape: one dimension.
template <class T>
TensorView tensor(std::vector<T>& values, std::vector<std::int64_t> shape = {}) {
  if (shape.empty()) shape = {static_cast<std::int64_t>(values.size())};
  return TensorView{values.data(), dtype_of<T>::value, std::move(shape), {}};
}
template <class T>
TensorView tensor(T* data, std::vector<std::int64_t> shape) {
  return TensorView{data, dtype_of<T>::value, std::move(shape), {}};
}

}  // namespace lossc
