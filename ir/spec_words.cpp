#include "ir/spec_words.h"

#include <array>
#include <utility>

namespace lossc::ir {
namespace {

template <class T, std::size_t N>
using Words = std::array<std::pair<std::string_view, T>, N>;

constexpr Words<DType, 3> dtypes = {{{"fp32", DType::fp32}, {"bf16", DType::bf16}, {"fp16", DType::fp16}}};
constexpr Words<GradientMode, 4> modes = {{{"overwrite", GradientMode::overwrite},
                                           {"accumulate", GradientMode::accumulate},
                                           {"in_place", GradientMode::in_place},
                                           {"none", GradientMode::none}}};

template <class Table>
std::vector<std::string> words_of(const Table& table) {
  std::vector<std::string> out;
  for (const auto& [word, value] : table) out.emplace_back(word);
  return out;
}

template <class Table>
auto value_of(const Table& table, std::string_view word) {
  for (const auto& [known, value] : table) {
    if (known == word) return value;
  }
  return table.front().second;
}

template <class Table, class T>
std::string_view word_of(const Table& table, T value) {
  for (const auto& [word, known] : table) {
    if (known == value) return word;
  }
  return table.front().first;
}

}  // namespace

const std::vector<std::string>& element_dtypes() {
  static const std::vector<std::string> words = words_of(dtypes);
  return words;
}
DType to_element_dtype(std::string_view word) {
  return value_of(dtypes, word);
}
std::string_view element_dtype_name(DType dtype) {
  return word_of(dtypes, dtype);
}

const std::vector<std::string>& gradient_modes() {
  static const std::vector<std::string> words = words_of(modes);
  return words;
}
GradientMode to_gradient_mode(std::string_view word) {
  return value_of(modes, word);
}
std::string_view gradient_mode_name(GradientMode mode) {
  return word_of(modes, mode);
}

const std::vector<std::string>& batch_outputs() {
  static const std::vector<std::string> names = {"logprobs", "entropy", "lse"};
  return names;
}

}  // namespace lossc::ir
