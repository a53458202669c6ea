#include "tests/reference_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace lossc::test {
namespace {

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

// p * v, where a probability of 0 wins over an infinite or undefined v.
double weigh(double p, double v) {
  return p == 0 ? 0 : p * v;
}

}  // namespace

TransformedLogit transform_logit(const TransformKeys& keys, double z) {
  const double scale = keys.scale.value_or(1), temperature = keys.temperature.value_or(1);
  double u = z;
  Bounded slope = 1;
  if (keys.scale && !keys.cap_first) u *= scale;
  if (keys.softcap) {
    // A raw -inf stays one after the cap; the cap's slope there is 0.
    const double c = *keys.softcap, t = std::tanh(u / c);
    u = std::isinf(z) && z < 0 ? z : c * t;
    // 1 - tanh^2 loses digits as tanh nears 1: the error of tanh (3 ulp, and that of its argument) stays
    // absolute.
    const Bounded tanh_value(
        t, 6 * unit * std::abs(t) + (t * t < 1 ? 3 * unit * std::abs(z / c) * (1 - t * t) : 0));
    slope = Bounded(1) - tanh_value * tanh_value;
  }
  if (keys.scale && keys.cap_first) u *= scale;
  if (keys.scale) slope = slope * Bounded(scale, unit * scale);
  if (keys.temperature) {
    u /= temperature;
    slope = slope * Bounded(1 / temperature, unit / temperature);
  }
  return {u, slope};
}

Softmax::Softmax(const double* z, std::int64_t vocab, const TransformKeys& keys) : transformed_(keys.any()) {
  u.resize(static_cast<std::size_t>(vocab));
  max = -std::numeric_limits<double>::infinity();
  double lowest = std::numeric_limits<double>::infinity();
  for (std::int64_t k = 0; k < vocab; ++k) {
    const double value = transform_logit(keys, z[k]).u;
    u[static_cast<std::size_t>(k)] = value;
    if (std::isnan(z[k]) || z[k] == std::numeric_limits<double>::infinity()) nan = true;
    max = std::max(max, value);
    if (std::isfinite(value)) lowest = std::min(lowest, value);
  }
  if (!std::isfinite(max)) nan = true;
  if (nan) return;
  gap = std::min(anchor_gap, max - lowest);
  double sum = 0, error = 0;
  for (double value : u) sum += std::exp(value - max);
  log_sum = std::log(sum);
  for (double value : u) error += weigh(std::exp(value - max) / sum, transform_error(value));
  mean_transform_error_ = transformed_ ? error : 0;
}

double Softmax::delta_at(double x_k, double u_k) const {
  const double transform = transformed_ ? transform_error(u_k) + mean_transform_error_ : 0;
  return softmax_error(std::abs(x_k) + gap + std::abs(log_sum)) + sum_error(static_cast<double>(u.size())) +
         transform;
}

Bounded Softmax::p(std::int64_t k) const {
  if (nan) return nan_value;
  const double value = std::exp(x(k) - log_sum);
  return value == 0 ? Bounded(0) : Bounded(value, value * delta(k));
}

Bounded Softmax::logprob(std::int64_t k) const {
  if (nan) return nan_value;
  const double value = x(k) - log_sum;
  return std::isfinite(value) ? Bounded(value, delta(k)) : Bounded(value);
}

Bounded Softmax::lse() const {
  if (nan) return nan_value;
  const double value = max + log_sum;
  return {value, delta_at(0, max) + 2 * unit * (std::abs(max) + gap + std::abs(value))};
}

Bounded Softmax::entropy() const {
  if (nan) return nan_value;
  const double sums = sum_error(static_cast<double>(u.size()));
  double value = log_sum, error = log_sum_error();
  for (std::int64_t k = 0; k < static_cast<std::int64_t>(u.size()); ++k) {
    const double p_k = std::exp(x(k) - log_sum);
    if (p_k == 0) continue;
    value -= p_k * x(k);
    error += p_k * (std::abs(x(k)) + gap) * (delta(k) + sums) + p_k * (delta(k) - softmax_error(0));
  }
  return {value, error + unit * std::abs(value)};
}

Bounded Softmax::mean_u_minus(const Softmax& other) const {
  if (nan || other.nan) return nan_value;
  const double sums = sum_error(static_cast<double>(u.size()));
  double value = 0, error = 0;
  for (std::int64_t k = 0; k < static_cast<std::int64_t>(u.size()); ++k) {
    const double p_k = std::exp(x(k) - log_sum);
    if (p_k == 0) continue;
    const double difference = u[static_cast<std::size_t>(k)] - other.u[static_cast<std::size_t>(k)];
    value += p_k * difference;
    // Whichever anchors the sum is written with: both, either or none.
    const double magnitude = std::abs(x(k)) + gap + std::abs(other.x(k)) + other.gap +
                             std::abs(max - other.max) + std::abs(difference);
    error += p_k * (magnitude * (delta(k) + sums + unit) + transform_error(u[static_cast<std::size_t>(k)]) +
                    transform_error(other.u[static_cast<std::size_t>(k)]));
  }
  return {value, std::isfinite(value) ? error : 0};
}

Bounded soft_cross_entropy(const Softmax& p, const Softmax& q) {
  if (p.nan || q.nan) return nan_value;
  const double sums = sum_error(static_cast<double>(p.u.size()));
  double value = p.log_sum, error = p.log_sum_error();
  for (std::int64_t k = 0; k < static_cast<std::int64_t>(p.u.size()); ++k) {
    const Bounded q_k = q.p(k);
    if (q_k.value == 0) continue;
    value -= q_k.value * p.x(k);
    error += q_k.value * ((std::abs(p.x(k)) + p.gap) * (q.delta(k) + sums + unit) + p.delta(k));
  }
  return {value, std::isfinite(value) ? error + unit * std::abs(value) : 0};
}

Bounded divergence(const Softmax& a, const Softmax& b) {
  if (a.nan || b.nan) return nan_value;
  const Bounded mean = a.mean_u_minus(b);
  const double value = mean.value - (a.max + a.log_sum) + (b.max + b.log_sum);
  if (!std::isfinite(value)) return value;
  const double sizes = std::abs(a.log_sum) + std::abs(b.log_sum) + std::abs(a.max - b.max) + a.gap + b.gap;
  return {value, mean.error + a.log_sum_error() + b.log_sum_error() + 2 * unit * sizes};
}

}  // namespace lossc::test
