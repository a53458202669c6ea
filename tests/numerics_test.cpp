// Numbers that break naive kernels: shifts, ties, cancellation, overflow, combinations. V4 ... V14 are lines
// of the list of cases that must work; masking_test.cpp has V1 ... V3.
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

TEST_CASE("V4: vocabularies of awkward sizes under a soft cap") {
  std::uint64_t seed = 70;
  for (std::int64_t vocab : {1, 2, 3, 50257, 128257, 151936}) {
    for (DType dtype : {DType::fp32, DType::bf16}) {
      LossCase spec = losses({cross_entropy(), z_loss()}, vocab);
      spec.logits.softcap = 30;
      spec.logits_dtype = dtype;
      spec.outputs = {"lse"};
      BatchOptions options;
      options.rows = 3;
      options.ignored_fraction = options.masked_fraction = 0;
      CHECK(verify_random(spec, options, ++seed) == "");
    }
  }
}

TEST_CASE("V5: label smoothing with half of the rows ignored") {
  LossCase spec = losses({cross_entropy()}, 50);
  spec.children[0].numbers["label_smoothing"] = 0.1;
  BatchOptions options;
  options.rows = 40;
  options.ignored_fraction = 0.5;
  CHECK(verify_random(spec, options, 80) == "");
}

TEST_CASE("V6: the label's gradient keeps its digits where its probability nears 1") {
  for (const double others : {63.0, 4095.0}) {
    const auto vocab = static_cast<std::int64_t>(others) + 1;
    LossCase spec = losses({cross_entropy()}, vocab);
    spec.logits_dtype = DType::bf16;
    spec.outputs = {"logprobs"};
    Batch batch{.rows = 1, .vocab = vocab};
    batch.logits.assign(at(vocab), 0);
    const double z = rounded(DType::bf16, std::log(999 * others));
    batch.logits[5] = z;
    batch.labels["labels"] = {5};
    Run run(spec, batch);
    const double right = -others / (std::exp(z) + others);
    const double ulp = 2 * half_ulp(DType::bf16, right);
    CHECK(std::abs(run.memory.gradient_at(0, 5) - right) <= ulp);
    CHECK(verify_everywhere(spec, batch) == "");
  }
}

TEST_CASE("V7: a shift of all logits changes nothing but the z-loss") {
  for (const double shift : {1e4, -1e4}) {
    LossCase spec = losses({cross_entropy(), entropy(), distillation("reverse_kl"), grpo()}, 777);
    spec.metrics = {"entropy"};
    std::mt19937_64 random(90);
    Batch batch = decided_batch(spec, {}, random);
    // Multiples of 1/64 are exact at 1e4 too: the shifted logits are the same numbers.
    for (double& z : batch.logits) z = std::round(z * 64) / 64;
    Batch shifted = batch;
    for (double& z : shifted.logits) z += shift;
    CHECK(verify(spec, batch) == "");
    CHECK(verify(spec, shifted) == "");
    Run here(spec, batch), there(spec, shifted);
    CHECK(std::abs(here.execution.value("loss.ce") - there.execution.value("loss.ce")) <= 1e-3);

    LossCase alone = losses({cross_entropy(), z_loss()}, 777);
    CHECK(verify(alone, shifted) == "");
    Run run(losses({cross_entropy()}, 777), shifted);
    const Reference right = reference(losses({cross_entropy()}, 777), shifted);
    for (std::int64_t r = 0; r < batch.rows; ++r) {
      double sum = 0, bound = 0;
      for (std::int64_t k = 0; k < 777; ++k) {
        sum += run.memory.gradient_at(r, k);
        bound += right.gradient[at(r * 777 + k)].error + half_ulp(DType::fp32, run.memory.gradient_at(r, k));
      }
      CHECK(std::abs(sum) <= bound);
    }
  }
}

TEST_CASE("V8: a ratio exactly on a clip bound keeps its gradient") {
  // The old log-probabilities are the very numbers that the program computes, so every ratio is exactly 1;
  // with epsilon 0 both bounds are 1 too. The inclusive test then clips nothing, as PyTorch's clamp and max.
  for (const bool sequence : {false, true}) {
    LossCase spec = losses({sequence ? gspo() : grpo()}, 19);
    spec.children[0].numbers = {{"epsilon_low", 0}, {"epsilon_high", 0}};
    spec.outputs = {"logprobs"};
    spec.metrics = {"policy.ratio", "policy.clip_fraction", "policy.clip_fraction_band", "policy.kl_k3"};
    BatchOptions options;
    options.segment_form = BatchOptions::Segments::ids;
    std::mt19937_64 random(100);
    Batch batch = random_batch(spec, options, random);
    // Only fp32 arithmetic hands back all digits of its log-probabilities.
    if (devices().front() != "cpu") return;
    Run probe(spec, batch);
    for (std::int64_t r = 0; r < batch.rows; ++r) {
      batch.row_values["old_logprobs"][at(r)] = probe.memory.tensor("output.logprobs").get(r);
    }
    Run run(spec, batch);
    INFO("sequence " << sequence);
    CHECK(run.execution.value("metric.policy.ratio") == 1);
    CHECK(run.execution.value("metric.policy.clip_fraction") == 0);
    CHECK(run.execution.value("metric.policy.clip_fraction_band") == 0);
    CHECK(run.execution.value("metric.policy.kl_k3") == 0);
    // The gradient of an unclipped surrogate: the same as with wide bounds.
    LossCase wide = spec;
    wide.children[0].numbers = {{"epsilon_low", 0.5}, {"epsilon_high", 0.5}};
    Run unclipped(wide, batch);
    CHECK(differing(run.memory.gradient().bits(), unclipped.memory.gradient().bits()) == 0);
    const std::vector<double> gradient = run.gradient();
    CHECK(std::any_of(gradient.begin(), gradient.end(), [](double g) { return g != 0; }));
  }
}

TEST_CASE("V8: an advantage of 0 gives exactly 0, whatever the ratio") {
  for (const bool sequence : {false, true}) {
    LossCase spec = losses({sequence ? gspo() : grpo()}, 13);
    BatchOptions options;
    options.masked_fraction = options.ignored_fraction = 0;
    std::mt19937_64 random(110);
    Batch batch = random_batch(spec, options, random);
    std::fill(batch.row_values["advantages"].begin(), batch.row_values["advantages"].end(), 0.0);
    // exp overflows in fp32, in double too, and underflows.
    batch.row_values["old_logprobs"][0] = -200;
    batch.row_values["old_logprobs"][1] = -2000;
    batch.row_values["old_logprobs"][2] = 2000;
    Run run(spec, batch);
    CHECK(run.execution.value("loss") == 0);
    for (double g : run.gradient()) CHECK(g == 0);
    CHECK(verify_everywhere(spec, batch) == "");
  }
}

TEST_CASE("an overflowing ratio is clipped where the advantage is positive") {
  LossCase spec = losses({grpo()}, 13);
  BatchOptions options;
  options.masked_fraction = options.ignored_fraction = 0;
  std::mt19937_64 random(111);
  Batch batch = decided_batch(spec, options, random);
  batch.row_values["old_logprobs"][0] = -2000;
  batch.row_values["advantages"][0] = 1.5;
  batch.row_values["old_logprobs"][1] = 2000;
  batch.row_values["advantages"][1] = -1.5;
  CHECK(verify_everywhere(spec, batch) == "");
}

TEST_CASE("V9: GSPO over documents of 1, 2 and 4000 tokens in random order") {
  LossCase spec = losses({gspo()}, 11);
  spec.children[0].numbers = {{"epsilon_low", 0.02}, {"epsilon_high", 0.03}};
  spec.metrics = {"policy.segments", "policy.tokens", "policy.ratio"};
  spec.outputs = {"policy.loss"};
  // Segment 3 is fully masked, 4 and 6 have no row at all.
  std::vector<std::int64_t> ids = {0, 1, 1};
  ids.insert(ids.end(), 4000, 2);
  ids.insert(ids.end(), 20, 3);
  ids.insert(ids.end(), 50, 5);
  ids.insert(ids.end(), 30, -1);
  BatchOptions options;
  options.rows = static_cast<std::int64_t>(ids.size());
  options.segments = 7;
  options.segment_form = BatchOptions::Segments::ids;
  options.ignored_fraction = options.masked_fraction = 0;
  options.log_ratio_spread = 0.2;
  for (std::uint64_t seed = 120; seed < 124; ++seed) {
    std::mt19937_64 random(seed);
    std::shuffle(ids.begin(), ids.end(), random);
    Batch batch = random_batch(spec, options, random);
    batch.segment_ids = ids;
    for (std::int64_t r = 0; r < batch.rows; ++r) {
      const bool hidden = ids[at(r)] == 3 || ids[at(r)] < 0;
      batch.mask[at(r)] = ids[at(r)] != 3;
      for (std::int64_t k = 0; k < batch.vocab; ++k) {
        batch.logits_row(r)[k] =
            hidden ? nan_value : rounded(DType::fp32, 0.01 * double(r % 97) * double(k % 5));
      }
      // Large enough to be seen in a document of one token, in a mean of 4000 near 1.
      batch.row_values["old_logprobs"][at(r)] = rounded(DType::fp32, -2.4 + 0.05 * double(r % 7));
    }
    if (reference(spec, batch).undecided) continue;
    CHECK(verify_everywhere(spec, batch) == "");
  }
}

TEST_CASE("V10: a combination is the sum of its children") {
  const std::vector<Child> children = {gspo(), z_loss(), cross_entropy(), distillation("reverse_kl")};
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    LossCase together = losses(children, 401);
    together.gradient_dtype = dtype;
    BatchOptions options;
    options.rows = 15;
    std::mt19937_64 random(130);
    const Batch batch = decided_batch(together, options, random);
    Run all(together, batch);
    std::vector<double> sum(batch.logits.size(), 0);
    double loss = 0;
    for (const Child& child : children) {
      const LossCase single = losses({child}, 401);
      Batch part = batch;
      // A program takes only the tensors that it knows.
      if (child.type != "distillation") part.elements.clear();
      if (child.type != "gspo") {
        part.row_values.clear();
        part.segment_ids.clear();
        part.cu_seqlens.clear();
        part.segments = 0;
        part.segmented = false;
      }
      Run run(single, part);
      loss += run.execution.value("loss");
      const std::vector<double> gradient = run.gradient();
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += gradient[i];
    }
    const Reference right = reference(together, batch);
    CHECK(std::abs(all.execution.value("loss") - loss) <= 2 * right.scalars.at("loss").error);
    const std::vector<double> gradient = all.gradient();
    for (std::size_t i = 0; i < sum.size(); ++i) {
      // Both sides carry fp32 errors within the bound; the combination rounds once to its type.
      const double bound =
          2 * right.gradient[i].error + half_ulp(dtype, std::abs(sum[i]) + right.gradient[i].error);
      REQUIRE(std::abs(gradient[i] - sum[i]) <= bound + tiny);
    }
  }
}

TEST_CASE("V12: every gradient mode and type leaves other memory alone") {
  std::uint64_t seed = 140;
  MemoryOptions memory;
  memory.logits_pitch = 3;
  memory.gradient_pitch = 13;
  memory.padded_columns = 2;
  memory.gradient_padded_columns = 5;
  for (const NamedCase& named : combination_cases()) {
    if (named.spec.children.empty()) continue;
    for (const char* mode : {"overwrite", "accumulate", "in_place", "none"}) {
      for (DType gradient : {DType::fp32, DType::bf16, DType::fp16}) {
        NamedCase it = resized(named, 37, 9, 3);
        it.spec.gradient_mode = mode;
        it.spec.gradient_dtype = gradient;
        it.spec.logits_dtype = it.spec.gradient_mode == "in_place" ? gradient : DType::bf16;
        INFO(named.name << ", " << mode);
        CHECK(verify_random(it.spec, it.options, ++seed, memory) == "");
      }
    }
  }
}

TEST_CASE("V12: accumulating twice adds twice") {
  LossCase spec = losses({cross_entropy(), z_loss()}, 83);
  spec.gradient_mode = "accumulate";
  std::mt19937_64 random(150);
  const Batch batch = random_batch(spec, {}, random);
  const Program program = compile(spec);
  Execution execution(program);
  BoundBatch memory(spec, batch);
  memory.bind(execution);
  execution.run();
  execution.run();
  const Reference right = reference(spec, batch);
  for (std::size_t i = 0; i < batch.logits.size(); ++i) {
    const Bounded once = Bounded(batch.previous_gradient[i]) + right.gradient[i];
    REQUIRE(
        agrees(memory.gradient().get(static_cast<std::int64_t>(i)), once + right.gradient[i], DType::fp32));
  }
}

TEST_CASE("V13: temperature on the teacher, on both, and with its square") {
  Child teacher = distillation("forward_kl");
  teacher.numbers["teacher_temperature"] = 3;
  Child both = distillation("forward_kl");
  both.transform.temperature = 3;
  Child squared = both;
  squared.flags["temperature_squared"] = true;
  std::vector<double> values;
  for (const Child& child : {teacher, both, squared}) {
    const LossCase spec = losses({child}, 57);
    std::mt19937_64 random(160);
    const Batch batch = random_batch(spec, {}, random);
    CHECK(verify_everywhere(spec, batch) == "");
    Run run(spec, batch);
    values.push_back(run.execution.value("loss"));
  }
  CHECK(values[0] != values[1]);
  CHECK(std::abs(values[2] - 9 * values[1]) <= 4 * unit * values[2]);
}

TEST_CASE("V14: a child of weight 0 changes not one bit, whatever its loss is") {
  for (const auto& [type, poison] : std::vector<std::pair<std::string, double>>{{"distillation", nan_value},
                                                                                {"distillation", infinity},
                                                                                {"distillation", -infinity},
                                                                                {"grpo", nan_value}}) {
    const LossCase alone = losses({cross_entropy(), z_loss()}, 613);
    LossCase spec = alone;
    Child idle = type == "grpo" ? grpo("idle") : distillation("reverse_kl", "idle");
    idle.weight = 0;
    spec.children.push_back(idle);
    BatchOptions options;
    options.masked_fraction = options.ignored_fraction = 0;
    std::mt19937_64 random(170);
    Batch batch = random_batch(spec, options, random);
    Batch only = batch;
    only.elements.clear();
    only.row_values.clear();
    Run benign(spec, batch), reduced(alone, only);
    for (auto& [name, values] : batch.elements) std::fill(values.begin(), values.end(), poison);
    for (auto& [name, values] : batch.row_values) std::fill(values.begin(), values.end(), poison);
    Run poisoned(spec, batch);
    INFO(type << " " << poison);
    CHECK(differing(poisoned.memory.gradient().bits(), benign.memory.gradient().bits()) == 0);
    CHECK(differing(poisoned.memory.gradient().bits(), reduced.memory.gradient().bits()) == 0);
    CHECK(poisoned.execution.value("loss") == benign.execution.value("loss"));
    CHECK(poisoned.execution.value("loss") == reduced.execution.value("loss"));
    CHECK(std::isfinite(poisoned.execution.value("loss")));
    CHECK(verify(spec, batch) == "");
  }
}

TEST_CASE("logits at the ends of the range") {
  for (DType dtype : {DType::fp32, DType::bf16}) {
    LossCase spec = losses({cross_entropy(), entropy()}, 70);
    spec.logits_dtype = dtype;
    Batch batch{.rows = 3, .vocab = 70};
    batch.logits.assign(210, rounded(dtype, -3e38));
    batch.labels["labels"] = {0, 69, 33};
    batch.logits[0] = batch.logits[70 + 69] = rounded(dtype, 3e38);
    batch.logits[140 + 33] = 60000;
    CHECK(verify_everywhere(spec, batch) == "");
  }
}

TEST_CASE("logits so large that few floats lie between them") {
  for (const double large : {1e8, 5e8, 1e9, 1.3e9, 2e9, 1e10, 1.7e12, 1e20, 1e30, 2e30}) {
    for (const double sign : {1.0, -1.0}) {
      CAPTURE(large, sign);
      LossCase spec = losses({cross_entropy(), entropy()}, 70);
      Batch batch{.rows = 4, .vocab = 70};
      const auto next = static_cast<double>(std::nextafter(static_cast<float>(sign * large), 0.0f));
      const double value = rounded(DType::fp32, sign * large);
      batch.logits.assign(280, 0.0);
      batch.labels["labels"] = {3, 69, 33, 0};
      for (std::size_t k = 0; k < 70; ++k) {
        batch.logits[k] = value;                           // all equal
        batch.logits[70 + k] = k % 3 == 0 ? value : next;  // neighbours
        batch.logits[140 + k] = k == 33 ? value : 0.0;     // one among zeros
        batch.logits[210 + k] = rounded(DType::fp32, value * (1.0 + static_cast<double>(k) / 70));
      }
      CHECK(verify(spec, batch) == "");
    }
  }
}

TEST_CASE("rows that are flat, near one-hot, or rise late") {
  LossCase spec = losses({cross_entropy(), z_loss(1e-4), entropy(), distillation("reverse_kl")}, 5000);
  spec.outputs = {"lse", "logprobs", "entropy"};
  BatchOptions options;
  options.ignored_fraction = options.masked_fraction = 0;
  std::uint64_t seed = 180;
  for (double spread : {0.0, 1e-3, 30.0, 300.0}) {
    options.spread = spread;
    CHECK(verify_random(spec, options, ++seed) == "");
  }
  options.spread = 1;
  std::mt19937_64 random(190);
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    spec.logits_dtype = dtype;
    Batch batch = random_batch(spec, options, random);
    for (std::int64_t k = 0; k < batch.vocab; ++k) {
      const auto set = [&](std::int64_t row, double z) { batch.logits_row(row)[k] = rounded(dtype, z); };
      set(0, k < 600 ? -200 : batch.logits_row(0)[k]);       // the first block far below the rest
      set(1, k < 600 ? -infinity : batch.logits_row(1)[k]);  // ... absent
      set(2, 0.1 * double(k));                               // rising all along, by 500
      set(3, k == 4999 ? 150 : -150);                        // one late peak
      set(4, k == 0 ? 150 : -150);                           // one early peak
      set(5, -0.1 * double(k));                              // falling
      set(6, k % 512 == 511 ? double(k) / 10 : -infinity);   // one finite logit a block
      set(7, k == 2500 ? -300 : -infinity);                  // one finite logit
    }
    for (std::int64_t row = 0; row < 8; ++row) {
      auto& label = batch.labels["labels"][at(row)];
      while (batch.logits_row(row)[label] == -infinity) label = (label + 1) % batch.vocab;
    }
    CHECK(verify(spec, batch) == "");
  }
}

TEST_CASE("an upstream gradient of 0 or below") {
  LossCase spec = losses({cross_entropy(), gspo()}, 21);
  BatchOptions options;
  options.grad_scale = BatchOptions::GradScale::rows;
  std::mt19937_64 random(200);
  Batch batch = decided_batch(spec, options, random);
  batch.grad_scale[1] = 0;
  batch.grad_scale[2] = -2;
  CHECK(verify_everywhere(spec, batch) == "");
}

TEST_CASE("scaled gradients reach the ends of fp16") {
  LossCase spec = losses({cross_entropy()}, 300);
  spec.children[0].reduction = "sum";
  spec.gradient_dtype = DType::fp16;
  std::mt19937_64 random(210);
  for (double scale : {0x1p17, 0x1p-18}) {
    Batch batch = random_batch(spec, {}, random);
    batch.grad_scale = {scale};
    CHECK(verify_everywhere(spec, batch) == "");
  }
}

}  // namespace
}  // namespace lossc::test
