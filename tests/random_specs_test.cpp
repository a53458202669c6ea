// Specs drawn at random: any children with any options, transforms, reductions and tensors, in any types and
// layouts, against the reference. The seed of a failure is in its message.
#include <fmt/format.h>

#include <string>

#include "tests/cases.h"
#include "tests/catch.h"
#include "tests/seeds.h"
#include "tests/verify.h"

namespace lossc::test {
namespace {

class RandomSpec {
 public:
  explicit RandomSpec(std::uint64_t seed) : random_(seed) {}

  void run(std::uint64_t seed) {
    draw();
    std::string report;
    try {
      report = verify_random(spec_, options_, seed, memory_);
    } catch (const std::exception& error) {
      report = fmt::format("{}\n{}", error.what(), spec_.to_json());
    }
    INFO("seed " << seed);
    CHECK(report == "");
  }

 private:
  bool chance(double p) { return uniform() < p; }
  double uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }
  double between(double low, double high) { return low + (high - low) * uniform(); }
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(uniform() * static_cast<double>(n)); }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return *(values.begin() + below(static_cast<std::int64_t>(values.size())));
  }
  DType dtype() { return one_of({DType::fp32, DType::bf16, DType::fp16}); }

  TransformKeys transform() {
    TransformKeys keys;
    if (chance(0.5)) keys.scale = between(0.3, 2);
    if (chance(0.5)) keys.softcap = between(2, 30);
    if (chance(0.5)) keys.temperature = between(0.5, 3);
    keys.cap_first = chance(0.3);
    return keys;
  }

  Child child(std::size_t index) {
    Child c;
    c.name = "abcdefg"[index];
    c.name += one_of<std::string>({"", "_x", "9"});
    c.type =
        one_of<std::string>({"cross_entropy", "z_loss", "entropy", "distillation", "grpo", "gspo", "dpo"});
    if (chance(0.7)) c.weight = chance(0.1) ? 0 : between(0.01, 2);
    if (chance(0.25)) c.transform = transform();
    const bool optional_labels = c.type == "z_loss" || c.type == "entropy" || c.type == "distillation";
    if (chance(0.25)) c.inputs["labels"] = "labels_b";
    if (optional_labels && chance(0.15)) c.inputs["labels"] = std::nullopt;
    if (c.type == "cross_entropy" && !minus_inf_ && chance(0.3))
      c.numbers["label_smoothing"] = between(0, 0.5);
    if (c.type == "entropy" && chance(0.5))
      c.options["direction"] = one_of<std::string>({"maximize", "minimize"});
    if (c.type == "distillation") draw_distillation(c);
    if (c.type == "grpo" || c.type == "gspo") {
      c.numbers = {{"epsilon_low", between(0.02, 0.4)}, {"epsilon_high", between(0.02, 0.4)}};
      if (chance(0.3)) c.inputs["old_logprobs"] = "old_b";
      if (chance(0.3)) c.inputs["advantages"] = "advantages_b";
    }
    if (c.type == "dpo") c.numbers["beta"] = between(0.05, 1);
    if (chance(0.6)) draw_reduction(c);
    return c;
  }

  void draw_distillation(Child& c) {
    if (chance(0.8))
      c.options["divergence"] = one_of<std::string>({"cross_entropy", "forward_kl", "reverse_kl"});
    if (chance(0.3)) c.numbers["teacher_temperature"] = between(0.5, 3);
    if (chance(0.2)) c.numbers["teacher_scale"] = between(0.3, 2);
    if (chance(0.2)) c.numbers["teacher_softcap"] = between(2, 30);
    if (chance(0.3)) c.flags["temperature_squared"] = true;
    if (chance(0.25)) c.inputs["teacher_logits"] = "teacher_b";
  }

  void draw_reduction(Child& c) {
    if (c.type == "dpo") {
      c.reduction = one_of<std::string>({"pair_mean", "sum", "divisor"});
    } else if (c.type == "gspo") {
      c.reduction =
          one_of<std::string>({"token_mean", "sum", "divisor", "sequence_mean", "sequence_sum_mean"});
    } else {
      c.reduction =
          one_of<std::string>({"token_mean", "sum", "none", "divisor", "sequence_mean", "sequence_sum_mean"});
    }
    if (c.reduction == "divisor") c.divisor = between(0.5, 9);
    if (c.reduction.starts_with("sequence") && chance(0.3)) c.flags["count_empty"] = true;
  }

  void draw_figures() {
    if (chance(0.4)) spec_.metrics.push_back("entropy");
    if (chance(0.3)) spec_.metrics.push_back("token_accuracy");
    for (const char* output : {"logprobs", "entropy", "lse"}) {
      if (chance(0.2)) spec_.outputs.push_back(output);
    }
    for (const Child& c : spec_.children) {
      if (c.type != "dpo" && chance(0.2)) spec_.outputs.push_back(c.name + ".loss");
      if (chance(0.2)) spec_.metrics.push_back(c.name + ".entropy");
      if (c.type == "dpo" && chance(0.4)) spec_.metrics.push_back(c.name + ".reward_margin");
      if (c.type != "grpo" && c.type != "gspo") continue;
      for (const char* figure : {"ratio", "kl_k3", "kl_k1.sum", "clip_fraction", "ratio_sq_sum",
                                 "advantage_max", "tokens", "segments", "logprob@document"}) {
        if (chance(0.15)) spec_.metrics.push_back(c.name + "." + figure);
      }
    }
  }

  void draw() {
    spec_.vocab = one_of<std::int64_t>({1, 2, 5, 17, 64, 130, 515, 1023, 2050}) + below(9);
    spec_.logits_dtype = dtype();
    if (chance(0.3)) spec_.logits = transform();
    minus_inf_ = chance(0.15);
    const auto count = static_cast<std::size_t>(1 + below(5));
    for (std::size_t i = 0; i < count; ++i) spec_.children.push_back(child(i));
    draw_figures();
    spec_.gradient_mode = one_of<std::string>({"overwrite", "overwrite", "accumulate", "in_place", "none"});
    if (spec_.gradient_mode != "in_place" && chance(0.6)) spec_.gradient_dtype = dtype();

    options_.rows = below(40);
    options_.segments = 1 + below(7);
    options_.spread = one_of({0.3, 2.0, 5.0});
    options_.log_ratio_spread = one_of({0.02, 0.2, 0.6});
    options_.minus_inf_fraction = minus_inf_ ? between(0.1, 0.9) : 0;
    options_.teacher_minus_inf = true;
    options_.grad_scale = static_cast<BatchOptions::GradScale>(below(3));
    bool policy = false, mean_by_length = false;
    for (const Child& c : spec_.children) {
      if (c.type == "distillation" && chance(0.7)) spec_.tensor_dtypes[c.input("teacher_logits")] = dtype();
      policy = policy || c.type == "grpo" || c.type == "gspo";
      mean_by_length = mean_by_length || c.type == "gspo" || c.reduction == "sequence_mean";
    }
    options_.label_counts = mean_by_length && chance(0.3);
    options_.segment_advantages = policy && spec_.needs_segments() && chance(0.2);
    if (options_.segment_advantages) {
      for (const Child& c : spec_.children) {
        if (c.type == "grpo" || c.type == "gspo") spec_.tensor_spaces[c.input("advantages")] = "segments";
      }
    }
    memory_.logits_pitch = below(20);
    memory_.gradient_pitch = below(20);
    memory_.element_pitch = below(20);
    memory_.padded_columns = chance(0.3) ? below(6) : 0;
    memory_.gradient_padded_columns = chance(0.3) ? below(6) : 0;
    memory_.misalign = 4 * below(16);
    memory_.labels_i32 = chance(0.5);
    memory_.segments_i32 = chance(0.5);
    memory_.mask_bool = chance(0.5);
  }

  std::mt19937_64 random_;
  bool minus_inf_ = false;
  LossCase spec_;
  BatchOptions options_;
  MemoryOptions memory_;
};

TEST_CASE("random specs") {
  for (std::uint64_t seed = 1; seed <= 120; ++seed) RandomSpec(seed).run(seed);
}

TEST_CASE("many random specs", "[slow]") {
  const Seeds seeds = seeds_or({.first = 1001, .last = 3500});
  for (std::uint64_t seed = seeds.first; seed <= seeds.last; ++seed) RandomSpec(seed).run(seed);
}

}  // namespace
}  // namespace lossc::test
