#include "tests/storage.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

namespace lossc::test {
namespace {

struct Format {
  int exponent_bits, mantissa_bits;
};

Format format_of(DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return {8, 23};
    case DType::bf16:
      return {8, 7};
    case DType::fp16:
      return {5, 10};
    default:
      return {11, 52};
  }
}

bool is_float(DType dtype) {
  return dtype == DType::fp32 || dtype == DType::bf16 || dtype == DType::fp16 || dtype == DType::fp64;
}

int lowest_exponent(Format f) {
  return 2 - (1 << (f.exponent_bits - 1));
}

constexpr std::size_t guard_bytes = 4096;
constexpr std::uint8_t pattern =
    0xFF;  // All ones: a NaN in every floating format, -1 in every signed integer.

}  // namespace

std::uint64_t encode(DType dtype, double value) {
  if (dtype == DType::fp64) return std::bit_cast<std::uint64_t>(value);
  if (!is_float(dtype)) return static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
  const Format f = format_of(dtype);
  const std::uint64_t sign =
      std::signbit(value) ? std::uint64_t{1} << (f.exponent_bits + f.mantissa_bits) : 0;
  const std::uint64_t infinity = ((std::uint64_t{1} << f.exponent_bits) - 1) << f.mantissa_bits;
  if (std::isnan(value)) return sign | infinity | (std::uint64_t{1} << (f.mantissa_bits - 1));
  const double magnitude = std::abs(value);
  if (std::isinf(magnitude)) return sign | infinity;
  if (magnitude == 0) return sign;
  // In units of the last place at this exponent the value is rounded to an integer, ties to even (the default
  // mode).
  const int low = lowest_exponent(f);
  const int exponent = std::max(std::ilogb(magnitude), low);
  const double units = std::nearbyint(std::ldexp(magnitude, f.mantissa_bits - exponent));
  // A carry out of the mantissa lands in the exponent field, as it must, up to infinity.
  const std::uint64_t encoded =
      (static_cast<std::uint64_t>(exponent - low) << f.mantissa_bits) + static_cast<std::uint64_t>(units);
  return sign | std::min(encoded, infinity);
}

double decode(DType dtype, std::uint64_t bits) {
  switch (dtype) {
    case DType::fp64:
      return std::bit_cast<double>(bits);
    case DType::i32:
      return static_cast<std::int32_t>(bits);
    case DType::i64:
      return static_cast<double>(static_cast<std::int64_t>(bits));
    case DType::u8:
    case DType::boolean:
      return static_cast<std::uint8_t>(bits);
    default:
      break;
  }
  const Format f = format_of(dtype);
  const std::uint64_t mantissa = bits & ((std::uint64_t{1} << f.mantissa_bits) - 1);
  const std::uint64_t top = (std::uint64_t{1} << f.exponent_bits) - 1;
  const std::uint64_t exponent = (bits >> f.mantissa_bits) & top;
  const double sign = (bits >> (f.mantissa_bits + f.exponent_bits)) & 1 ? -1.0 : 1.0;
  if (exponent == top) {
    return mantissa == 0 ? sign * std::numeric_limits<double>::infinity()
                         : std::numeric_limits<double>::quiet_NaN();
  }
  const int low = lowest_exponent(f);
  const double one = exponent == 0 ? 0.0 : 1.0;
  const int power = exponent == 0 ? low : low + static_cast<int>(exponent) - 1;
  return sign * std::ldexp(one + std::ldexp(static_cast<double>(mantissa), -f.mantissa_bits), power);
}

double rounded(DType dtype, double value) {
  return decode(dtype, encode(dtype, value));
}

double half_ulp(DType dtype, double value) {
  if (!is_float(dtype) || !std::isfinite(value)) return 0;
  const Format f = format_of(dtype);
  const int exponent = value == 0 ? lowest_exponent(f) : std::max(std::ilogb(value), lowest_exponent(f));
  return std::ldexp(0.5, exponent - f.mantissa_bits);
}

double smallest_normal(DType dtype) {
  return std::ldexp(1.0, lowest_exponent(format_of(dtype)));
}

Layout Layout::contiguous(std::vector<std::int64_t> shape) {
  std::vector<std::int64_t> strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;) strides[i - 1] = strides[i] * shape[i];
  return {std::move(shape), std::move(strides), 0};
}

Layout Layout::pitched(std::int64_t rows, std::int64_t inner, std::int64_t pitch,
                       std::int64_t misalign_bytes) {
  return {{rows, inner}, {pitch, 1}, misalign_bytes};
}

Storage::Storage(DType dtype, Layout layout) : dtype_(dtype), layout_(std::move(layout)) {
  element_ = dtype_size(dtype);
  size_ = 1;
  std::int64_t last = 0;
  for (std::size_t d = 0; d < layout_.shape.size(); ++d) {
    size_ *= layout_.shape[d];
    if (layout_.shape[d] > 0) last += (layout_.shape[d] - 1) * layout_.strides[d];
  }
  const std::size_t used = size_ == 0 ? 0 : (static_cast<std::size_t>(last) + 1) * element_;
  bytes_.assign(used + 2 * guard_bytes + 256 + static_cast<std::size_t>(layout_.misalign), pattern);
  const auto address = reinterpret_cast<std::uintptr_t>(bytes_.data()) + guard_bytes;
  base_ = guard_bytes + (256 - address % 256) % 256 + static_cast<std::size_t>(layout_.misalign);
}

TensorView Storage::view() {
  return {bytes_.data() + base_, dtype_, layout_.shape, layout_.strides};
}

std::size_t Storage::byte_offset(std::int64_t i) const {
  std::int64_t offset = 0;
  for (std::size_t d = layout_.shape.size(); d-- > 0;) {
    offset += i % layout_.shape[d] * layout_.strides[d];
    i /= layout_.shape[d];
  }
  return base_ + static_cast<std::size_t>(offset) * element_;
}

double Storage::get(std::int64_t i) const {
  std::uint64_t bits = 0;
  std::memcpy(&bits, bytes_.data() + byte_offset(i), element_);
  return decode(dtype_, bits);
}

void Storage::set(std::int64_t i, double value) {
  const std::uint64_t bits = encode(dtype_, value);
  std::memcpy(bytes_.data() + byte_offset(i), &bits, element_);
}

void Storage::poison() {
  for (std::int64_t i = 0; i < size_; ++i) std::memset(bytes_.data() + byte_offset(i), pattern, element_);
}

std::vector<std::uint64_t> Storage::bits() const {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(size_), 0);
  for (std::int64_t i = 0; i < size_; ++i) {
    std::memcpy(&all[static_cast<std::size_t>(i)], bytes_.data() + byte_offset(i), element_);
  }
  return all;
}

bool Storage::intact(std::string* where) const {
  std::vector<bool> owned(bytes_.size(), false);
  for (std::int64_t i = 0; i < size_; ++i) {
    const std::size_t at = byte_offset(i);
    for (std::size_t b = 0; b < element_; ++b) owned[at + b] = true;
  }
  for (std::size_t b = 0; b < bytes_.size(); ++b) {
    if (owned[b] || bytes_[b] == pattern) continue;
    if (where != nullptr) {
      *where = "byte " + std::to_string(static_cast<std::int64_t>(b) - static_cast<std::int64_t>(base_)) +
               " from the first element was written";
    }
    return false;
  }
  return true;
}

}  // namespace lossc::test
