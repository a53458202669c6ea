// Numbers as tensors store them, and memory that notices when something is written where nothing should be.
// The conversions are the tests' own: they share no code with the compiler or the runtime.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lossc/tensor.h"

namespace lossc::test {

/// The bits of `value` in `dtype` (round to nearest, ties to even).
std::uint64_t encode(DType dtype, double value);
/// The value of stored bits; integers and booleans too.
double decode(DType dtype, std::uint64_t bits);
/// decode(encode(value)): what a tensor of this type holds.
double rounded(DType dtype, double value);
/// Half a unit in the last place of `dtype` at `value`: the largest error of one rounding to nearest.
double half_ulp(DType dtype, double value);
/// The smallest positive normal number.
double smallest_normal(DType dtype);

/// Where the elements of a tensor lie: [outer..., inner], inner stride 1.
struct Layout {
  std::vector<std::int64_t> shape;
  /// Elements between neighbours of each dimension; the last is 1.
  std::vector<std::int64_t> strides;
  /// Bytes by which the first element is moved away from a 64-byte boundary.
  std::int64_t misalign = 0;

  static Layout contiguous(std::vector<std::int64_t> shape);
  /// [rows, inner] with `pitch` elements between rows.
  static Layout pitched(std::int64_t rows, std::int64_t inner, std::int64_t pitch,
                        std::int64_t misalign_bytes = 0);
};

/// A tensor in memory of its own, between guard bytes. Guards and the gaps between rows hold a pattern that
/// reads as NaN in every floating type, so that a stray read shows in a result; `intact()` proves that
/// nothing strayed there.
class Storage {
 public:
  Storage() = default;
  Storage(DType dtype, Layout layout);
  // A copy would lie at another alignment.
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  Storage(Storage&&) = default;
  Storage& operator=(Storage&&) = default;

  TensorView view();
  DType dtype() const { return dtype_; }
  const Layout& layout() const { return layout_; }
  std::int64_t size() const { return size_; }

  /// Element `i` in row-major order of the shape.
  double get(std::int64_t i) const;
  void set(std::int64_t i, double value);
  /// Fills all elements with the guard pattern: what a run leaves unwritten reads as NaN.
  void poison();
  /// The bits of all elements in order, for bitwise comparisons.
  std::vector<std::uint64_t> bits() const;

  /// Call before a run; unchanged() then tells whether any byte differs, elements included.
  void snapshot() { snapshot_ = bytes_; }
  bool unchanged() const { return bytes_ == snapshot_; }
  /// True if guard bytes and gaps hold their pattern still; otherwise `where` names the first byte that does
  /// not.
  bool intact(std::string* where = nullptr) const;

 private:
  std::size_t byte_offset(std::int64_t i) const;
  DType dtype_ = DType::fp32;
  Layout layout_;
  std::int64_t size_ = 0;
  std::size_t element_ = 0, base_ = 0;
  std::vector<std::uint8_t> bytes_, snapshot_;
};

}  // namespace lossc::test
