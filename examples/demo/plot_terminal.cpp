// A character holds 2 x 4 dots of the Braille block, or one mark where only ASCII may be shown.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "plot.h"

namespace demo {
namespace {

constexpr int rows = 13, margin = 8;

struct Cell {
  int dots = 0, colour = 0;
  const char* mark = nullptr;
};

constexpr const char* colours[] = {"\033[90m", "\033[36m", "\033[33m"};  // level, first and second series

class Canvas {
 public:
  Canvas(const Chart& chart, const Console& console)
      : chart_(chart), console_(console), columns_(console.width - margin - 2), x_max_(x_max(chart)) {
    cells_.resize(static_cast<std::size_t>(rows * columns_));
  }

  int dot_columns() const { return columns_ * 2; }

  void level(double y) {
    const int row = static_cast<int>(position(y) * (rows - 1) + 0.5);
    for (int column = 0; column < columns_; ++column) at(row, column) = {0, 0, console_.unicode ? "┄" : "-"};
  }

  void line(const Series& series, int colour) {
    for (std::size_t i = 1; i < series.x.size(); ++i) {
      const double from = across(series.x[i - 1]), to = across(series.x[i]);
      const double drop = std::abs(position(series.y[i]) - position(series.y[i - 1])) * rows * 4;
      const int steps = std::max(1, static_cast<int>(std::ceil(std::max(to - from, drop))));
      for (int step = 0; step <= steps; ++step) {
        const double share = static_cast<double>(step) / steps;
        dot(from + share * (to - from), series.y[i - 1] + share * (series.y[i] - series.y[i - 1]), colour);
      }
    }
  }

  void marks(const Series& series, int colour) {
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      const int row = static_cast<int>(position(series.y[i]) * (rows - 1) + 0.5);
      at(row, static_cast<int>(across(series.x[i]) / 2)) = {0, colour, console_.unicode ? "●" : "o"};
    }
  }

  std::string row(int index) {
    std::string text;
    for (int column = 0; column < columns_; ++column) {
      const Cell& cell = at(index, column);
      std::string shown = " ";
      if (cell.mark != nullptr) {
        shown = cell.mark;
      } else if (cell.dots != 0 && console_.unicode) {  // U+2800 + dots, in UTF-8
        shown = {'\xE2', static_cast<char>(0xA0 + (cell.dots >> 6)),
                 static_cast<char>(0x80 + (cell.dots & 63))};
      } else if (cell.dots != 0) {
        shown = "*";
      }
      text += console_.terminal && shown != " " ? colours[cell.colour] + shown + "\033[0m" : shown;
    }
    return text;
  }

 private:
  Cell& at(int row, int column) { return cells_[static_cast<std::size_t>(row * columns_ + column)]; }

  /// 0 at the top of the chart, 1 at the bottom.
  double position(double y) const {
    return std::clamp((chart_.y_max - y) / (chart_.y_max - chart_.y_min), 0.0, 1.0);
  }
  double across(double x) const { return std::clamp(x / x_max_, 0.0, 1.0) * (dot_columns() - 1); }

  void dot(double x, double y, int colour) {
    static constexpr int bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    const int column = static_cast<int>(x + 0.5), line = static_cast<int>(position(y) * (rows * 4 - 1) + 0.5);
    Cell& cell = at(line / 4, column / 2);
    cell.mark = nullptr;
    cell.dots |= bits[line % 4][column % 2];
    cell.colour = colour;
  }

  const Chart& chart_;
  const Console& console_;
  int columns_;
  double x_max_;
  std::vector<Cell> cells_;
};

}  // namespace

std::string terminal_plot(const Chart& chart, const Console& console) {
  Canvas canvas(chart, console);
  std::string legend;
  const auto explain = [&](const char* mark, const std::string& name, int colour) {
    legend += console.terminal ? fmt::format("   {}{}\033[0m {}", colours[colour], mark, name)
                               : fmt::format("   {} {}", mark, name);
  };
  if (chart.level) canvas.level(chart.level->y);
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    const Series& series = chart.series[i];
    const int colour = static_cast<int>(i % 2) + 1;
    if (series.dots) {
      canvas.marks(series, colour);
    } else {
      canvas.line(series, colour);
    }
    explain(series.dots ? (console.unicode ? "●" : "o") : (console.unicode ? "⠤" : "*"), series.name, colour);
  }
  if (chart.level) explain(console.unicode ? "┄" : "-", chart.level->name, 0);

  std::string text = fmt::format("  {} ({}){}\n", chart.title, chart.y_label, legend);
  for (int row = 0; row < rows; ++row) {
    const bool labelled = row == 0 || row == rows - 1 || row == rows / 2;
    const double y = chart.y_max - (chart.y_max - chart.y_min) * row / (rows - 1);
    text += fmt::format("  {:>5} {}{}\n", labelled ? fmt::format("{:.2f}", y) : "",
                        console.unicode ? "│" : "|", canvas.row(row));
  }
  std::string axis = console.unicode ? "└" : "+";
  for (int i = 0; i < canvas.dot_columns() / 2; ++i) axis += console.unicode ? "─" : "-";
  const std::string end = fmt::format("{:.0f}", x_max(chart));
  text += fmt::format("        {}\n         0{:>{}}\n", axis, chart.x_label + " " + end,
                      canvas.dot_columns() / 2 - 1);
  return text;
}

}  // namespace demo
