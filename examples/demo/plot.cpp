#include "plot.h"

#include <algorithm>
#include <cmath>

namespace demo {

std::vector<double> ticks(double low, double high, int count) {
  const double rough = (high - low) / std::max(count, 1);
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double step = power;
  for (const double factor : {1.0, 2.0, 5.0, 10.0}) {
    step = factor * power;
    if (step >= rough * 0.999) break;
  }
  std::vector<double> result;
  for (int i = static_cast<int>(std::ceil(low / step - 1e-9)); i * step <= high + 1e-9 * step; ++i) {
    result.push_back(i * step);
  }
  return result;
}

double x_max(const Chart& chart) {
  double largest = 0;
  for (const Series& series : chart.series) {
    for (const double x : series.x) largest = std::max(largest, x);
  }
  return largest > 0 ? largest : 1;
}

std::vector<double> smoothed(const std::vector<double>& values, int width) {
  std::vector<double> result(values.size());
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    sum += values[i];
    if (i >= static_cast<std::size_t>(width)) sum -= values[i - static_cast<std::size_t>(width)];
    result[i] = sum / static_cast<double>(std::min(i + 1, static_cast<std::size_t>(width)));
  }
  return result;
}

}  // namespace demo
