#include "compiler/cpu/region_sweeps.h"

#include <fmt/format.h>

#include "compiler/cpu/paired.h"
#include "compiler/cpu/region_rows.h"
#include "compiler/cpu/sweep_loop.h"

namespace lossc::cpu {

using ir::no_node;
using ir::Node;
using ir::NodeId;
using ir::Op;
using llvm::Value;

namespace {

// The sample that an anchor is chosen from: the row's first elements, then single vectors spread over the
// rest.
constexpr std::int64_t kSampleHead = 128;
constexpr std::int64_t kSampleSpread = 8;
constexpr unsigned kLine = 64;               // bytes
constexpr std::int64_t kStreamVocab = 1024;  // a shorter row is mostly its ends

}  // namespace

SweepOperands RegionSweeps::operands(Value* frame, const std::vector<NodeId>& roots,
                                     const std::set<NodeId>& exponentials) {
  SweepOperands o;
  for (NodeId id : row_operands(c_.graph(), roots)) {
    const Node& n = c_.node(id);
    if (n.op == Op::constant) continue;
    Value* v = frame_.lanes(frame, Slot::value, id);
    if (n.kind == ir::Kind::boolean) v = b_.CreateFCmpUNE(v, c_.splat(c_.f32(0.0)));
    o.rows[id] = v;
  }
  for (NodeId x : exponentials) {
    Value* offset = b_.CreateFNeg(frame_.load(frame, Slot::offset, x));
    o.exponents[x] = {frame_.lanes(frame, Slot::factor, x), c_.splat(offset)};
  }
  for (NodeId x : shape_.softmaxes(roots)) o.inverses[x] = frame_.lanes(frame, Slot::inverse, x);
  for (NodeId in : shape_.region().reads) o.tensors[in] = frame_.row_address(frame, in);
  return o;
}

std::string RegionSweeps::anchor(std::size_t k, bool exact) {
  const std::string name = fmt::format("{}_anchor{}_{}", prefix_, k, exact ? "exact" : "sample");
  llvm::Function* f = c_.function(name, b_.getVoidTy(), {c_.ptr()});
  Value* frame = f->getArg(0);
  const std::set<NodeId> arguments = shape_.anchors_of(k);
  const std::vector<NodeId> roots(arguments.begin(), arguments.end());
  const SweepOperands o = operands(frame, roots, shape_.softmaxes(roots));
  SweepLoop sweep(c_, c_.spec.vocab, c_.target.unroll);
  std::vector<Accumulator> maxima;
  for (std::size_t i = 0; i < roots.size(); ++i) maxima.push_back(sweep.accumulator(Accumulator::Kind::max));
  auto body = [&](const Place& place) {
    ElementEmitter e(c_, o, place);
    for (std::size_t i = 0; i < roots.size(); ++i) sweep.accumulate(maxima[i], e.value(roots[i]), place);
  };
  if (exact) {
    sweep.run(body);
  } else {
    sweep.run_sample(kSampleHead, kSampleSpread, body);
  }
  for (std::size_t i = 0; i < roots.size(); ++i) {
    Value* maximum = sweep.total(maxima[i]);
    if (exact) {
      // A softmax whose sum was good keeps its anchor, and so its bits, whatever another one of the row
      // needs.
      Value* present = frame_.load(frame, Slot::value, shape_.anchor_of(roots[i]));
      maximum = b_.CreateSelect(good_sum(c_, frame_, frame, roots[i]), present, maximum);
    }
    frame_.store_anchor(frame, roots[i], maximum);
  }
  b_.CreateRetVoid();
  sweep.finish(*f);
  return name;
}

// The accumulators of a phase and the body that feeds them.
class RegionSweeps::PhaseBody {
 public:
  PhaseBody(RegionSweeps& r, std::size_t k, Value* frame, Value* kept, SweepLoop& sweep)
      : r_(r), sweep_(sweep), statistics_(r.shape_.region().phases[k].statistics) {
    operands_ = r.operands(frame, r.shape_.phase_roots(k), r.shape_.phase_exponentials(k));
    for (NodeId id : statistics_) {
      const Op op = r_.c_.node(id).op;
      Accumulator::Kind kind = Accumulator::Kind::sum;
      if (op == Op::vocab_max) kind = Accumulator::Kind::max;
      if (op == Op::vocab_argmax) kind = Accumulator::Kind::argmax;
      if (op != Op::anchor) accumulators_[id] = sweep.accumulator(kind);
    }
    if (k + 1 == r.shape_.region().phases.size() && kept != nullptr) {
      for (std::size_t i = 0; i < r.shape_.kept().size(); ++i) {
        stores_.emplace_back(r.shape_.kept()[i], r.kept_address(kept, i));
      }
    }
  }

  void operator()(const Place& place) {
    Codegen& c = r_.c_;
    ElementEmitter e(c, operands_, place);
    for (NodeId id : statistics_) {
      const Node& n = c.node(id);
      switch (n.op) {
        case Op::log_sum:
          sweep_.accumulate(accumulators_[id], e.exponential(n.in[0]), place);
          break;
        case Op::expect:
          sweep_.accumulate(accumulators_[id], e.weighted(n.in[0], n.in[1]), place);
          break;
        case Op::vocab_sum:
        case Op::vocab_max:
        case Op::vocab_argmax:
          sweep_.accumulate(accumulators_[id], e.value(n.in[0]), place);
          break;
        default:
          break;  // anchors are known
      }
    }
    for (auto& [k, address] : stores_) {
      Value* v = k.a == no_node ? e.exponential(k.x) : e.weighted(k.x, k.a);
      store(c.b, DType::fp32, v, c.at(address, c.b.CreateShl(place.j, 2)));
    }
  }

  void store_totals(Value* frame) {
    for (auto& [id, accumulator] : accumulators_) {
      const Node& n = r_.c_.node(id);
      Value* total = sweep_.total(accumulator);
      if (n.op == Op::log_sum) {
        r_.frame_.store(frame, Slot::sum, n.in[0], total);
      } else {
        r_.frame_.store(frame, Slot::value, id, total);
      }
    }
  }

  // Addresses to fetch ahead of: the row's inputs.
  std::vector<SweepLoop::Stream> streams() const {
    std::vector<SweepLoop::Stream> streams;
    for (const auto& [in, address] : operands_.tensors) {
      streams.push_back({address, dtype_size(r_.dtype_of(in)), false});
    }
    return streams;
  }

 private:
  RegionSweeps& r_;
  SweepLoop& sweep_;
  const std::vector<NodeId>& statistics_;
  SweepOperands operands_;
  std::map<NodeId, Accumulator> accumulators_;
  std::vector<std::pair<RegionShape::Kept, Value*>> stores_;
};

// The body that writes the gradient.
class RegionSweeps::EmitBody {
 public:
  /// `stream`: the body runs ahead by lead(), where the gradient's lines begin.
  EmitBody(RegionSweeps& r, Value* frame, Value* kept, bool stream) : r_(r), stream_(stream) {
    Codegen& c = r.c_;
    const std::vector<NodeId> roots = r.shape_.emit_roots();
    operands_ = r.operands(frame, roots, r.shape_.softmaxes(roots));
    if (kept != nullptr) {
      for (std::size_t i = 0; i < r.shape_.kept().size(); ++i) {
        const RegionShape::Kept& k = r.shape_.kept()[i];
        operands_.kept[{k.x, k.a}] = r.kept_address(kept, i);
      }
    }
    gradient_ = r.frame_.gradient_address(frame);
    if (stream) run_from_first_line();
    std::int64_t i = 0;
    for (const ir::DenseTerm& t : c.plan.loss.dense) {
      Value* v = r.frame_.lanes(frame, Slot::coefficient, i++);
      coefficients_.push_back(v);
      guards_.push_back(t.guarded ? c.b.CreateFCmpUNE(v, c.splat(c.f32(0.0))) : nullptr);
    }
  }

  void operator()(const Place& place) {
    Codegen& c = r_.c_;
    Value* total = gradient(place);
    const DType dtype = c.spec.gradient_dtype;
    const bool adds = c.plan.gradient == GradientMode::accumulate;
    if (place.pair != nullptr) {
      Value* at = address(place.pair->j);
      if (adds) {
        VectorPair& old = place.pair->inputs[gradient_];
        if (old[0] == nullptr) old = load_pair(c.b, dtype, at);
        total = c.b.CreateFAdd(total, old[place.u]);
      }
      if (place.u == 1) store_pair(c.b, dtype, {place.pair->result, total}, at, c.target.convert);
      place.pair->result = total;
      return;
    }
    Value* at = address(place.j);
    if (adds) {
      Value* old = place.mask == nullptr ? load(c.b, dtype, at, c.target.width)
                                         : masked_load(c.b, dtype, at, place.mask, c.f32(0.0));
      total = c.b.CreateFAdd(total, old);
    }
    if (place.mask == nullptr) {
      store(c.b, dtype, total, at, stream_ ? kLine : 0, stream_, c.target.convert);
    } else {
      masked_store(c.b, dtype, total, at, place.mask, 0, c.target.convert);
    }
  }

  Value* lead() const { return lead_; }
  SweepLoop::Stream stream() const { return {gradient_, dtype_size(r_.c_.spec.gradient_dtype), true}; }
  std::vector<SweepLoop::Stream> input_streams() const {
    std::vector<SweepLoop::Stream> streams;
    for (const auto& [in, address] : operands_.tensors) {
      streams.push_back({address, dtype_size(r_.dtype_of(in)), false});
    }
    return streams;
  }

 private:
  // All addresses move to the first element at which a line of the gradient begins.
  void run_from_first_line() {
    auto& b = r_.c_.b;
    Value* beyond = b.CreatePtrToInt(gradient_, b.getInt64Ty());
    lead_ = b.CreateLShr(b.CreateAnd(b.CreateNeg(beyond), b.getInt64(kLine - 1)), 2);
    auto move = [&](Value*& row, DType dtype) {
      row = r_.c_.at(row, b.CreateMul(lead_, b.getInt64(dtype_size(dtype))));
    };
    move(gradient_, DType::fp32);
    for (auto& [in, row] : operands_.tensors) move(row, r_.dtype_of(in));
    for (auto& [which, row] : operands_.kept) move(row, DType::fp32);
  }

  Value* address(Value* j) {
    const auto size = static_cast<std::int64_t>(dtype_size(r_.c_.spec.gradient_dtype));
    return r_.c_.at(gradient_, r_.c_.b.CreateMul(j, r_.c_.i64(size)));
  }

  // The sum of the dense terms.
  Value* gradient(const Place& place) {
    Codegen& c = r_.c_;
    ElementEmitter e(c, operands_, place);
    Value* total = nullptr;
    for (std::size_t i = 0; i < coefficients_.size(); ++i) {
      const ir::DenseTerm& t = c.plan.loss.dense[i];
      const Node& n = c.node(t.basis);
      Value* term = coefficients_[i];
      if (n.op != Op::constant) {
        Value* basis = nullptr;
        if (n.op == Op::softmax) {
          basis = e.exponential(n.in[0]);
        } else if (const NodeId x = r_.shape_.softmax_of(t.basis); x != no_node) {
          basis = e.weighted(x, n.in[1]);
        } else {
          basis = e.value(t.basis);
        }
        if (guards_[i] != nullptr) basis = c.b.CreateSelect(guards_[i], basis, c.splat(c.f32(0.0)));
        if (total != nullptr) {
          total = c.math.fma(term, basis, total);
          continue;
        }
        term = c.b.CreateFMul(term, basis);
      }
      total = total == nullptr ? term : c.b.CreateFAdd(total, term);
    }
    return total != nullptr ? total : c.splat(c.f32(0.0));
  }

  RegionSweeps& r_;
  bool stream_;
  Value* lead_ = nullptr;
  SweepOperands operands_;
  Value* gradient_;
  std::vector<Value*> coefficients_, guards_;
};

std::string RegionSweeps::sweep(std::size_t k) {
  const std::string name = fmt::format("{}_sweep{}", prefix_, k);
  llvm::Function* f = c_.function(name, b_.getVoidTy(), {c_.ptr(), c_.ptr()});
  SweepLoop loop(c_, c_.spec.vocab, c_.target.unroll);
  PhaseBody body(*this, k, f->getArg(0), f->getArg(1), loop);
  loop.run([&](const Place& place) { body(place); }, body.streams());
  // The next row's anchors are chosen first of all.
  if (shape_.region().phases.size() == 1) loop.prefetch_sample(kSampleHead, kSampleSpread, body.streams());
  body.store_totals(f->getArg(0));
  b_.CreateRetVoid();
  loop.finish(*f);
  return name;
}

bool RegionSweeps::streams() const {
  return c_.target.width * 4 == kLine && c_.spec.gradient_dtype == DType::fp32 &&
         c_.spec.logits_dtype != DType::bf16 && c_.plan.gradient == GradientMode::overwrite &&
         c_.spec.vocab >= kStreamVocab;
}

std::string RegionSweeps::emit(bool stream) {
  const std::string name = prefix_ + (stream ? "_emit_stream" : "_emit");
  llvm::Function* f = c_.function(name, b_.getVoidTy(), {c_.ptr(), c_.ptr()});
  preload_sparse(f->getArg(0));
  SweepLoop loop(c_, c_.spec.vocab, 2);
  EmitBody body(*this, f->getArg(0), shape_.kept().empty() ? nullptr : f->getArg(1), stream);
  std::vector<SweepLoop::Stream> streams;
  if (!stream) streams.push_back(body.stream());
  if (shape_.region().phases.empty()) {
    for (const auto& s : body.input_streams()) streams.push_back(s);
  }
  const SweepLoop::Body write = [&](const Place& place) { body(place); };
  if (stream) {
    loop.run_ahead(write, body.lead(), [](const Place&) {}, streams);
  } else {
    loop.run(write, streams);
  }
  b_.CreateRetVoid();
  loop.finish(*f);
  return name;
}

std::string RegionSweeps::fused(bool stream) {
  const std::string name = prefix_ + (stream ? "_fused_stream" : "_fused");
  llvm::Function* f = c_.function(name, b_.getVoidTy(), {c_.ptr(), c_.ptr(), c_.ptr()});
  Value *previous = f->getArg(0), *current = f->getArg(1), *kept = f->getArg(2);
  preload_sparse(previous);
  SweepLoop loop(c_, c_.spec.vocab, c_.target.unroll);
  EmitBody emit(*this, previous, shape_.kept().empty() ? nullptr : kept, stream);
  PhaseBody phase(*this, 0, current, kept, loop);
  std::vector<SweepLoop::Stream> streams = phase.streams();
  if (!stream) streams.push_back(emit.stream());
  // The old exponential is read before the new one takes its place.
  if (stream) {
    loop.run_ahead([&](const Place& place) { emit(place); }, emit.lead(),
                   [&](const Place& place) { phase(place); }, streams);
  } else {
    loop.run(
        [&](const Place& place) {
          emit(place);
          phase(place);
        },
        streams);
  }
  loop.prefetch_sample(kSampleHead, kSampleSpread, phase.streams());
  phase.store_totals(current);
  b_.CreateRetVoid();
  loop.finish(*f);
  return name;
}

// Accumulation adds to what stood there before the dense store.
void RegionSweeps::preload_sparse(Value* frame) {
  if (c_.plan.gradient != GradientMode::accumulate) return;
  for (std::size_t i = 0; i < c_.plan.loss.sparse.size(); ++i) {
    Value* inside = nullptr;
    Value* address = sparse_place(c_, frame_, frame, i, inside);
    frame_.store(frame, Slot::sparse_old, static_cast<std::int64_t>(i),
                 load_scalar(b_, c_.spec.gradient_dtype, address));
  }
}

}  // namespace lossc::cpu
