// The workings of the reference: one batch of one case. Values in reference.cpp, metrics and outputs in
// reference_figures.cpp, the analytic gradient in reference_gradient.cpp.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/reference.h"
#include "tests/reference_rows.h"

namespace lossc::test {

inline std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

/// What is known of a child after its rows were read. Vectors over rows unless said.
struct ChildState {
  const Child* child = nullptr;
  TransformKeys transform;
  std::vector<bool> counts;
  std::vector<Bounded> logprob, entropy, lse;
  std::vector<Bounded> row_loss;  ///< A segment's loss at each of its rows for gspo.
  std::vector<bool> accurate;
  std::vector<double> old_logprob, advantage;
  std::vector<Bounded> ratio, effective_advantage;  ///< A segment's at each of its rows for gspo.
  std::vector<double> segment_rows, length;  ///< Segments: n_s, and what a mean over the segment divides by.
  std::vector<Bounded> segment_value;        ///< Segments. gspo: the loss; dpo: the sum of log-ratios.
  std::vector<Bounded> gain;                 ///< d reduced loss / d logprob: policy and preference losses.
  std::vector<Bounded> row_weight;           ///< d reduced loss / d row loss: losses of rows.
  double row_count = 0, sequence_count = 0;
  Bounded loss;
};

class Evaluator {
 public:
  Evaluator(const LossCase& spec, const Batch& batch);
  Reference run(bool with_gradient);

 private:
  ChildState prepare(const Child& child);
  const Softmax& softmax(std::int64_t row, const std::string& tensor, const TransformKeys& keys);
  const Softmax& teacher(std::int64_t row, const ChildState& s);
  std::int64_t label(std::int64_t row, const ChildState& s) const;
  double advantage(const Child& child, std::int64_t row) const;

  void read_child_row(ChildState& s, std::int64_t row);
  bool is_accurate(const Softmax& p, std::int64_t row, std::int64_t y, bool transformed);
  Bounded smoothed(double smoothing, const Softmax& p, std::int64_t y) const;
  /// -1 below the band, +1 above it, 0 in it (bounds included).
  int side(const Child& child, Bounded ratio);
  bool binds(const Child& child, double advantage, Bounded ratio);
  Bounded clipped(const Child& child, Bounded advantage, Bounded ratio);
  /// d clipped / d ratio * ratio: the inclusive test keeps the whole slope on the bounds.
  Bounded clipped_gain(const Child& child, Bounded advantage, Bounded ratio);
  void combine(ChildState& s);
  void combine_gspo(ChildState& s);
  void combine_dpo(ChildState& s);
  /// A pair counts if both of its segments have a row that counts.
  std::vector<std::array<std::int64_t, 2>> counting_pairs(const ChildState& s) const;

  ChildState& state_named(const std::string& name);
  Bounded figure(const std::string& metric);
  Bounded pair_figure(ChildState& s, const std::string& name);
  /// The figure at one row that counts.
  Bounded row_figure(ChildState& s, const std::string& name, std::int64_t row);
  std::vector<Bounded> row_output(const std::string& name);

  void gradient();
  void add_row_gradient(const ChildState& s, std::int64_t row, Bounded scale,
                        std::vector<Bounded>& u_gradient);

  const LossCase& spec_;
  const Batch& batch_;
  std::vector<std::int64_t> segment_;
  std::vector<ChildState> states_;
  Child block_child_;  // no name, no type: what counts for metrics and outputs of no child
  ChildState block_;
  Reference result_;
  struct Cached {
    std::string name;
    TransformKeys keys;
    std::unique_ptr<Softmax> value;
  };
  std::vector<Cached> cache_;
  std::int64_t cached_row_ = -1;
};

}  // namespace lossc::test
