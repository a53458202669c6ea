// Batches: the numbers that a spec is run on, in double precision, exactly as the stored types hold them;
// random ones; and their layout in memory.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/loss_case.h"

namespace lossc::test {

struct Batch {
  std::int64_t rows = 0, vocab = 0, segments = 0;
  bool segmented = false;                                        ///< There are segments, be it none of them.
  std::vector<double> logits = {};                               // rows * vocab
  std::map<std::string, std::vector<double>> elements = {};      // "teacher_logits", ...: rows * vocab
  std::map<std::string, std::vector<std::int64_t>> labels = {};  // "labels", ...: rows
  std::vector<std::uint8_t> mask = {};                           // rows, or empty: none
  std::vector<std::int64_t> segment_ids = {};                    // rows, or empty: none
  std::vector<std::int64_t> cu_seqlens = {};  // segments + 1, or empty: ids are bound instead
  std::map<std::string, std::vector<double>> row_values =
      {};  // "old_logprobs", "advantages", "label_counts", ...
  std::map<std::string, std::vector<double>> segment_values =
      {};                                               // "advantages", where a batch has one per segment
  std::vector<std::array<std::int64_t, 2>> pairs = {};  // (chosen, rejected)
  std::vector<double> grad_scale = {};                  // empty, 1 or rows
  std::vector<double> previous_gradient = {};           // rows * vocab: what accumulate adds to

  /// nullptr when the batch has none of this name.
  const std::vector<std::int64_t>* find_labels(const std::string& name) const;
  /// The row's segment; negative: in none.
  std::int64_t segment_of(std::int64_t row) const;
  double* logits_row(std::int64_t row) { return &logits[static_cast<std::size_t>(row * vocab)]; }
};

struct BatchOptions {
  std::int64_t rows = 8;
  std::int64_t segments = 3;
  double spread = 3;  ///< Standard deviation of the logits.
  double masked_fraction = 0.2, ignored_fraction = 0.2;
  double outside_fraction = 0.1;   ///< Rows in no segment (ids only).
  double minus_inf_fraction = 0;   ///< Logits at -inf; the label's never is.
  bool teacher_minus_inf = false;  ///< The teacher's too, at the same places.
  bool labels = true, mask = true;
  enum class Segments { automatic, none, ids, cu_seqlens } segment_form = Segments::automatic;
  bool label_counts = false, segment_advantages = false;
  enum class GradScale { none, scalar, rows } grad_scale = GradScale::none;
  /// How far log-ratios stray: chosen so that a good part of the rows or segments is clipped.
  double log_ratio_spread = 0.3;
};

/// A random batch with all that the spec reads. Rows that count for nothing hold NaN logits and teacher
/// logits, so that reading them shows; advantages have both signs and some zeros.
Batch random_batch(const LossCase& spec, const BatchOptions& options, std::mt19937_64& random);
/// The same, drawn again until no clip or comparison is nearer to its tie than rounding can tell.
Batch decided_batch(const LossCase& spec, const BatchOptions& options, std::mt19937_64& random);

}  // namespace lossc::test
