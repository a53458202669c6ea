#include "optimizer.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "parallel.h"

namespace demo {
namespace {

constexpr std::size_t grain = 16384;

double norm(const std::vector<float>& values) {
  std::vector<double> sums((values.size() + grain - 1) / grain);
  parallel_chunks(values.size(), grain, [&](std::size_t begin, std::size_t end) {
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += static_cast<double>(values[i]) * values[i];
    sums[begin / grain] = sum;
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  return std::sqrt(total);
}

}  // namespace

Adam::Adam(std::size_t parameters, const AdamOptions& options)
    : options_(options), first_(parameters, 0.0f), second_(parameters, 0.0f) {}

double Adam::step(std::vector<float>& parameters, const std::vector<float>& gradient, double learning_rate) {
  ++steps_;
  const double length = norm(gradient);
  const float scale =
      static_cast<float>(length > options_.largest_norm ? options_.largest_norm / length : 1.0);
  const float beta1 = static_cast<float>(options_.beta1), beta2 = static_cast<float>(options_.beta2);
  const float rate = static_cast<float>(learning_rate / (1 - std::pow(options_.beta1, steps_)));
  const float correction = static_cast<float>(1 / std::sqrt(1 - std::pow(options_.beta2, steps_)));
  const float epsilon = static_cast<float>(options_.epsilon);
  const float keep = static_cast<float>(1 - learning_rate * options_.weight_decay);
  parallel_chunks(parameters.size(), grain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const float g = gradient[i] * scale;
      first_[i] += (1 - beta1) * (g - first_[i]);
      second_[i] += (1 - beta2) * (g * g - second_[i]);
      parameters[i] =
          keep * parameters[i] - rate * first_[i] / (std::sqrt(second_[i]) * correction + epsilon);
    }
  });
  return length;
}

double learning_rate_schedule(int step, int steps, int warmup) {
  if (step < warmup) return (step + 1.0) / warmup;
  const double done = static_cast<double>(step - warmup) / std::max(1, steps - warmup);
  return 0.05 + 0.95 * 0.5 * (1 + std::cos(std::numbers::pi * done));
}

}  // namespace demo
