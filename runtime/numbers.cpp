#include "runtime/numbers.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "lossc/error.h"

namespace lossc {

namespace {

template <class T>
T read_as(const char* address) {
  T v;
  std::memcpy(&v, address, sizeof v);
  return v;
}

template <class T>
void write_as(char* address, T v) {
  std::memcpy(address, &v, sizeof v);
}

double half_to_double(std::uint16_t h) {
  const int exponent = (h >> 10) & 31, mantissa = h & 1023;
  double v = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 31) v = mantissa == 0 ? HUGE_VAL : std::nan("");
  return (h & 0x8000) != 0 ? -v : v;
}

// The bits of a 16-bit format with this many bits of mantissa, rounded once: by way of fp32 would round
// twice.
std::uint16_t narrow(double value, int mantissa_bits) {
  const int exponent_bits = 15 - mantissa_bits, bias = (1 << (exponent_bits - 1)) - 1;
  const std::int64_t infinity = ((std::int64_t{1} << exponent_bits) - 1) << mantissa_bits;
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double size = std::fabs(value);
  std::int64_t bits = 0;
  if (std::isnan(value)) {
    bits = infinity | std::int64_t{1} << (mantissa_bits - 1);
  } else if (std::isinf(value)) {
    bits = infinity;
  } else if (size > 0) {
    // Below the smallest normal number all numbers have its exponent.
    const int exponent = std::max(std::ilogb(size), 1 - bias);
    const double units = std::nearbyint(std::ldexp(size, mantissa_bits - exponent));
    // `units` holds the leading 1, which counts the exponent up by one; so does a carry out of the rounding.
    if (exponent <= bias) {
      bits = (static_cast<std::int64_t>(exponent + bias - 1) << mantissa_bits) +
             static_cast<std::int64_t>(units);
    }
    if (exponent > bias || bits > infinity) bits = infinity;
  }
  return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(bits));
}

}  // namespace

double read_number(const char* address, DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return read_as<float>(address);
    case DType::bf16:
      return std::bit_cast<float>(static_cast<std::uint32_t>(read_as<std::uint16_t>(address)) << 16);
    case DType::fp16:
      return half_to_double(read_as<std::uint16_t>(address));
    case DType::fp64:
      return read_as<double>(address);
    case DType::i32:
      return read_as<std::int32_t>(address);
    case DType::i64:
      return static_cast<double>(read_as<std::int64_t>(address));
    default:
      return read_as<std::uint8_t>(address) != 0 ? 1 : 0;
  }
}

void write_number(char* address, DType dtype, double value) {
  switch (dtype) {
    case DType::fp32:
      return write_as(address, static_cast<float>(value));
    case DType::bf16:
      return write_as(address, narrow(value, 7));
    case DType::fp16:
      return write_as(address, narrow(value, 10));
    case DType::fp64:
      return write_as(address, value);
    default:
      throw Error(ErrorCode::internal, fmt::format("a number cannot be stored as {}", dtype_name(dtype)));
  }
}

}  // namespace lossc
