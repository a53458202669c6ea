// Adam with decoupled weight decay and a bound on the gradient's norm.
#pragma once

#include <cstddef>
#include <vector>

namespace demo {

struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.99, epsilon = 1e-8, weight_decay = 0;
  double largest_norm = 1;  ///< Gradients with a larger norm are scaled down to it.
};

class Adam {
 public:
  Adam(std::size_t parameters, const AdamOptions& options);
  /// One step; returns the gradient's norm as it came.
  double step(std::vector<float>& parameters, const std::vector<float>& gradient, double learning_rate);

 private:
  AdamOptions options_;
  std::vector<float> first_, second_;  ///< Running means of the gradient and of its square.
  int steps_ = 0;
};

/// Rises over the first `warmup` steps, then falls to a twentieth along a cosine: the share of the peak rate.
double learning_rate_schedule(int step, int steps, int warmup);

}  // namespace demo
