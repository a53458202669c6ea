// Losses against a copy of their logits, interleaved on the same machine in the same minute.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/cases.h"

namespace lossc::bench {

struct Options {
  std::vector<std::string> names;  ///< Of cases.
  std::vector<std::string> dtypes{"fp32", "bf16"};
  std::vector<std::int64_t> vocabs{32768, 50257, 131072};
  int mb = 128;  ///< MiB of one tensor of the logits' shape.
  int rounds = 11;
  double sigma = 2;
  bool json = false;
  std::string python = "python3";
};

/// For every dtype, vocabulary and case one JSON object: case, dtype, vocab, rows, seconds, gb_per_s, ratio
/// {median, min, max}, ratio_of_best, target (null: none), disturbed, copy {kernel, seconds, gb_per_s}.
/// Prints a line for each unless options.json. With `copy_only` nothing of lossc but its number of threads is
/// used, and every copy kernel is listed.
nlohmann::json measure(const Options& options, bool copy_only);

}  // namespace lossc::bench
