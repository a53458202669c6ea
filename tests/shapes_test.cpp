// Shapes and memory: vocabularies of every kind, pitches, padding, views, alignments; what is refused; sizes
// that change without a compilation. S1 ... S5 are lines of the list of cases that must work;
// threads_test.cpp has S6 and S7.
#include <cmath>
#include <numeric>
#include <string>

#include "tests/cases.h"
#include "tests/catch.h"
#include "tests/verify.h"

namespace lossc::test {
namespace {

std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

LossCase everything(std::int64_t vocab, DType dtype = DType::fp32) {
  Child distill = distillation("reverse_kl");
  distill.weight = 0.5;
  LossCase spec = losses({gspo(), z_loss(), cross_entropy(), distill}, vocab);
  spec.logits_dtype = dtype;
  spec.outputs = {"logprobs"};
  return spec;
}

template <class F>
ErrorCode code_of(F&& f, std::string* message = nullptr) {
  try {
    f();
  } catch (const Error& error) {
    if (message != nullptr) *message = error.what();
    return error.code();
  }
  FAIL("no error was thrown");
  return ErrorCode::internal;
}

TEST_CASE("vocabularies from 1 to 300") {
  // Every remainder of a block and of a vector, and one block more.
  BatchOptions options;
  options.rows = 5;
  std::uint64_t seed = 1;
  std::vector<std::int64_t> sizes(35);
  std::iota(sizes.begin(), sizes.end(), 1);
  sizes.insert(sizes.end(), {47, 48, 49, 63, 64, 65, 97, 127, 128, 129, 255, 256, 257, 300});
  for (const std::int64_t vocab : sizes) {
    const DType dtype = vocab % 3 == 0 ? DType::bf16 : vocab % 3 == 1 ? DType::fp32 : DType::fp16;
    INFO("vocab " << vocab);
    CHECK(verify_random(everything(vocab, dtype), options, ++seed) == "");
  }
}

TEST_CASE("large vocabularies: odd, prime, just past powers of two") {
  std::uint64_t seed = 400;
  for (std::int64_t vocab : {4095, 4097, 8191, 32003, 50257, 128257, 262147}) {
    for (DType dtype : {DType::fp32, DType::bf16}) {
      BatchOptions options;
      options.rows = 4;
      options.segments = 2;
      INFO("vocab " << vocab);
      CHECK(verify_random(everything(vocab, dtype), options, ++seed) == "");
    }
  }
}

TEST_CASE("S2: pitches, padding columns and misaligned bases") {
  std::uint64_t seed = 500;
  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    const auto element = static_cast<std::int64_t>(dtype_size(dtype));
    for (std::int64_t shift : {0, 1, 3, 7, 16}) {
      for (std::int64_t padding : {0, 1, 9}) {
        MemoryOptions memory;
        memory.logits_pitch = shift;
        memory.gradient_pitch = 2 * shift;
        memory.element_pitch = shift + 1;
        memory.padded_columns = padding;
        memory.gradient_padded_columns = padding == 9 ? 4 : padding;
        memory.misalign = shift * element;
        CHECK(verify_random(everything(203, dtype), {}, ++seed, memory) == "");
      }
    }
  }
}

TEST_CASE("S2: [batch, sequence, vocab], also a slice of it") {
  std::uint64_t seed = 600;
  for (std::int64_t batch : {1, 3}) {
    for (std::int64_t skipped : {0, 1}) {
      MemoryOptions memory;
      memory.batch = batch;
      memory.skipped_positions = skipped;
      memory.gradient_pitch = 6;
      BatchOptions options;
      options.rows = 12;
      CHECK(verify_random(everything(61, DType::bf16), options, ++seed, memory) == "");
    }
  }
}

TEST_CASE("S2: one row of memory read as many rows") {
  const LossCase spec = losses({cross_entropy(), z_loss()}, 97);
  BatchOptions options;
  options.masked_fraction = options.ignored_fraction = 0;
  std::mt19937_64 random(610);
  Batch batch = random_batch(spec, options, random);
  for (std::int64_t r = 1; r < batch.rows; ++r) std::copy_n(batch.logits_row(0), 97, batch.logits_row(r));
  const Program program = compile(spec);
  Execution execution(program);
  BoundBatch memory(spec, batch);
  memory.bind(execution);
  TensorView view = memory.tensor("logits").view();
  view.strides = {0, 1};
  execution.bind("logits", view);
  execution.run();
  const auto found = differences(spec, batch, reference(spec, batch), execution, memory);
  CHECK(found == std::vector<std::string>{});
}

TEST_CASE("S2: what does not fit is refused before anything is written") {
  const LossCase spec = losses({cross_entropy(), distillation("reverse_kl")}, 12);
  std::mt19937_64 random(620);
  BatchOptions options;
  options.rows = 12;
  const Batch batch = random_batch(spec, options, random);
  const Program program = compile(spec);
  Execution execution(program);
  BoundBatch memory(spec, batch);
  const auto refused = [&](const std::string& name, const auto& change) {
    INFO(name);
    memory.bind(execution);
    TensorView view = memory.tensor(name).view();
    change(view);
    std::string message;
    const ErrorCode code = code_of(
        [&] {
          execution.bind(name, view);
          execution.run();
        },
        &message);
    CHECK(code == ErrorCode::invalid_argument);
    INFO(message);
    CHECK(message.find(name) != message.npos);
    CHECK(memory.tensor("grad_logits").unchanged());
  };
  for (const char* name : {"logits", "grad_logits", "teacher_logits"}) {
    refused(name, [](TensorView& v) { v.strides = {1, 12}; });    // transposed
    refused(name, [](TensorView& v) { v.strides = {24, 2}; });    // every other column
    refused(name, [](TensorView& v) { v.shape[1] = 11; });        // narrower than the vocab
    refused(name, [](TensorView& v) { v.shape[0] = 11; });        // too few rows
    refused(name, [](TensorView& v) { v.dtype = DType::bf16; });  // another type than the spec's
    refused(name, [](TensorView& v) { v = TensorView{v.data, v.dtype, {144}, {}}; });  // one dimension
  }
  refused("grad_logits", [](TensorView& v) { v.strides = {0, 1}; });  // rows over each other
  refused("grad_logits", [](TensorView& v) { v.strides = {5, 1}; });
  refused("grad_logits",
          [&](TensorView& v) { v.data = memory.tensor("logits").view().data; });  // over an input
  refused("labels", [](TensorView& v) { v.shape = {11}; });
  refused("labels", [](TensorView& v) { v.dtype = DType::fp32; });
  refused("mask", [](TensorView& v) { v.dtype = DType::i64; });

  // A tensor that is needed and not there; one that nobody knows.
  memory.bind(execution);
  execution.unbind("labels");
  CHECK(code_of([&] { execution.run(); }) == ErrorCode::invalid_argument);
  CHECK(code_of([&] { execution.bind("label", memory.tensor("labels").view()); }) ==
        ErrorCode::invalid_argument);
  // After all that, the right batch is right.
  memory.bind(execution);
  execution.run();
  CHECK(differences(spec, batch, reference(spec, batch), execution, memory) == std::vector<std::string>{});
}

TEST_CASE("S3: scalars with stride 0") {
  LossCase spec = losses({gspo()}, 23);
  BatchOptions options;
  options.segment_form = BatchOptions::Segments::ids;
  options.grad_scale = BatchOptions::GradScale::scalar;
  std::mt19937_64 random(630);
  const Batch batch = decided_batch(spec, options, random);
  const Program program = compile(spec);
  Execution execution(program);
  for (const bool over_rows : {false, true}) {
    BoundBatch memory(spec, batch);
    memory.bind(execution);
    TensorView scale = memory.tensor("grad_scale").view();
    if (over_rows) {
      scale.shape = {batch.rows};
      scale.strides = {0};
    }
    execution.bind("grad_scale", scale);
    execution.run();
    CHECK(differences(spec, batch, reference(spec, batch), execution, memory) == std::vector<std::string>{});
  }
}

TEST_CASE("S4: a label or segment id out of range makes its row NaN and is reported") {
  for (const std::int64_t wrong :
       {std::int64_t{23}, std::int64_t{24}, std::int64_t{1} << 31, std::int64_t{1} << 40}) {
    for (const bool segment : {false, true}) {
      LossCase spec = losses({gspo(), cross_entropy()}, 23);
      spec.outputs = {"ce.loss"};
      BatchOptions options;
      options.masked_fraction = options.ignored_fraction = options.outside_fraction = 0;
      options.segment_form = BatchOptions::Segments::ids;
      std::mt19937_64 random(640);
      Batch batch = decided_batch(spec, options, random);
      const Reference right = reference(losses({cross_entropy()}, 23), batch);
      for (std::int64_t row : {3, 6}) {
        (segment ? batch.segment_ids : batch.labels["labels"])[at(row)] = segment ? wrong - 20 : wrong;
      }
      for (const std::string& device : devices()) {
        INFO(device << ", " << wrong << ", segment " << segment);
        Execution execution(compile(spec, device));
        BoundBatch memory(spec, batch);
        memory.bind(execution);
        std::string message;
        CHECK(code_of([&] { execution.run(); }, &message) == ErrorCode::invalid_data);
        INFO(message);
        CHECK(message.find('3') != message.npos);
        CHECK(execution.status().bad_rows == 2);
        CHECK(execution.status().first_bad_row == 3);
        CHECK(std::isnan(execution.value("loss")));
        CHECK(std::isnan(execution.value("loss.policy")));
        CHECK(memory.damage() == std::vector<std::string>{});
        for (std::int64_t r = 0; r < batch.rows; ++r) {
          const bool bad = r == 3 || r == 6;
          CHECK(std::isnan(memory.tensor("output.ce.loss").get(r)) == bad);
          // Outputs are written: every element, and NaN in the bad rows.
          for (std::int64_t k = 0; bad && k < 23; ++k) CHECK(std::isnan(memory.gradient_at(r, k)));
        }
        // The cross entropies of the other rows are exact.
        for (std::int64_t r : {0, 1, 2, 4, 5, 7}) {
          const double loss = memory.tensor("output.ce.loss").get(r);
          CHECK(std::isfinite(loss));
          CHECK(right.live[at(r)]);
        }
      }
    }
  }
}

TEST_CASE("S4: cu_seqlens that do not cover the rows, pairs that name no segment") {
  const LossCase spec = losses({dpo()}, 9);
  BatchOptions options;
  options.segment_form = BatchOptions::Segments::cu_seqlens;
  options.segments = 4;
  options.masked_fraction = options.ignored_fraction = 0;
  std::mt19937_64 random(650);
  const Batch right = random_batch(spec, options, random);
  const auto refused = [&](const auto& change) {
    Batch batch = right;
    change(batch);
    Execution execution(compile(spec));
    BoundBatch memory(spec, batch);
    memory.bind(execution);
    std::string message;
    const ErrorCode code = code_of([&] { execution.run(); }, &message);
    INFO(message);
    CHECK((code == ErrorCode::invalid_data || code == ErrorCode::invalid_argument));
    CHECK(memory.damage() == std::vector<std::string>{});
  };
  refused([](Batch& b) { b.cu_seqlens = {0, 5, 3, 6, 8}; });
  refused([](Batch& b) { b.cu_seqlens = {0, 2, 3, 6, 7}; });
  refused([](Batch& b) { b.cu_seqlens = {0, 2, 3, 6, 9}; });
  refused([](Batch& b) { b.cu_seqlens = {1, 2, 3, 6, 8}; });
  refused([](Batch& b) { b.cu_seqlens = {-1, 2, 3, 6, 8}; });
  refused([](Batch& b) { b.pairs = {{0, 4}}; });
  refused([](Batch& b) { b.pairs = {{std::int64_t{1} << 33, 1}}; });
}

TEST_CASE("S5: 1000 batches of other sizes, pitches, alignments and parameters compile nothing") {
  LossCase spec = everything(131, DType::bf16);
  spec.logits = {.scale = 1.0, .softcap = 20};
  spec.children[3].transform.temperature = 2;
  spec.metrics = {"policy.ratio", "entropy"};
  const Program program = compile(spec);
  Execution execution(program);
  std::mt19937_64 random(660);
  const std::int64_t compilations = statistics().compilations;
  for (int i = 0; i < 1000; ++i) {
    BatchOptions options;
    options.rows = static_cast<std::int64_t>(random() % 40);
    options.segments = static_cast<std::int64_t>(1 + random() % 9);
    options.grad_scale = static_cast<BatchOptions::GradScale>(random() % 3);
    options.label_counts = random() % 2 == 0;
    MemoryOptions memory;
    memory.logits_pitch = static_cast<std::int64_t>(random() % 20);
    memory.gradient_pitch = static_cast<std::int64_t>(random() % 20);
    memory.element_pitch = static_cast<std::int64_t>(random() % 20);
    memory.padded_columns = static_cast<std::int64_t>(random() % 3);
    memory.misalign = static_cast<std::int64_t>(2 * (random() % 32));
    memory.labels_i32 = random() % 2 == 0;
    memory.segments_i32 = random() % 2 == 0;
    memory.mask_bool = random() % 2 == 0;
    const auto between = [&](double low, double high) {
      return low + (high - low) * static_cast<double>(random() % 1000) / 1000;
    };
    spec.logits = {.scale = between(0.2, 2), .softcap = between(3, 40)};
    spec.children[0].numbers = {{"epsilon_low", between(0.05, 0.3)}, {"epsilon_high", between(0.05, 0.3)}};
    spec.children[1].weight = random() % 4 == 0 ? 0 : between(1e-4, 0.1);
    spec.children[3].weight = between(0, 2);
    spec.children[3].transform.temperature = between(0.5, 4);
    spec.set_parameters(execution);
    const Batch batch = decided_batch(spec, options, random);
    BoundBatch bound(spec, batch, memory);
    bound.bind(execution);
    execution.run();
    const auto found = differences(spec, batch, reference(spec, batch), execution, bound);
    INFO("batch " << i << ", " << options.rows << " rows\n" << spec.to_json());
    REQUIRE(found == std::vector<std::string>{});
  }
  CHECK(statistics().compilations == compilations);
  // The same structure with other numbers, names and key order is the same program.
  spec.children[1].name = "another";
  compile(spec);
  CHECK(statistics().compilations == compilations);
}

}  // namespace
}  // namespace lossc::test
