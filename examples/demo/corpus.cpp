#include "corpus.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <numbers>
#include <set>
#include <stdexcept>

namespace demo {
namespace {

constexpr std::size_t smallest_text = 20000;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  if (!in) throw std::runtime_error(fmt::format("cannot read {}", path.string()));
  return text;
}

double entropy(const std::string& text) {
  std::array<double, 256> count{};
  for (const char c : text) count[static_cast<std::uint8_t>(c)] += 1;
  const double total = static_cast<double>(text.size());
  double sum = 0;
  for (const double n : count) {
    if (n > 0) sum -= n / total * std::log(n / total);
  }
  return sum;
}

}  // namespace

double Corpus::entropy_bits() const {
  return entropy_nats / std::numbers::ln2;
}

Corpus Corpus::read(const std::vector<std::string>& paths) {
  std::vector<std::filesystem::path> files;
  for (const std::string& path : paths) {
    if (!std::filesystem::is_directory(path)) {
      files.emplace_back(path);
      continue;
    }
    std::vector<std::filesystem::path> inside;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      if (entry.is_regular_file()) inside.push_back(entry.path());
    }
    std::sort(inside.begin(), inside.end());  // The order of a folder is not the same everywhere.
    files.insert(files.end(), inside.begin(), inside.end());
  }

  Corpus corpus;
  std::set<std::string> seen;
  for (const auto& file : files) {
    std::string text = read_file(file);
    if (text.empty() || !seen.insert(text).second) continue;
    const std::size_t end_of_line = text.find('\n', text.size() - text.size() / 10);
    const std::size_t cut = end_of_line == std::string::npos ? text.size() : end_of_line + 1;
    corpus.train.append(text, 0, cut);
    corpus.held_out.append(text, cut);
    ++corpus.files;
  }
  if (corpus.train.size() < smallest_text || corpus.held_out.empty()) {
    throw std::runtime_error(fmt::format(
        "{} bytes of text are too little to learn from (files: {}); name files with {} bytes or more",
        corpus.train.size(), corpus.files, smallest_text));
  }
  corpus.entropy_nats = entropy(corpus.train);
  return corpus;
}

void copy_context(const std::string& text, std::size_t position, std::size_t context, std::uint8_t* out) {
  const std::size_t known = std::min(position, context);
  std::fill_n(out, context - known, std::uint8_t{' '});
  std::copy_n(text.begin() + static_cast<std::ptrdiff_t>(position - known), known, out + (context - known));
}

}  // namespace demo
