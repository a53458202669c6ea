#include "tools/console.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>

#include "lossc/error.h"

namespace lossc::cli {
namespace {

// Characters, not bytes: formulas hold Greek letters.
std::size_t width(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }));
}

void write(std::FILE* stream, std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stream) != text.size() || std::fflush(stream) != 0) {
    throw Error(ErrorCode::io, fmt::format("cannot write the result: {}", std::strerror(errno)));
  }
}

}  // namespace

void print(std::string_view text) {
  std::string line(text);
  if (!line.ends_with('\n')) line += '\n';
  write(stdout, line);
}

void print_bytes(std::string_view bytes) {
  write(stdout, bytes);
}

void print_json(const nlohmann::ordered_json& json) {
  print(json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

void warn(std::string_view text) {
  fmt::print(stderr, "lossc: warning: {}\n", text);
}

std::string Table::text() const {
  std::vector<std::size_t> widths(columns_.size(), 0);
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width(row[i]));
  }
  std::string result;
  for (const auto& row : rows_) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - width(row[i]), ' ');
      if (i > 0) line += "  ";
      line += columns_[i] == Align::right ? space + row[i] : row[i] + space;
    }
    line.erase(line.find_last_not_of(' ') + 1);
    result += line + '\n';
  }
  return result;
}

std::string Table::markdown() const {
  std::string result;
  for (std::size_t r = 0; r < rows_.size(); ++r) {
    for (const std::string& cell : rows_[r]) {
      std::string escaped;
      for (const char c : cell) {
        if (c == '|') escaped += '\\';
        escaped += c;
      }
      result += "| " + escaped + " ";
    }
    result += "|\n";
    if (r > 0) continue;
    for (const Align align : columns_) result += align == Align::right ? "|--:" : "|---";
    result += "|\n";
  }
  return result;
}

Progress::Progress(std::string label)
    : label_(std::move(label)),
      terminal_(::isatty(STDERR_FILENO) == 1),
      started_(Clock::now()),
      last_(started_) {}

Progress::~Progress() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
}

void Progress::update(std::size_t done, std::size_t all) {
  using namespace std::chrono_literals;
  const auto now = Clock::now();
  if (!terminal_ || all == 0 || now - started_ < 300ms || now - last_ < 80ms) return;
  last_ = now;
  drawn_ = true;
  constexpr std::size_t cells = 30;
  const double share = static_cast<double>(done) / static_cast<double>(all);
  const auto filled = static_cast<std::size_t>(share * cells);
  fmt::print(stderr, "\r\x1b[K{} [{}{}] {:3.0f} %", label_, std::string(filled, '#'),
             std::string(cells - filled, '.'), 100 * share);
  std::fflush(stderr);
}

std::string number(double value) {
  return fmt::format("{:.6g}", value);
}

nlohmann::ordered_json json_number(double value) {
  if (std::isfinite(value)) return value;
  return fmt::format("{}", std::isnan(value) ? std::abs(value) : value);
}

std::string byte_count(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < std::size(units)) {
    bytes /= 1024;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", bytes, bytes == std::floor(bytes) ? 0 : 1, units[unit]);
}

}  // namespace lossc::cli
