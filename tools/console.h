// What the command prints: results on standard output, all else on standard error.
#pragma once

#include <chrono>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace lossc::cli {

/// Writes a result to standard output, with a line end. Throws Error(io) when it cannot be written.
void print(std::string_view text);
/// The same without a line end, for content that is no text.
void print_bytes(std::string_view bytes);
void print_json(const nlohmann::ordered_json& json);

/// `lossc: warning: ...` on standard error.
void warn(std::string_view text);

/// Columns of text, aligned; the first row is the heading.
class Table {
 public:
  enum class Align { left, right };
  explicit Table(std::vector<Align> columns) : columns_(std::move(columns)) {}

  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string text() const;
  std::string markdown() const;

 private:
  std::vector<Align> columns_;
  std::vector<std::vector<std::string>> rows_;
};

/// A bar on standard error, where that is a terminal and the work takes longer than a moment; removed at the
/// end.
class Progress {
 public:
  explicit Progress(std::string label);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();

  void update(std::size_t done, std::size_t all);

 private:
  using Clock = std::chrono::steady_clock;
  std::string label_;
  bool terminal_;
  bool drawn_ = false;
  Clock::time_point started_, last_;
};

/// A number for people: six digits, `inf`, `nan`.
std::string number(double value);
/// A number for programs; what JSON has no number for is the text "nan", "inf" or "-inf".
nlohmann::ordered_json json_number(double value);
/// 262144 -> "256 KiB".
std::string byte_count(double bytes);

}  // namespace lossc::cli
