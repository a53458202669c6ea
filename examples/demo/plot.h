// Line charts: for a terminal, and as SVG that needs nothing else.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "progress.h"

namespace demo {

struct Series {
  std::string name;
  std::vector<double> x, y;
  bool dots = false;  ///< Mark the values; in a terminal only the marks are drawn.
};

/// A horizontal line to compare with.
struct Level {
  std::string name;
  double y;
};

struct Chart {
  std::string title, x_label, y_label;
  std::vector<Series> series = {};
  std::optional<Level> level = {};
  double y_min = 0, y_max = 1;
};

/// Round numbers within [low, high], about `count` of them.
std::vector<double> ticks(double low, double high, int count);
/// Largest x of all series.
double x_max(const Chart& chart);
/// The running mean over `width` values.
std::vector<double> smoothed(const std::vector<double>& values, int width);

std::string terminal_plot(const Chart& chart, const Console& console);
/// The charts side by side.
std::string svg_plot(const std::string& title, const std::vector<Chart>& charts);

}  // namespace demo
