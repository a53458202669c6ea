// The one table of tolerances. Nothing here is tuned to pass: every number follows from how fp32 rounds.
//
// lossc computes in fp32 and stores in fp32, bf16 or fp16. A reference value carries a bound on the error
// that fp32 arithmetic may have made on the way to it (`Bounded`, first order in `unit`), and a result is
// right when
//
//     |result - reference| <= bound + half_ulp(stored type, reference) + tiny.
//
// quantity                    bound                                       why
// --------------------------  ------------------------------------------
// --------------------------------------------- one operation               unit |result| round to nearest
// sum of n terms              sum_error(n) * sum |terms|                  any order: the errors of a running
// sum walk at
//                                                                         random, 2 sqrt(n) is 2 standard
//                                                                         deviations of the worst case where
//                                                                         every partial sum is as large as
//                                                                         the whole
// u = transform(z)            transform_error(u)                          at most scale, / c, tanh (3 ulp), *
// c, / tau:
//                                                                         16 roundings of |u|
// exp(x)                      exp_error(x) * exp(x)                       x log2(e) is rounded once or twice
// before its
//                                                                         fraction is taken: 2|x| unit,
//                                                                         polynomial 4 unit
// softmax p_k (relative),     softmax_error(|x| + gap + |log sum|)        x = u - anchor is rounded; then
// exp; then the logprob, lse (absolute)     + sum_error(vocab) + transform errors       sum's logarithm. The
// anchor is near the row's
//                                                                         maximum, at most `anchor_gap` below
//                                                                         it
// stored bf16 / fp16 / fp32   half an ulp of the type                     one rounding from fp32, to nearest
// near zero                   tiny                                        subnormals may be flushed; a
// flushed factor is
//                                                                         below 2^-126, what it meets below
//                                                                         2^26
#pragma once

#include <algorithm>
#include <cmath>

#include "tests/storage.h"

namespace lossc::test {

/// Half an ulp of fp32 at 1: the relative error of one rounding.
inline constexpr double unit = 0x1p-24;
inline constexpr double tiny = 0x1p-100;
/// exp(64) stays far from fp32's range end, so a sum may be anchored this far below the maximum and no
/// farther.
inline constexpr double anchor_gap = 64;

inline double sum_error(double terms) {
  return (4 + 2 * std::sqrt(std::max(terms, 0.0))) * unit;
}
inline double transform_error(double u) {
  return 16 * unit * std::abs(u);
}
inline double exp_error(double x) {
  return (4 + 2 * std::abs(x)) * unit;
}
inline double softmax_error(double argument) {
  return (8 + 6 * std::abs(argument)) * unit;
}

/// A value and a bound on the error that fp32 arithmetic may have made on the way to it.
struct Bounded {
  double value = 0, error = 0;
  Bounded() = default;
  Bounded(double v, double e = 0) : value(v), error(e) {}  // NOLINT: numbers are exact values
};

inline Bounded operator-(Bounded a) {
  return {-a.value, a.error};
}
inline Bounded operator+(Bounded a, Bounded b) {
  const double v = a.value + b.value;
  return {v, a.error + b.error + unit * std::abs(v)};
}
inline Bounded operator-(Bounded a, Bounded b) {
  return a + -b;
}
inline Bounded operator*(Bounded a, Bounded b) {
  const double v = a.value * b.value;
  return {v,
          std::abs(a.value) * b.error + std::abs(b.value) * a.error + a.error * b.error + unit * std::abs(v)};
}
inline Bounded operator/(Bounded a, Bounded b) {
  const double v = a.value / b.value;
  return {v, (a.error + std::abs(v) * b.error) / std::abs(b.value) + unit * std::abs(v)};
}
inline Bounded bounded_exp(Bounded a) {
  const double v = std::exp(a.value);
  return v == 0 || std::isinf(v) ? Bounded(v) : Bounded(v, v * (a.error + exp_error(a.value)));
}
/// 1 / (1 + exp(-a)): its derivative is at most itself.
inline Bounded bounded_sigmoid(Bounded a) {
  const double v = 1 / (1 + std::exp(-a.value));
  return {v, v * (a.error + exp_error(std::min(std::abs(a.value), 88.0)) + 4 * unit)};
}
/// log(1 + exp(a)), derivative sigmoid(a) <= 1.
inline Bounded bounded_softplus(Bounded a) {
  const double v = std::max(a.value, 0.0) + std::log1p(std::exp(-std::abs(a.value)));
  return {v, a.error + (8 + 2 * std::abs(a.value)) * unit * std::min(v, 1.0) + 4 * unit * v};
}
/// Adds many terms; the error of the running sum is charged once, in total().
class BoundedSum {
 public:
  void add(Bounded term) {
    value_ += term.value;
    error_ += term.error;
    absolute_ += std::abs(term.value);
    terms_ += 1;
  }
  Bounded total() const { return {value_, error_ + (terms_ > 1 ? sum_error(terms_) * absolute_ : 0)}; }

 private:
  double value_ = 0, error_ = 0, absolute_ = 0, terms_ = 0;
};

/// True when `result`, stored in `dtype`, is the reference up to rounding; NaN is right only where NaN is
/// expected, an infinity only where the same one is.
inline bool agrees(double result, Bounded reference, DType dtype) {
  if (std::isnan(reference.value)) return std::isnan(result);
  if (std::isinf(reference.value)) return result == reference.value;
  if (!std::isfinite(result)) {
    // Storing may overflow: right only if the reference reaches past the last finite number, up to its bound.
    return std::isinf(rounded(dtype, reference.value + std::copysign(reference.error, reference.value))) &&
           result == std::copysign(result, reference.value);
  }
  const double stored = half_ulp(dtype, std::abs(reference.value) + reference.error);
  return std::abs(result - reference.value) <= reference.error + stored + tiny;
}

}  // namespace lossc::test
