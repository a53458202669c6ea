// S1: offsets past 2^31 elements and 2^32 bytes. The memory is a mapping of which only the pages of rows that
// count can be touched: reading or writing any other row ends the test with a signal.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "tests/cases.h"
#include "tests/catch.h"
#include "tests/verify.h"

namespace lossc::test {
namespace {

std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

// Address space without memory behind it, until rows are allowed.
class SparseRows {
 public:
  SparseRows(DType dtype, std::int64_t rows, std::int64_t vocab, std::int64_t pitch)
      : dtype_(dtype), rows_(rows), vocab_(vocab), pitch_(pitch) {
    bytes_ = static_cast<std::size_t>(rows * pitch) * dtype_size(dtype);
    void* memory = mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(memory != MAP_FAILED);
    base_ = static_cast<std::byte*>(memory);
  }
  ~SparseRows() { munmap(base_, bytes_); }
  SparseRows(const SparseRows&) = delete;
  SparseRows& operator=(const SparseRows&) = delete;

  void allow(std::int64_t row) {
    const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<std::uintptr_t>(address(row, 0)) / page * page;
    const auto end = reinterpret_cast<std::uintptr_t>(address(row, vocab_));
    REQUIRE(mprotect(reinterpret_cast<void*>(begin), end - begin, PROT_READ | PROT_WRITE) == 0);
  }
  void set(std::int64_t row, std::int64_t k, double value) {
    const std::uint64_t bits = encode(dtype_, value);
    std::memcpy(address(row, k), &bits, dtype_size(dtype_));
  }
  double get(std::int64_t row, std::int64_t k) const {
    std::uint64_t bits = 0;
    std::memcpy(&bits, address(row, k), dtype_size(dtype_));
    return decode(dtype_, bits);
  }
  TensorView view() { return {base_, dtype_, {rows_, vocab_}, {pitch_, 1}}; }

 private:
  std::byte* address(std::int64_t row, std::int64_t k) const {
    return base_ + static_cast<std::size_t>(row * pitch_ + k) * dtype_size(dtype_);
  }
  DType dtype_;
  std::int64_t rows_, vocab_, pitch_;
  std::size_t bytes_ = 0;
  std::byte* base_ = nullptr;
};

// `counting` rows of a tall batch hold the rows of a small one; all others are masked.
void check(DType dtype, std::int64_t rows, std::int64_t vocab, std::int64_t pitch,
           const std::vector<std::int64_t>& counting) {
  LossCase spec = losses({cross_entropy(), z_loss(), gspo()}, vocab);
  spec.logits_dtype = dtype;
  spec.gradient_mode = "accumulate";
  spec.outputs = {"logprobs"};
  BatchOptions options;
  options.rows = static_cast<std::int64_t>(counting.size());
  options.masked_fraction = options.ignored_fraction = options.outside_fraction = 0;
  options.segment_form = BatchOptions::Segments::ids;
  std::mt19937_64 random(7);
  const Batch batch = decided_batch(spec, options, random);
  const Reference right = reference(spec, batch);

  SparseRows logits(dtype, rows, vocab, pitch), gradient(dtype, rows, vocab, pitch);
  std::vector<std::int64_t> labels(at(rows), 0), segments(at(rows), 0);
  std::vector<std::uint8_t> mask(at(rows), 0);
  std::vector<float> old_logprobs(at(rows), 0), advantages(at(rows), 0), logprobs(at(rows), -1);
  std::int64_t num_segments = batch.segments;
  for (std::int64_t i = 0; i < batch.rows; ++i) {
    const std::int64_t row = counting[at(i)];
    logits.allow(row);
    gradient.allow(row);
    mask[at(row)] = 1;
    labels[at(row)] = batch.labels.at("labels")[at(i)];
    segments[at(row)] = batch.segment_ids[at(i)];
    old_logprobs[at(row)] = static_cast<float>(batch.row_values.at("old_logprobs")[at(i)]);
    advantages[at(row)] = static_cast<float>(batch.row_values.at("advantages")[at(i)]);
    for (std::int64_t k = 0; k < vocab; ++k) {
      logits.set(row, k, batch.logits[at(i * vocab + k)]);
      gradient.set(row, k, batch.previous_gradient[at(i * vocab + k)]);
    }
  }
  Execution execution(compile(spec));
  execution.bind("logits", logits.view());
  execution.bind("grad_logits", gradient.view());
  execution.bind("labels", tensor(labels));
  execution.bind("mask", tensor(mask));
  execution.bind("segment_ids", tensor(segments));
  execution.bind("num_segments", tensor(&num_segments, {}));
  execution.bind("old_logprobs", tensor(old_logprobs));
  execution.bind("advantages", tensor(advantages));
  execution.bind("output.logprobs", tensor(logprobs));
  execution.run();

  for (const auto& [name, value] : right.scalars) {
    INFO(name);
    CHECK(agrees(execution.value(name), value, DType::fp32));
  }
  for (std::int64_t i = 0; i < batch.rows; ++i) {
    const std::int64_t row = counting[at(i)];
    CHECK(agrees(logprobs[at(row)], right.rows.at("output.logprobs")[at(i)], DType::fp32));
    for (std::int64_t k = 0; k < vocab; ++k) {
      const std::size_t e = at(i * vocab + k);
      const Bounded expected = Bounded(batch.previous_gradient[e]) + right.gradient[e];
      if (agrees(gradient.get(row, k), expected, dtype)) continue;
      FAIL("gradient[" << row << ", " << k << "]: " << gradient.get(row, k) << ", not " << expected.value);
    }
  }
  CHECK(std::count(logprobs.begin(), logprobs.end(), 0.0f) == rows - batch.rows);
}

TEST_CASE("S1: rows that lie more than 2^32 bytes apart") {
  const std::int64_t pitch = (std::int64_t{1} << 31) + 4099;
  check(DType::fp32, 5, 1001, pitch, {0, 1, 4});
  check(DType::bf16, 7, 1001, pitch, {1, 2, 5, 6});
}

TEST_CASE("S1: more than 2^31 elements, most rows masked, none of those touched") {
  if (devices().front() == "interpreter") return;  // it keeps every value of the logits' shape
  const std::int64_t vocab = 2051, rows = (std::int64_t{1} << 31) / vocab + 1000;
  check(DType::bf16, rows, vocab, vocab, {0, 5, rows / 2, rows - 900, rows - 2, rows - 1});
  check(DType::fp32, rows, vocab, vocab, {3, rows / 4, rows / 2 + 1, rows - 1});
}

}  // namespace
}  // namespace lossc::test
