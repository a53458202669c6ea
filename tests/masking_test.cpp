// What contributes nothing, and what must not spread: rows that do not count, -inf logits, NaN. V1 ... V3 are
// lines of the list of cases that must work; numerics_test.cpp has the rest.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "tests/cases.h"
#include "tests/catch.h"
#include "tests/verify.h"

namespace lossc::test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

Child entropy(std::string name = "h") {
  return {.name = std::move(name), .type = "entropy", .weight = 0.1};
}

TEST_CASE("V1: nothing counts") {
  LossCase spec = losses(
      {cross_entropy(), z_loss(), entropy(), gspo(), grpo("token"), dpo(), distillation("reverse_kl")});
  spec.metrics = {"entropy",           "token_accuracy",       "policy.ratio",         "policy.kl_k3",
                  "policy.tokens",     "policy.advantage_min", "policy.advantage_max", "policy.segments",
                  "pref.reward_margin"};
  spec.outputs = {"logprobs", "entropy", "ce.loss", "policy.loss"};
  BatchOptions options;
  std::mt19937_64 random(1);
  SECTION("every label ignored") {
    options.ignored_fraction = 1;
  }
  SECTION("every row masked") {
    options.masked_fraction = 1;
  }
  SECTION("every row in no segment, the rest masked") {
    options.segment_form = BatchOptions::Segments::ids;
    options.outside_fraction = 1;
  }
  SECTION("zero rows") {
    options.rows = 0;
  }
  SECTION("zero rows, zero segments") {
    options.rows = 0;
    options.segments = 0;
    options.segment_form = BatchOptions::Segments::ids;
  }
  const Batch batch = random_batch(spec, options, random);
  CHECK(verify_everywhere(spec, batch) == "");
  for (const char* mode : {"accumulate", "in_place", "none"}) {
    LossCase other = spec;
    other.gradient_mode = mode;
    std::mt19937_64 again(1);
    CHECK(verify_everywhere(other, random_batch(other, options, again)) == "");
  }
}

TEST_CASE("V1: zero rows without any memory") {
  Execution execution(compile(losses({cross_entropy(), z_loss()})));
  execution.bind("logits", {nullptr, DType::fp32, {0, 7}, {}});
  execution.bind("labels", {nullptr, DType::i64, {0}, {}});
  execution.bind("grad_logits", {nullptr, DType::fp32, {0, 7}, {}});
  execution.run();
  CHECK(execution.value("loss") == 0);
  CHECK(execution.value("loss.ce") == 0);
}

TEST_CASE("V1: no pairs") {
  const LossCase spec = losses({dpo(), cross_entropy()});
  std::mt19937_64 random(2);
  Batch batch = random_batch(spec, {}, random);
  batch.pairs.clear();
  CHECK(verify_everywhere(spec, batch) == "");
}

TEST_CASE("V2: most logits are -inf") {
  std::uint64_t seed = 20;
  BatchOptions options;
  options.minus_inf_fraction = 0.9;
  for (std::int64_t vocab : {7, 100, 2049}) {
    for (const TransformKeys& keys :
         {TransformKeys{}, TransformKeys{.scale = 2}, TransformKeys{.softcap = 3},
          TransformKeys{.scale = 0.5, .softcap = 8, .temperature = 3, .cap_first = true}}) {
      LossCase spec =
          losses({cross_entropy(), z_loss(), entropy(), grpo(), distillation("reverse_kl")}, vocab);
      spec.logits = keys;
      spec.metrics = {"entropy", "token_accuracy", "policy.kl_k3"};
      spec.outputs = {"logprobs", "entropy", "lse"};
      CHECK(verify_random(spec, options, ++seed) == "");

      std::mt19937_64 random(seed);
      const Batch batch = decided_batch(spec, options, random);
      Run run(spec, batch);
      for (std::int64_t i = 0; i < batch.rows * vocab; ++i) {
        if (batch.logits[at(i)] == -infinity) REQUIRE(run.memory.gradient().get(i) == 0);
      }
    }
  }
}

TEST_CASE("V2: student and teacher are -inf at the same places") {
  std::uint64_t seed = 40;
  BatchOptions options;
  options.minus_inf_fraction = 0.5;
  options.teacher_minus_inf = true;
  for (const char* divergence : {"cross_entropy", "forward_kl", "reverse_kl"}) {
    for (DType dtype : {DType::fp32, DType::bf16}) {
      LossCase spec = losses({distillation(divergence)}, 333);
      spec.logits_dtype = dtype;
      CHECK(verify_random(spec, options, ++seed) == "");
    }
  }
}

TEST_CASE("V2: a teacher's -inf is a probability of 0") {
  std::mt19937_64 random(45);
  for (const char* divergence : {"cross_entropy", "forward_kl"}) {
    const LossCase spec = losses({distillation(divergence)}, 9);
    Batch batch = random_batch(spec, {}, random);
    for (std::int64_t r = 0; r < batch.rows; ++r)
      batch.elements["teacher_logits"][at(r * 9 + r % 9)] = -infinity;
    CHECK(verify_everywhere(spec, batch) == "");
  }
}

TEST_CASE("V2: label smoothing set to 0 over -inf logits") {
  LossCase spec = losses({cross_entropy()}, 40);
  spec.children[0].numbers["label_smoothing"] = 0;
  BatchOptions options;
  options.minus_inf_fraction = 0.6;
  CHECK(verify_random(spec, options, 46) == "");
}

TEST_CASE("a label at -inf gives an infinite loss and the gradient p - onehot") {
  for (std::int64_t vocab : {5, 700}) {
    LossCase spec = losses({cross_entropy()}, vocab);
    spec.outputs = {"logprobs", "ce.loss"};
    std::mt19937_64 random(47);
    BatchOptions options;
    options.masked_fraction = options.ignored_fraction = 0;
    Batch batch = random_batch(spec, options, random);
    batch.logits_row(2)[batch.labels["labels"][2]] = -infinity;
    CHECK(verify_everywhere(spec, batch) == "");
    Run run(spec, batch);
    CHECK(run.execution.value("loss") == std::numeric_limits<float>::infinity());
  }
}

TEST_CASE("V3: a NaN row stays where the mathematics keeps it") {
  BatchOptions options;
  options.rows = 14;
  options.segments = 4;
  options.masked_fraction = options.ignored_fraction = options.outside_fraction = 0;
  options.segment_form = BatchOptions::Segments::ids;
  std::uint64_t seed = 50;
  for (std::int64_t vocab : {6, 1300}) {
    for (int kind = 0; kind < 3; ++kind) {
      for (int family = 0; family < 5; ++family) {
        LossCase spec = family == 0   ? losses({cross_entropy(), z_loss(), entropy()}, vocab)
                        : family == 1 ? losses({gspo(), cross_entropy()}, vocab)
                        : family == 2 ? losses({dpo(), z_loss()}, vocab)
                        : family == 3 ? losses({grpo(), distillation("reverse_kl")}, vocab)
                                      : losses({distillation("forward_kl")}, vocab);
        spec.outputs = {"logprobs"};
        INFO("vocab " << vocab << ", kind " << kind << ", family " << family);
        std::mt19937_64 random(++seed);
        Batch batch = decided_batch(spec, options, random);
        for (std::int64_t row : {3, 8}) {
          double* z = batch.logits_row(row);
          if (kind == 0) z[vocab / 2] = nan_value;
          if (kind == 1) z[vocab - 1] = infinity;
          if (kind == 2) std::fill_n(z, vocab, -infinity);
          // A * ratio is 0 where the advantage is, whatever the ratio: these rows shall have one.
          if (batch.row_values.count("advantages") != 0) batch.row_values["advantages"][at(row)] = 1;
        }
        CHECK(verify_everywhere(spec, batch) == "");
      }
    }
  }
}

TEST_CASE("V3: NaN in a teacher or in a row tensor") {
  BatchOptions options;
  options.masked_fraction = options.ignored_fraction = 0;
  LossCase spec = losses({distillation("reverse_kl"), cross_entropy()}, 12);
  std::mt19937_64 random(60);
  Batch batch = random_batch(spec, options, random);
  batch.elements["teacher_logits"][12 * 4 + 7] = nan_value;
  CHECK(verify_everywhere(spec, batch) == "");

  spec = losses({gspo(), cross_entropy()}, 12);
  options.segment_form = BatchOptions::Segments::ids;
  options.rows = 12;
  batch = decided_batch(spec, options, random);
  batch.segment_ids[5] = 1;
  batch.row_values["old_logprobs"][5] = nan_value;
  batch.row_values["advantages"][5] = 2;
  CHECK(verify_everywhere(spec, batch) == "");
}

}  // namespace
}  // namespace lossc::test
