#include "lossc/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>

#include "lossc/error.h"

namespace lossc {

namespace {

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  std::size_t size;
};
constexpr std::array<DTypeInfo, 8> kDTypes = {{{DType::fp32, "fp32", 4},
                                               {DType::bf16, "bf16", 2},
                                               {DType::fp16, "fp16", 2},
                                               {DType::fp64, "fp64", 8},
                                               {DType::i32, "i32", 4},
                                               {DType::i64, "i64", 8},
                                               {DType::u8, "u8", 1},
                                               {DType::boolean, "bool", 1}}};

const DTypeInfo& info(DType dtype) {
  return kDTypes[static_cast<std::size_t>(dtype)];
}

}  // namespace

std::size_t dtype_size(DType dtype) {
  return info(dtype).size;
}

std::string_view dtype_name(DType dtype) {
  return info(dtype).name;
}

DType parse_dtype(std::string_view name) {
  std::string known;
  for (const DTypeInfo& d : kDTypes) {
    if (d.name == name) return d.dtype;
    known += (known.empty() ? "" : ", ") + std::string(d.name);
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("unknown dtype \"{}\"; known are {}", name, known));
}

std::int64_t TensorView::size() const {
  std::int64_t n = 1;
  for (std::int64_t extent : shape) n *= extent;
  return n;
}

std::vector<std::int64_t> TensorView::full_strides() const {
  if (!strides.empty()) return strides;
  std::vector<std::int64_t> contiguous(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) contiguous[i - 1] = contiguous[i] * shape[i];
  return contiguous;
}

std::string TensorView::describe() const {
  return fmt::format("{} [{}]", dtype_name(dtype), fmt::join(shape, ", "));
}

}  // namespace lossc
