// The work in steps, over chunks of rows, gives the bits of run().
#include <string>

#include "tests/cases.h"
#include "tests/catch.h"
#include "tests/verify.h"

namespace lossc::test {
namespace {

using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;

void run_in_steps(Execution& execution, BoundBatch& memory, std::int64_t rows, const Ranges& ranges,
                  bool chunks) {
  const auto chunk = [&](std::int64_t begin, std::int64_t end) {
    return chunks ? memory.chunk(begin, end) : std::map<std::string, TensorView>{};
  };
  execution.begin(rows);
  for (int region = 0; region + 1 < execution.regions(); ++region) {
    for (const auto& [begin, end] : ranges) execution.forward(begin, end, chunk(begin, end));
    execution.seam();
  }
  for (const auto& [begin, end] : ranges) execution.backward(begin, end, chunk(begin, end));
  execution.finish();
}

void check(std::vector<Child> children, DType dtype, const std::string& mode) {
  LossCase spec = losses(std::move(children), 347);
  spec.logits_dtype = dtype;
  spec.gradient_mode = mode;
  spec.metrics = {"entropy", "token_accuracy"};
  spec.outputs = {"logprobs"};
  BatchOptions options;
  options.rows = 31;
  options.segments = 5;
  options.grad_scale = BatchOptions::GradScale::rows;
  std::mt19937_64 random(1);
  const Batch batch = decided_batch(spec, options, random);
  const Program program = compile(spec);
  Execution execution(program);
  BoundBatch memory(spec, batch);
  memory.bind(execution);
  execution.run();
  CHECK(differences(spec, batch, reference(spec, batch), execution, memory) == std::vector<std::string>{});
  const std::vector<std::uint64_t> whole = result_bits(program, execution, memory);
  const auto gradient_bits = [&] {
    return mode == "none" ? std::vector<std::uint64_t>{} : memory.gradient().bits();
  };
  const std::vector<std::uint64_t> gradient = gradient_bits();

  for (const Ranges& ranges : {Ranges{{0, 11}, {11, 12}, {12, 31}}, Ranges{{20, 31}, {0, 7}, {7, 20}},
                               Ranges{{0, 31}}, Ranges{{0, 16}, {16, 16}, {16, 31}}}) {
    for (const bool chunks : {true, false}) {
      if (chunks && devices().front() == "interpreter") continue;  // it computes all rows at once
      INFO("first range " << ranges[0].first << ".." << ranges[0].second << ", chunks " << chunks);
      memory.reset();
      if (chunks) {
        memory.bind_without_elements(execution);
      } else {
        memory.bind(execution);
      }
      run_in_steps(execution, memory, batch.rows, ranges, chunks);
      CHECK(differing(result_bits(program, execution, memory), whole) == 0);
      CHECK(differing(gradient_bits(), gradient) == 0);
      CHECK(memory.damage() == std::vector<std::string>{});
    }
  }
}

void check_modes(const std::vector<Child>& children) {
  check(children, DType::fp32, "overwrite");
  check(children, DType::bf16, "overwrite");
  check(children, DType::bf16, "accumulate");
  check(children, DType::fp16, "in_place");
  check(children, DType::fp32, "none");
}

TEST_CASE("one region in steps: cross entropy and z-loss") {
  check_modes({cross_entropy(), z_loss()});
}

TEST_CASE("a seam in steps: GSPO, z-loss and cross entropy") {
  check_modes({gspo(), z_loss(), cross_entropy()});
}

TEST_CASE("a seam in steps: GSPO and distillation") {
  check_modes({gspo(), distillation("reverse_kl")});
}

TEST_CASE("a seam in steps: DPO") {
  check_modes({dpo()});
}

// A large gradient may be written past the caches, in lines; that of a few rows is not.
TEST_CASE("a large gradient has the bits of its rows one by one") {
  if (devices().front() != "cpu") return;
  for (const std::vector<Child>& children : {std::vector<Child>{cross_entropy(), z_loss()},
                                             {gspo(), cross_entropy()},
                                             {distillation("reverse_kl"), cross_entropy()}}) {
    LossCase spec = losses(children, 8229);  // rows begin at every distance from a line
    BatchOptions options;
    options.rows = 1100;  // 34 MiB
    options.segments = 20;
    std::mt19937_64 random(3);
    const Batch batch = random_batch(spec, options, random);
    Execution execution(compile(spec));
    BoundBatch memory(spec, batch);
    memory.bind(execution);
    execution.run();
    const std::vector<std::uint64_t> whole = memory.gradient().bits();
    CHECK(memory.damage() == std::vector<std::string>{});
    memory.reset();
    memory.bind_without_elements(execution);
    Ranges ranges;
    for (std::int64_t row = 0; row < options.rows; row += 100) ranges.emplace_back(row, row + 100);
    run_in_steps(execution, memory, options.rows, ranges, true);
    CHECK(differing(memory.gradient().bits(), whole) == 0);
  }
}

TEST_CASE("steps out of order are refused") {
  const LossCase spec = losses({gspo(), cross_entropy()}, 13);
  std::mt19937_64 random(2);
  const Batch batch = random_batch(spec, {}, random);
  Execution execution(compile(spec));
  BoundBatch memory(spec, batch);
  memory.bind(execution);
  const auto refused = [](const auto& f) {
    try {
      f();
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::invalid_argument);
      return;
    }
    FAIL("no error was thrown");
  };
  refused([&] { execution.forward(0, batch.rows); });
  execution.begin(batch.rows);
  refused([&] { execution.backward(0, batch.rows); });
  refused([&] { execution.forward(0, batch.rows + 1); });
  refused([&] { execution.forward(3, 2); });
  execution.forward(0, batch.rows);
  execution.seam();
  execution.backward(0, batch.rows);
  execution.finish();
  CHECK(differences(spec, batch, reference(spec, batch), execution, memory) == std::vector<std::string>{});
}

}  // namespace
}  // namespace lossc::test
