// Whether two results of `lossc run` are the same but for rounding:
//
//   gpu_compare RIGHT.safetensors OTHER.safetensors
//
// Both sides round fp32 sums of their own, and store each number once: numbers of a tensor may differ by one
// unit in the last place of its type, and by kRelative of their size and of the mean size in their row, which
// is that of the terms that cancel. The exact tolerances are those of the tests with references; here two
// backends are held against each other.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>

#include "lossc/error.h"
#include "runtime/safetensors.h"

using namespace lossc;

namespace {

constexpr double kRelative = 0x1p-13;
constexpr double kScalar = 0x1p-15;  // of scalars and rows: logs of sums, and differences of them

double number(const TensorView& view, std::int64_t i) {
  const char* at = static_cast<const char*>(view.data) + static_cast<std::size_t>(i) * dtype_size(view.dtype);
  if (view.dtype == DType::fp32) {
    float value = 0;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  std::uint16_t half = 0;
  std::memcpy(&half, at, sizeof half);
  if (view.dtype == DType::bf16) return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
  const int exponent = half >> 10 & 31, fraction = half & 1023;
  const double sign = half >> 15 != 0 ? -1 : 1;
  if (exponent == 31) return fraction != 0 ? std::nan("") : sign * INFINITY;
  return sign * std::ldexp(exponent > 0 ? 1024 + fraction : fraction, std::max(exponent, 1) - 25);
}

// The distance of two neighbours of that size.
double step(DType dtype, double size) {
  const int bits = dtype == DType::fp32 ? 23 : dtype == DType::bf16 ? 7 : 10;
  const int smallest = dtype == DType::fp16 ? -14 : -126;
  return std::ldexp(1.0, std::max(size > 0 ? std::ilogb(size) : smallest, smallest) - bits);
}

std::string compare(const std::string& name, const TensorView& right, const TensorView& other) {
  if (right.dtype != other.dtype || right.shape != other.shape) {
    return fmt::format("{}: {} and {}", name, right.describe(), other.describe());
  }
  const bool element = name == "grad_logits";
  const std::int64_t width = element ? right.shape.back() : 1;
  std::int64_t wrong = 0, at = 0;
  double worst = 0;
  for (std::int64_t row = 0; width > 0 && row < right.size() / width; ++row) {
    double mean = 0;
    for (std::int64_t k = 0; element && k < width; ++k) mean += std::abs(number(right, row * width + k));
    mean /= static_cast<double>(width);
    for (std::int64_t i = row * width; i < (row + 1) * width; ++i) {
      const double a = number(right, i), b = number(other, i);
      if (a == b || (std::isnan(a) && std::isnan(b))) continue;
      const double size = std::max(std::abs(a), std::abs(b));
      const double allowed =
          element ? step(right.dtype, size) + kRelative * (size + mean) : kScalar * std::max(1.0, size);
      const double error = std::abs(a - b) / allowed;
      if (error <= 1) continue;
      ++wrong;
      if (error > worst || std::isnan(error)) {
        worst = error;
        at = i;
      }
    }
  }
  if (wrong == 0) return {};
  return fmt::format("{}: {} of {} numbers differ; the worst, {} and {} at {}, by {:.3g} of what is allowed",
                     name, wrong, right.size(), number(right, at), number(other, at), at, worst);
}

}  // namespace

int main(int count, char** words) {
  if (count != 3) {
    fmt::print(stderr, "usage: gpu_compare RIGHT.safetensors OTHER.safetensors\n");
    return 2;
  }
  try {
    const SafetensorsFile right = SafetensorsFile::read(words[1]), other = SafetensorsFile::read(words[2]);
    int different = 0;
    for (const auto& [name, tensor] : right.tensors()) {
      const TensorView* same = other.find(name);
      const std::string what = same == nullptr ? name + ": missing" : compare(name, tensor, *same);
      if (what.empty()) continue;
      fmt::print("{}\n", what);
      ++different;
    }
    fmt::print("{} tensors, {} different\n", right.tensors().size(), different);
    return different > 0 ? 1 : 0;
  } catch (const Error& error) {
    fmt::print(stderr, "gpu_compare: {}\n", error.what());
    return 2;
  }
}
