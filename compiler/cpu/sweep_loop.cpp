#include "compiler/cpu/sweep_loop.h"

#include <llvm/IR/Dominators.h>
#include <llvm/IR/Intrinsics.h>
#include <llvm/Transforms/Utils/PromoteMemToReg.h>

#include <limits>
#include <numeric>

namespace lossc::cpu {

using llvm::Value;

namespace {

constexpr std::int64_t kBlock = 1024;  // elements whose sum is formed before it joins the row's
constexpr std::int64_t kLine = 64;     // bytes

}  // namespace

Value* SweepLoop::slot(llvm::Type* type, Value* initial) {
  Value* s = c_.b.CreateAlloca(type);
  c_.b.CreateStore(initial, s);
  return s;
}

Accumulator SweepLoop::accumulator(Accumulator::Kind kind) {
  Accumulator a;
  a.kind = kind;
  Value* zero = c_.splat(c_.f32(0.0));
  Value* lowest = c_.splat(c_.f32(-std::numeric_limits<double>::infinity()));
  const unsigned parts = kind == Accumulator::Kind::argmax ? 1 : unroll_;
  for (unsigned u = 0; u < parts; ++u) {
    a.partial.push_back(slot(c_.vector(), kind == Accumulator::Kind::sum ? zero : lowest));
  }
  if (kind == Accumulator::Kind::sum) {
    a.row = slot(c_.vector(), zero);
    sums_.push_back(a);
  } else if (kind == Accumulator::Kind::argmax) {
    auto* type = llvm::FixedVectorType::get(c_.b.getInt32Ty(), c_.target.width);
    a.row = slot(type, llvm::Constant::getNullValue(type));
  }
  return a;
}

void SweepLoop::accumulate(Accumulator& a, Value* v, const Place& place) {
  auto& b = c_.b;
  Value* s = a.partial[a.kind == Accumulator::Kind::argmax ? 0 : place.u];
  Value* old = b.CreateLoad(c_.vector(), s);
  if (a.kind == Accumulator::Kind::sum) {
    Value* next = nullptr;
    // A product joins the sum in one rounding.
    auto* product = llvm::dyn_cast<llvm::BinaryOperator>(v);
    if (product != nullptr && product->getOpcode() == llvm::Instruction::FMul) {
      next = c_.math.fma(product->getOperand(0), product->getOperand(1), old);
    } else {
      next = b.CreateFAdd(old, v);
    }
    if (place.mask != nullptr) next = b.CreateSelect(place.mask, next, old);
    b.CreateStore(next, s);
    return;
  }
  // A NaN is never larger; the sums find it.
  Value* larger = b.CreateFCmpOGT(v, old);
  if (place.mask != nullptr) larger = b.CreateAnd(larger, place.mask);
  b.CreateStore(b.CreateSelect(larger, v, old), s);
  if (a.kind == Accumulator::Kind::argmax) {
    auto* type = llvm::FixedVectorType::get(b.getInt32Ty(), c_.target.width);
    std::vector<llvm::Constant*> lanes;
    for (unsigned i = 0; i < c_.target.width; ++i) {
      lanes.push_back(b.getInt32(place.pair == nullptr ? i : PairedUnit::element(place.u, i)));
    }
    Value* from = place.pair == nullptr ? place.j : place.pair->j;
    Value* first = b.CreateVectorSplat(c_.target.width, b.CreateTrunc(from, b.getInt32Ty()));
    Value* index = b.CreateAdd(first, llvm::ConstantVector::get(lanes));
    b.CreateStore(b.CreateSelect(larger, index, b.CreateLoad(type, a.row)), a.row);
  }
}

void SweepLoop::end_block() {
  auto& b = c_.b;
  for (Accumulator& a : sums_) {
    std::vector<Value*> parts;
    for (Value* s : a.partial) {
      parts.push_back(b.CreateLoad(c_.vector(), s));
      b.CreateStore(c_.splat(c_.f32(0.0)), s);
    }
    while (parts.size() > 1) {
      std::vector<Value*> halves;
      for (std::size_t i = 0; i + 1 < parts.size(); i += 2)
        halves.push_back(b.CreateFAdd(parts[i], parts[i + 1]));
      if (parts.size() % 2 == 1) halves.push_back(parts.back());
      parts = halves;
    }
    b.CreateStore(b.CreateFAdd(b.CreateLoad(c_.vector(), a.row), parts[0]), a.row);
  }
}

// Past the row's end this fetches the next row; a prefetch never faults.
void SweepLoop::prefetch_line(const Stream& s, Value* bytes) {
  auto& b = c_.b;
  Value* address = b.CreateGEP(b.getInt8Ty(), s.address, bytes);
  b.CreateIntrinsic(llvm::Intrinsic::prefetch, {c_.ptr()},
                    {address, b.getInt32(s.write ? 1 : 0), b.getInt32(3), b.getInt32(1)});
}

void SweepLoop::prefetch(const std::vector<Stream>& streams, Value* j) {
  auto& b = c_.b;
  const std::int64_t unit = static_cast<std::int64_t>(c_.target.width) * unroll_;
  for (const Stream& s : streams) {
    const auto size = static_cast<std::int64_t>(s.element_bytes);
    const std::int64_t ahead = s.write ? c_.target.write_ahead : c_.target.read_ahead;
    if (ahead == 0 || (s.write && !c_.target.prefetch_write)) continue;
    Value* at = c_.b.CreateGEP(b.getInt8Ty(), s.address, b.CreateMul(j, c_.i64(size)));
    for (std::int64_t line = 0; line < unit * size; line += kLine) {
      prefetch_line({at, s.element_bytes, s.write}, c_.i64(ahead + line));
    }
  }
}

void SweepLoop::run_units(const Body& body, const std::vector<Stream>& streams) {
  const std::int64_t width = c_.target.width, unit = width * unroll_;
  auto units = [&](Value* begin, Value* end) {
    c_.loop(
        begin, end, unit,
        [&](Value* j) {
          prefetch(streams, j);
          PairedUnit pair{j, {}};
          for (unsigned u = 0; u < unroll_; ++u) {
            body({u == 0 ? j : c_.b.CreateAdd(j, c_.i64(width * u)), u, nullptr, paired_ ? &pair : nullptr});
          }
        },
        "units");
  };
  if (whole() > 0 && sums_.empty()) {
    units(c_.i64(0), c_.i64(whole()));
  } else if (whole() > 0) {
    c_.loop(
        c_.i64(0), c_.i64(whole()), kBlock,
        [&](Value* first) {
          Value* end = c_.b.CreateAdd(first, c_.i64(kBlock));
          end = c_.b.CreateSelect(c_.b.CreateICmpSLT(end, c_.i64(whole())), end, c_.i64(whole()));
          units(first, end);
          end_block();
        },
        "blocks");
  }
}

// What the units left, vector by vector.
void SweepLoop::run_rest(const Body& body) {
  const std::int64_t width = c_.target.width;
  unsigned u = 0;
  std::int64_t j = whole();
  for (; j + width <= vocab_; j += width) body({c_.i64(j), u++ % unroll_, nullptr});
  if (j < vocab_) {
    std::vector<llvm::Constant*> lanes;
    for (std::int64_t i = 0; i < width; ++i) lanes.push_back(c_.b.getInt1(j + i < vocab_));
    body({c_.i64(j), u % unroll_, llvm::ConstantVector::get(lanes)});
  }
  if (whole() < vocab_) end_block();
}

void SweepLoop::run(const Body& body, const std::vector<Stream>& streams) {
  run_units(body, streams);
  run_rest(body);
}

void SweepLoop::run_ahead(const Body& front, Value* lead, const Body& body,
                          const std::vector<Stream>& streams) {
  auto& b = c_.b;
  const std::int64_t width = c_.target.width;
  std::vector<llvm::Constant*> numbers;
  for (std::int64_t i = 0; i < width; ++i) numbers.push_back(b.getInt32(static_cast<std::uint32_t>(i)));
  auto below = [&](Value* count) {
    Value* limit = b.CreateVectorSplat(c_.target.width, b.CreateTrunc(count, b.getInt32Ty()));
    return b.CreateICmpSLT(llvm::ConstantVector::get(numbers), limit);
  };
  front({b.CreateNeg(lead), 0, below(lead)});
  run_units(
      [&](const Place& place) {
        front(place);
        body(place);
      },
      streams);
  for (std::int64_t j = whole(); j < vocab_; j += width) {
    front({c_.i64(j), 0, below(b.CreateSub(c_.i64(vocab_ - j), lead))});
  }
  run_rest(body);
}

void SweepLoop::run_sample(std::int64_t head, std::int64_t spread, const Body& body) {
  const std::int64_t width = c_.target.width;
  if (vocab_ < width) return run(body);
  const std::int64_t whole = std::min(head, vocab_) / width * width;
  c_.loop(c_.i64(0), c_.i64(whole), width, [&](Value* j) { body({j, 0, nullptr}); }, "head");
  const std::int64_t rest = vocab_ - width - whole;
  if (rest < spread) {
    // A short rest: its last vector alone would miss little, but small vocabularies may as well be exact.
    for (std::int64_t j = whole; j < vocab_; j += width)
      body({c_.i64(std::min(j, vocab_ - width)), 0, nullptr});
    return;
  }
  const std::int64_t step = rest / spread;
  c_.loop(
      c_.i64(whole), c_.i64(whole + step * spread), step, [&](Value* j) { body({j, 0, nullptr}); }, "spread");
}

void SweepLoop::prefetch_sample(std::int64_t head, std::int64_t spread, const std::vector<Stream>& streams) {
  const std::int64_t rest = vocab_ - c_.target.width - head;
  if (rest < spread || c_.target.read_ahead == 0) return;
  for (const Stream& s : streams) {
    for (std::int64_t i = 0; i < spread; ++i) {
      const auto size = static_cast<std::int64_t>(s.element_bytes);
      prefetch_line(s, c_.i64((vocab_ + head + rest / spread * i) * size));
    }
  }
}

Value* SweepLoop::reduce(Value* v, const std::function<Value*(Value*, Value*)>& combine) {
  auto& b = c_.b;
  for (unsigned n = c_.target.width / 2; n >= 1; n /= 2) {
    std::vector<int> low(n), high(n);
    std::iota(low.begin(), low.end(), 0);
    std::iota(high.begin(), high.end(), static_cast<int>(n));
    v = combine(b.CreateShuffleVector(v, low), b.CreateShuffleVector(v, high));
  }
  return b.CreateExtractElement(v, b.getInt64(0));
}

Value* SweepLoop::total(const Accumulator& a) {
  auto& b = c_.b;
  if (a.kind == Accumulator::Kind::sum) {
    return reduce(b.CreateLoad(c_.vector(), a.row), [&](Value* x, Value* y) { return b.CreateFAdd(x, y); });
  }
  auto larger = [&](Value* x, Value* y) { return b.CreateSelect(b.CreateFCmpOGT(y, x), y, x); };
  if (a.kind == Accumulator::Kind::max) {
    Value* v = b.CreateLoad(c_.vector(), a.partial[0]);
    for (std::size_t u = 1; u < a.partial.size(); ++u) v = larger(v, b.CreateLoad(c_.vector(), a.partial[u]));
    return reduce(v, larger);
  }
  Value* best = b.CreateLoad(c_.vector(), a.partial[0]);
  Value* index = b.CreateLoad(llvm::FixedVectorType::get(b.getInt32Ty(), c_.target.width), a.row);
  Value* top = reduce(best, larger);
  Value* none = b.CreateVectorSplat(c_.target.width, b.getInt32(std::numeric_limits<std::int32_t>::max()));
  Value* candidates = b.CreateSelect(b.CreateFCmpOEQ(best, c_.splat(top)), index, none);
  // Of equal maxima the smallest index.
  return reduce(candidates, [&](Value* x, Value* y) { return b.CreateSelect(b.CreateICmpSLT(y, x), y, x); });
}

void SweepLoop::finish(llvm::Function& f) {
  std::vector<llvm::AllocaInst*> slots;
  for (auto& block : f) {
    for (auto& instruction : block) {
      if (auto* s = llvm::dyn_cast<llvm::AllocaInst>(&instruction)) slots.push_back(s);
    }
  }
  llvm::DominatorTree tree(f);
  llvm::PromoteMemToReg(slots, tree);
}

}  // namespace lossc::cpu
