// One row of the reference: its transformed logits, their softmax, and the figures of both.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/loss_case.h"
#include "tests/tolerances.h"

namespace lossc::test {

/// u = transform(z) and its derivative du/dz.
struct TransformedLogit {
  double u = 0;
  Bounded slope = 1;
};
TransformedLogit transform_logit(const TransformKeys& keys, double z);

/// u = transform(z) of one row and softmax(u). A NaN, a +inf or a row of only -inf makes it `nan`.
struct Softmax {
  Softmax(const double* z, std::int64_t vocab, const TransformKeys& keys);

  std::vector<double> u;
  double max = 0, log_sum = 0;  ///< lse = max + log_sum
  bool nan = false;

  double x(std::int64_t k) const { return u[static_cast<std::size_t>(k)] - max; }
  /// Bound on the relative error of p(k), and on the absolute one of its logarithm.
  double delta(std::int64_t k) const { return delta_at(x(k), u[static_cast<std::size_t>(k)]); }
  Bounded p(std::int64_t k) const;
  Bounded logprob(std::int64_t k) const;
  Bounded lse() const;
  /// A product of a probability and a logit is 0 where the probability is.
  Bounded entropy() const;
  /// sum_k p_k (u_k - other.u_k)
  Bounded mean_u_minus(const Softmax& other) const;
  /// Bound on the absolute error of log_sum.
  double log_sum_error() const { return delta_at(0, max); }
  /// The distance from an anchor that a logit may have, beside its distance from the maximum.
  double gap = 0;

 private:
  double delta_at(double x_k, double u_k) const;
  bool transformed_ = false;
  double mean_transform_error_ = 0;
};

/// cross entropy of p from q: -sum_k q_k log p_k.
Bounded soft_cross_entropy(const Softmax& p, const Softmax& q);
/// KL(a || b) = sum_k a_k (log a_k - log b_k).
Bounded divergence(const Softmax& a, const Softmax& b);

}  // namespace lossc::test
