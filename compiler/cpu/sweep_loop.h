// The loop of a sweep over one row's elements, with its accumulators.
//
// Elements are dealt to lanes and accumulators by their offset in the row alone, so a row's sums do not
// depend on where it lies in memory. Sums are kept in blocks, so that rounding grows with a block's length,
// not the row's. The tail shorter than a vector is masked.
#pragma once

#include <algorithm>
#include <vector>

#include "compiler/cpu/sweep_place.h"

namespace lossc::cpu {

struct Accumulator {
  enum class Kind { sum, max, argmax } kind = Kind::sum;
  std::vector<llvm::Value*> partial;  // stack slots, one per vector of the loop's body
  llvm::Value* row = nullptr;         // sum: of the blocks done; argmax: the index
};

class SweepLoop {
 public:
  /// A row's address, fetched ahead of while the loop runs.
  struct Stream {
    llvm::Value* address;
    std::size_t element_bytes;
    bool write;
  };
  using Body = std::function<void(const Place&)>;

  /// `unroll`: vectors in the loop's body. It decides which accumulator an element joins: one number for all
  /// sweeps that accumulate, so that a statistic's bits do not depend on which others are formed beside it.
  /// For the same reason the logits' type alone decides whether units are paired.
  SweepLoop(Codegen& codegen, std::int64_t vocab, unsigned unroll)
      : c_(codegen),
        vocab_(vocab),
        unroll_(unroll),
        paired_(codegen.target.width == 16 && unroll == 2 && codegen.spec.logits_dtype == DType::bf16) {}

  Accumulator accumulator(Accumulator::Kind kind);
  void accumulate(Accumulator& accumulator, llvm::Value* v, const Place& place);
  /// The whole row.
  void run(const Body& body, const std::vector<Stream>& streams = {});
  /// The whole row for two bodies at once. `front` is always `lead` elements (0 to lead_limit()) further than
  /// `body`, and its places count from there: j = -lead is the row's first element. At its places without a
  /// mask it therefore meets every address aligned to a vector, if it does so at the first one.
  void run_ahead(const Body& front, llvm::Value* lead, const Body& body, const std::vector<Stream>& streams);
  std::int64_t lead_limit() const { return c_.target.width == 16 ? 15 : 0; }
  /// The first `head` elements and `spread` single vectors of the rest.
  void run_sample(std::int64_t head, std::int64_t spread, const Body& body);
  /// Fetches what run_sample() will read of the rows that follow in memory.
  void prefetch_sample(std::int64_t head, std::int64_t spread, const std::vector<Stream>& streams);
  /// The scalar result: float, or i32 for argmax.
  llvm::Value* total(const Accumulator& accumulator);
  /// Turns stack slots into registers; the function is complete.
  void finish(llvm::Function& function);

 private:
  /// Elements that whole units cover: a body that runs ahead is inside of the row then.
  std::int64_t whole() const {
    const std::int64_t unit = static_cast<std::int64_t>(c_.target.width) * unroll_;
    return std::max<std::int64_t>(vocab_ - lead_limit(), 0) / unit * unit;
  }
  void run_units(const Body& body, const std::vector<Stream>& streams);
  void run_rest(const Body& body);
  llvm::Value* slot(llvm::Type* type, llvm::Value* initial);
  void end_block();
  void prefetch_line(const Stream& stream, llvm::Value* bytes);
  void prefetch(const std::vector<Stream>& streams, llvm::Value* j);
  llvm::Value* reduce(llvm::Value* v, const std::function<llvm::Value*(llvm::Value*, llvm::Value*)>& combine);

  Codegen& c_;
  std::int64_t vocab_;
  unsigned unroll_;
  bool paired_;
  std::vector<Accumulator> sums_;  // ended block by block
};

}  // namespace lossc::cpu
