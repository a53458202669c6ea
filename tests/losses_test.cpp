// Every built-in loss, alone with each option and reduction and in combinations: value, gradient, metrics and
// outputs against the double-precision reference.
#include <string>

#include "tests/cases.h"
#include "tests/catch.h"
#include "tests/verify.h"

namespace lossc::test {
namespace {

struct Types {
  DType logits, teacher, gradient;
};

constexpr Types mixes[] = {
    {DType::bf16, DType::bf16, DType::bf16}, {DType::fp16, DType::fp16, DType::fp16},
    {DType::bf16, DType::fp32, DType::fp32}, {DType::fp32, DType::bf16, DType::fp16},
    {DType::fp16, DType::bf16, DType::bf16}, {DType::fp32, DType::fp16, DType::bf16},
    {DType::bf16, DType::fp16, DType::fp16}, {DType::fp16, DType::fp32, DType::fp32},
};

NamedCase typed(NamedCase named, const Types& types) {
  named.spec.logits_dtype = types.logits;
  named.spec.gradient_dtype = types.gradient;
  for (const Child& child : named.spec.children) {
    if (child.type == "distillation") named.spec.tensor_dtypes[child.input("teacher_logits")] = types.teacher;
  }
  return named;
}

void check(const std::vector<NamedCase>& cases) {
  std::uint64_t seed = 11;
  for (const NamedCase& small : cases) {
    INFO(small.name);
    CHECK(verify_random(small.spec, small.options, ++seed) == "");
    // More rows than threads, several blocks of a row, a tail; another mix of types for each case.
    const NamedCase medium = typed(resized(small, 613, 24, 7), mixes[seed % std::size(mixes)]);
    MemoryOptions memory;
    memory.logits_pitch = 5;
    memory.gradient_pitch = 3;
    memory.element_pitch = 11;
    memory.labels_i32 = seed % 2 == 0;
    memory.segments_i32 = seed % 3 == 0;
    memory.mask_bool = seed % 2 != 0;
    CHECK(verify_random(medium.spec, medium.options, ++seed, memory) == "");
  }
}

TEST_CASE("likelihood losses") {
  check(likelihood_cases());
}
TEST_CASE("distillation") {
  check(distillation_cases());
}
TEST_CASE("policy losses") {
  check(policy_cases());
}
TEST_CASE("preference losses") {
  check(preference_cases());
}
TEST_CASE("combinations") {
  check(combination_cases());
}

TEST_CASE("combinations over a larger vocabulary") {
  std::uint64_t seed = 101;
  for (const NamedCase& small : combination_cases()) {
    INFO(small.name);
    const NamedCase large = typed(resized(small, 9973, 20, 5), mixes[seed % std::size(mixes)]);
    CHECK(verify_random(large.spec, large.options, ++seed) == "");
  }
}

TEST_CASE("all types of logits, teacher and gradient") {
  std::uint64_t seed = 201;
  for (DType logits : {DType::fp32, DType::bf16, DType::fp16}) {
    for (DType teacher : {DType::fp32, DType::bf16, DType::fp16}) {
      for (DType gradient : {DType::fp32, DType::bf16, DType::fp16}) {
        Child distill = distillation("reverse_kl");
        distill.weight = 0.5;
        const NamedCase named =
            typed({"", losses({cross_entropy(), distill}, 259), {}}, {logits, teacher, gradient});
        CHECK(verify_random(named.spec, named.options, ++seed) == "");
      }
    }
  }
}

TEST_CASE("two outputs that are one value are both written") {
  LossCase spec = losses({{.name = "h", .type = "entropy", .options = {{"direction", "minimize"}}}}, 31);
  spec.outputs = {"entropy", "h.loss"};
  CHECK(verify_random(spec, {}, 7) == "");
}

// The two directions of the entropy loss differ in sign alone; wrong labels of "maximize" would pass a test
// that only follows the option.
TEST_CASE("a step along the negative gradient raises the entropy when it is maximised") {
  for (const bool maximize : {true, false}) {
    LossCase spec = losses(
        {{.name = "h", .type = "entropy", .options = {{"direction", maximize ? "maximize" : "minimize"}}}},
        31);
    spec.metrics = {"entropy"};
    std::mt19937_64 random(5);
    Batch batch = random_batch(spec, {}, random);
    Execution execution(compile(spec));
    double before = 0;
    for (int step = 0; step < 2; ++step) {
      BoundBatch memory(spec, batch);
      memory.bind(execution);
      execution.run();
      const double entropy = execution.value("metric.entropy");
      if (step == 1) CHECK((entropy > before) == maximize);
      before = entropy;
      for (std::int64_t r = 0; r < batch.rows; ++r) {
        for (std::int64_t k = 0; k < batch.vocab; ++k) {
          batch.logits_row(r)[k] =
              rounded(DType::fp32, batch.logits_row(r)[k] - 0.5 * memory.gradient_at(r, k));
        }
      }
    }
  }
}

}  // namespace
}  // namespace lossc::test
