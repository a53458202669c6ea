#include "compiler/cuda/nvrtc_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "compiler/cuda/nvrtc.h"

namespace lossc::cuda {
namespace {

std::vector<std::string_view> lines_of(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    lines.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

/// The number that stands in `line` directly before `unit`; 0 if there is none.
int number_before(std::string_view line, std::string_view unit) {
  const std::size_t end = line.find(unit);
  if (end == std::string_view::npos) return 0;
  std::size_t begin = end;
  while (begin > 0 && line[begin - 1] >= '0' && line[begin - 1] <= '9') --begin;
  int number = 0;
  std::from_chars(line.data() + begin, line.data() + end, number);
  return number;
}

/// What follows `mark` in `line`, up to `end`.
std::optional<std::string> between(std::string_view line, std::string_view mark, std::string_view end) {
  std::size_t begin = line.find(mark);
  if (begin == std::string_view::npos) return std::nullopt;
  begin += mark.size();
  return std::string(line.substr(begin, std::min(line.find(end, begin), line.size()) - begin));
}

/// The line that "NAME(LINE): error" names, if `line` is that.
std::optional<std::size_t> error_line(std::string_view line, std::string_view name) {
  if (!line.starts_with(name) || !line.substr(name.size()).starts_with("(")) return std::nullopt;
  line.remove_prefix(name.size() + 1);
  std::size_t number = 0;
  const auto [end, code] = std::from_chars(line.data(), line.data() + line.size(), number);
  if (code != std::errc() || number == 0) return std::nullopt;
  line.remove_prefix(static_cast<std::size_t>(end - line.data()));
  const bool error = line.starts_with("): error") || line.starts_with("): catastrophic error");
  return error ? std::optional(number) : std::nullopt;
}

}  // namespace

std::vector<KernelFigures> parse_kernel_figures(const std::string& log) {
  std::vector<KernelFigures> kernels;
  std::string properties_of;  // The function that the next line of stack and spills is of.
  KernelFigures* current = nullptr;
  const auto find = [&](const std::string& name) {
    const auto found = std::find_if(kernels.begin(), kernels.end(),
                                    [&](const KernelFigures& kernel) { return kernel.name == name; });
    return found == kernels.end() ? nullptr : &*found;
  };
  for (const std::string_view line : lines_of(log)) {
    if (const auto entry = between(line, "Compiling entry function '", "'")) {
      current = find(*entry);
      if (current == nullptr) {
        kernels.emplace_back().name = *entry;
        current = &kernels.back();
      }
    } else if (const auto function = between(line, "Function properties for ", " ")) {
      properties_of = *function;
    } else if (line.find(" bytes stack frame") != std::string_view::npos) {
      // Functions that are no kernels have such a line too.
      if (KernelFigures* kernel = find(properties_of)) {
        kernel->stack_bytes = number_before(line, " bytes stack frame");
        kernel->spill_store_bytes = number_before(line, " bytes spill stores");
        kernel->spill_load_bytes = number_before(line, " bytes spill loads");
      }
    } else if (current != nullptr && line.find(": Used ") != std::string_view::npos) {
      current->registers = number_before(line, " registers");
      current->static_shared_bytes = number_before(line, " bytes smem");
      // A kernel whose callees have frames shows them in this line alone.
      current->stack_bytes =
          std::max(current->stack_bytes, number_before(line, " bytes cumulative stack size"));
      current = nullptr;
    }
  }
  return kernels;
}

std::string source_excerpt(const std::string& log, const std::string& name, const std::string& source) {
  constexpr std::size_t kErrors = 3, kAround = 3;
  std::set<std::size_t> errors;
  for (const std::string_view line : lines_of(log)) {
    if (errors.size() == kErrors) break;
    if (const auto number = error_line(line, name)) errors.insert(*number);
  }
  const std::vector<std::string_view> lines = lines_of(source);
  std::string text;
  std::size_t printed = 0;  // The last line that stands in `text`.
  for (const std::size_t error : errors) {
    const std::size_t first = std::max(printed + 1, error > kAround ? error - kAround : 1);
    if (first > printed + 1 && printed > 0) text += "     ...\n";
    for (std::size_t line = first; line <= std::min(error + kAround, lines.size()); ++line) {
      text += fmt::format("{}{:>5} | {}\n", errors.contains(line) ? '>' : ' ', line, lines[line - 1]);
      printed = line;
    }
  }
  return text;
}

}  // namespace lossc::cuda
