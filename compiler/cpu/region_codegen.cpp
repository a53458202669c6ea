#include "compiler/cpu/region_codegen.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <set>

#include "compiler/cpu/element_emitter.h"
#include "compiler/cpu/row_emitter.h"
#include "compiler/cpu/sweep_loop.h"
#include "lossc/error.h"

namespace lossc::cpu {

using ir::no_node;
using ir::Node;
using ir::NodeId;
using ir::Op;
using ir::Space;
using llvm::Value;

namespace {

// A sampled anchor is good enough while the sum of exponentials stays below this: the true maximum is then at
// most 30 above it, which costs log(sum) no more digits than the logits' own spread does.
constexpr double kSumLimit = 1e13;
// Samples: the row's first elements, then single vectors spread over the rest.
constexpr std::int64_t kSampleHead = 128;
constexpr std::int64_t kSampleSpread = 8;

class RegionGenerator {
 public:
  RegionGenerator(Codegen& codegen, int index)
      : c_(codegen),
        b_(codegen.b),
        region_(codegen.plan.regions[static_cast<std::size_t>(index)]),
        prefix_(fmt::format("region{}", index)) {
    for (NodeId id : region_.picks) own_.insert(id);
    for (const Phase& phase : region_.phases) own_.insert(phase.statistics.begin(), phase.statistics.end());
    tensors_ = region_tensors(c_.graph(), region_);
    if (region_.emit) find_emitted();
    find_kept();
  }

  RegionSymbols generate() {
    RegionSymbols symbols;
    symbols.begin = begin();
    for (std::size_t k = 0; k < region_.phases.size(); ++k) {
      RegionSymbols::PhaseSymbols phase;
      if (!anchors_of(k).empty()) {
        phase.sample = anchor(k, false);
        phase.exact = anchor(k, true);
      }
      phase.sweep = sweep(k);
      phase.finish = finish(k);
      symbols.phases.push_back(phase);
    }
    if (region_.emit) {
      symbols.emit = emit();
      if (!c_.plan.loss.sparse.empty()) symbols.sparse = sparse();
      if (region_.phases.size() == 1) symbols.fused = fused();
    }
    symbols.frame_bytes = frame_bytes();
    symbols.kept_floats = static_cast<std::int64_t>(kept_.size()) * kept_stride();
    return symbols;
  }

 private:
  // ---------------------------------------------------------------------------------------------------------------
  // The frame: the addresses of the row in each element tensor that the region touches and in the gradient,
  // which the runtime fills in; then floats by name.

  std::int64_t pointer_slot(NodeId input) const {
    return 8 * (std::find(tensors_.begin(), tensors_.end(), input) - tensors_.begin());
  }
  std::int64_t gradient_slot() const { return 8 * static_cast<std::int64_t>(tensors_.size()); }
  std::int64_t float_slot(const std::string& name) {
    const auto [it, added] = floats_.try_emplace(name, static_cast<std::int64_t>(floats_.size()));
    (void)added;
    return 8 * (static_cast<std::int64_t>(tensors_.size()) + 1) + 4 * it->second;
  }
  std::int64_t frame_bytes() {
    return (8 * (static_cast<std::int64_t>(tensors_.size()) + 1) +
            4 * static_cast<std::int64_t>(floats_.size()) + 63) /
           64 * 64;
  }
  static std::string key(char kind, std::int64_t id) { return fmt::format("{}{}", kind, id); }

  Value* load_slot(Value* frame, const std::string& name, llvm::Type* type = nullptr) {
    return b_.CreateLoad(type != nullptr ? type : c_.f32(), c_.at(frame, float_slot(name)));
  }
  void store_slot(Value* frame, const std::string& name, Value* v) {
    if (v->getType()->isIntegerTy(1)) v = b_.CreateUIToFP(v, c_.f32());
    b_.CreateStore(v, c_.at(frame, float_slot(name)));
  }
  Value* lanes(Value* frame, const std::string& name) { return c_.splat(load_slot(frame, name)); }

  // ---------------------------------------------------------------------------------------------------------------
  // What each stage needs

  // The raw form of a basis: softmax(x) and softmax(x) * a are formed from exp(x - anchor); the factor 1 /
  // sum goes into the coefficient.
  NodeId softmax_of(NodeId basis) const {
    const Node& n = c_.node(basis);
    if (n.op == Op::softmax) return n.in[0];
    if (n.op == Op::zero_mul && c_.node(n.in[0]).op == Op::softmax) return c_.node(n.in[0]).in[0];
    return no_node;
  }

  std::vector<NodeId> phase_roots(std::size_t k) const {
    std::vector<NodeId> roots;
    for (NodeId id : region_.phases[k].statistics) {
      for (NodeId in : c_.node(id).in) {
        if (in != no_node && c_.node(in).space == Space::element) roots.push_back(in);
      }
    }
    return roots;
  }
  std::vector<NodeId> emit_roots() const {
    std::vector<NodeId> roots;
    for (const ir::DenseTerm& t : c_.plan.loss.dense) {
      if (c_.node(t.basis).space == Space::element) roots.push_back(t.basis);
    }
    return roots;
  }

  void collect_softmaxes(NodeId id, std::set<NodeId>& out, std::set<NodeId>& seen) const {
    const Node& n = c_.node(id);
    if (n.space != Space::element || !seen.insert(id).second) return;
    if (n.op == Op::softmax) out.insert(n.in[0]);
    for (NodeId in : n.in) {
      if (in != no_node) collect_softmaxes(in, out, seen);
    }
  }
  // Arguments of the softmaxes that expressions evaluate.
  std::set<NodeId> softmaxes(const std::vector<NodeId>& roots) const {
    std::set<NodeId> out, seen;
    for (NodeId id : roots) collect_softmaxes(id, out, seen);
    return out;
  }
  // Arguments whose exponentials a phase forms: its own statistics' and those its expressions evaluate.
  std::set<NodeId> phase_exponentials(std::size_t k) const {
    std::set<NodeId> out = softmaxes(phase_roots(k));
    for (NodeId id : region_.phases[k].statistics) {
      const Node& n = c_.node(id);
      if (n.op == Op::log_sum || n.op == Op::expect) out.insert(n.in[0]);
    }
    return out;
  }
  std::set<NodeId> anchors_of(std::size_t k) const {
    std::set<NodeId> out;
    for (NodeId id : region_.phases[k].statistics) {
      if (c_.node(id).op == Op::anchor) out.insert(c_.node(id).in[0]);
    }
    return out;
  }
  NodeId find(Op op, NodeId x) const {
    for (NodeId id = x + 1; id < c_.graph().size(); ++id) {
      if (c_.node(id).op == op && c_.node(id).in[0] == x) return id;
    }
    throw Error(ErrorCode::internal, fmt::format("a softmax without its {}", ir::op_name(op)));
  }
  bool summed_here(NodeId x) const { return own_.count(find(Op::log_sum, x)) > 0; }
  std::size_t phase_of(NodeId id) const {
    for (std::size_t k = 0; k < region_.phases.size(); ++k) {
      const auto& s = region_.phases[k].statistics;
      if (std::find(s.begin(), s.end(), id) != s.end()) return k;
    }
    return 0;
  }

  void find_emitted() { emitted_softmaxes_ = softmaxes(emit_roots()); }

  /// What a phase leaves for the emit in a scratch row: exp(x - anchor), or that times `a`.
  struct Kept {
    NodeId x, a;
    bool operator==(const Kept&) const = default;
  };

  // What the emit would otherwise form anew from inputs that have left the near caches: exponentials of the
  // last phase, and products with them that the phase forms for its means.
  void find_kept() {
    if (!region_.emit || region_.phases.empty()) return;
    const std::size_t last = region_.phases.size() - 1;
    const std::set<NodeId> formed = phase_exponentials(last);
    auto keep = [&](Kept k) {
      if (std::find(kept_.begin(), kept_.end(), k) == kept_.end()) kept_.push_back(k);
    };
    for (NodeId basis : emit_roots()) {
      const Node& n = c_.node(basis);
      const NodeId x = softmax_of(basis);
      const bool product = x != no_node && n.op == Op::zero_mul;
      const auto& statistics = region_.phases[last].statistics;
      const bool averaged =
          product && std::any_of(statistics.begin(), statistics.end(), [&](NodeId id) {
            return c_.node(id).op == Op::expect && c_.node(id).in[0] == x && c_.node(id).in[1] == n.in[1];
          });
      if (averaged) {
        keep({x, n.in[1]});
        continue;
      }
      for (NodeId argument : softmaxes({basis})) {
        if (formed.count(argument) > 0) keep({argument, no_node});
      }
    }
  }
  std::int64_t kept_stride() const { return (c_.spec.vocab + 63) / 64 * 64 + 64; }
  Value* kept_address(Value* kept, std::size_t i) {
    return c_.at(kept, 4 * kept_stride() * static_cast<std::int64_t>(i));
  }

  // ---------------------------------------------------------------------------------------------------------------
  // Between the sweeps

  // Values of rows while the region works: its own statistics from the frame, others from the row buffers.
  RowEmitter row_emitter(Value* args, Value* row, Value* frame) {
    return RowEmitter(c_, args, row, Space::rows, [this, args, row, frame](NodeId id) -> Value* {
      if (own_.count(id) > 0) {
        const bool index = c_.node(id).kind == ir::Kind::index;
        return load_slot(frame, key('n', id), index ? b_.getInt32Ty() : c_.f32());
      }
      Value* data = c_.buffer(args, c_.layout.buffer_of.at(id));
      return b_.CreateLoad(c_.f32(), c_.at(data, b_.CreateShl(row, 2)));
    });
  }

  void store_inverse(RowEmitter& rows, Value* frame, NodeId x) {
    Value* inverse = summed_here(x) ? b_.CreateFDiv(c_.f32(1.0), load_slot(frame, key('s', x)))
                                    : c_.math.exp(b_.CreateFNeg(rows.value(find(Op::log_sum, x))));
    store_slot(frame, key('i', x), inverse);
  }

  // Stores what sweep k reads of the row, or, after the last sweep, the coefficients and what outlives the
  // region.
  void stage(RowEmitter& rows, Value* args, Value* row, Value* frame, std::size_t k) {
    if (k < region_.phases.size()) {
      store_operands(rows, frame, phase_roots(k), k);
      return;
    }
    if (region_.emit) {
      store_operands(rows, frame, emit_roots(), k);
      std::size_t i = 0;
      for (const ir::DenseTerm& t : c_.plan.loss.dense) {
        Value* coefficient = rows.value(t.coefficient);
        if (const NodeId x = softmax_of(t.basis); x != no_node) {
          // A softmax of which the row counts for no child may have no finite sum.
          coefficient = c_.zero_mul(coefficient, load_slot(frame, key('i', x)));
        }
        store_slot(frame, key('c', static_cast<std::int64_t>(i++)), coefficient);
      }
      i = 0;
      for (const ir::SparseTerm& t : c_.plan.loss.sparse) {
        store_slot(frame, key('v', static_cast<std::int64_t>(i)), rows.value(t.value));
        store_slot(frame, key('x', static_cast<std::int64_t>(i)), rows.value(t.index));
        ++i;
      }
    }
    for (NodeId id : region_.stored) {
      Value* data = c_.buffer(args, c_.layout.buffer_of.at(id));
      Value* v = rows.value(id);
      if (v->getType()->isIntegerTy()) v = b_.CreateSIToFP(v, c_.f32());
      b_.CreateStore(v, c_.at(data, b_.CreateShl(row, 2)));
    }
  }

  void store_operands(RowEmitter& rows, Value* frame, const std::vector<NodeId>& roots, std::size_t k) {
    for (NodeId id : row_operands(c_.graph(), roots)) {
      const Op op = c_.node(id).op;
      if (op == Op::constant) continue;
      const bool of_softmax = op == Op::anchor || op == Op::log_sum;
      if (own_.count(id) > 0 && (c_.node(id).op == Op::anchor || phase_of(id) >= k)) continue;  // in its slot
      if (of_softmax && own_.count(id) > 0) continue;
      store_slot(frame, key('n', id), rows.value(id));
    }
    // Statistics of softmaxes that were summed in an earlier region need their anchors here.
    if (k < region_.phases.size()) {
      for (NodeId x : phase_exponentials(k)) {
        const NodeId a = find(Op::anchor, x);
        if (own_.count(a) == 0) store_slot(frame, key('n', a), rows.value(a));
      }
    }
    for (NodeId x : softmaxes(roots)) store_inverse(rows, frame, x);
  }

  // ---------------------------------------------------------------------------------------------------------------
  // Functions

  std::string begin() {
    const std::string name = prefix_ + "_begin";
    llvm::Function* f = c_.function(name, b_.getInt32Ty(), {c_.ptr(), b_.getInt64Ty(), c_.ptr()});
    Value *args = f->getArg(0), *row = f->getArg(1), *frame = f->getArg(2);
    RowEmitter rows = row_emitter(args, row, frame);
    Value* active = rows.value(c_.plan.loss.active);
    Value* live = rows.value(c_.plan.loss.live);
    auto* work = llvm::BasicBlock::Create(c_.context, "active", f);
    auto* skip = llvm::BasicBlock::Create(c_.context, "inactive", f);
    b_.CreateCondBr(active, work, skip);
    b_.SetInsertPoint(skip);
    for (NodeId id : region_.stored) {
      Value* data = c_.buffer(args, c_.layout.buffer_of.at(id));
      b_.CreateStore(c_.f32(0.0), c_.at(data, b_.CreateShl(row, 2)));
    }
    b_.CreateRet(b_.getInt32(0));
    b_.SetInsertPoint(work);
    for (NodeId id : region_.picks) {
      if (from_sweep(c_.node(id).in[1])) continue;  // its index comes from a sweep: see finish
      Value* element_row = b_.CreateLoad(c_.ptr(), c_.at(frame, pointer_slot(c_.node(id).in[0])));
      store_slot(frame, key('n', id), rows.pick(id, element_row));
    }
    stage(rows, args, row, frame, 0);
    Value* flags = b_.CreateSelect(live, b_.getInt32(kRowActive | kRowLive), b_.getInt32(kRowActive));
    b_.CreateRet(flags);
    return name;
  }

  // Operands of a sweep, spread over lanes. `k` is the phase, or the number of phases for the emit.
  SweepOperands operands(Value* frame, const std::vector<NodeId>& roots,
                         const std::set<NodeId>& exponentials) {
    SweepOperands o;
    for (NodeId id : row_operands(c_.graph(), roots)) {
      const Node& n = c_.node(id);
      if (n.op == Op::constant) continue;
      Value* v = lanes(frame, key('n', id));
      if (n.kind == ir::Kind::boolean) v = b_.CreateFCmpUNE(v, c_.splat(c_.f32(0.0)));
      o.rows[id] = v;
    }
    for (NodeId x : exponentials) o.anchors[x] = lanes(frame, key('n', find(Op::anchor, x)));
    for (NodeId x : softmaxes(roots)) o.inverses[x] = lanes(frame, key('i', x));
    for (NodeId in : region_.reads) o.tensors[in] = b_.CreateLoad(c_.ptr(), c_.at(frame, pointer_slot(in)));
    return o;
  }

  // anchor(x): the largest of a sample, or (exact) of the whole row.
  std::string anchor(std::size_t k, bool exact) {
    const std::string name = fmt::format("{}_anchor{}_{}", prefix_, k, exact ? "exact" : "sample");
    llvm::Function* f = c_.function(name, b_.getVoidTy(), {c_.ptr()});
    Value* frame = f->getArg(0);
    const std::set<NodeId> arguments = anchors_of(k);
    const std::vector<NodeId> roots(arguments.begin(), arguments.end());
    const SweepOperands o = operands(frame, roots, softmaxes(roots));
    SweepLoop sweep(c_, c_.spec.vocab, c_.target.unroll);
    std::vector<Accumulator> maxima;
    for (std::size_t i = 0; i < roots.size(); ++i)
      maxima.push_back(sweep.accumulator(Accumulator::Kind::max));
    auto body = [&](const SweepLoop::Place& place) {
      ElementEmitter e(c_, o, place.j, place.mask);
      for (std::size_t i = 0; i < roots.size(); ++i) sweep.accumulate(maxima[i], e.value(roots[i]), place);
    };
    if (exact) {
      sweep.run(body);
    } else {
      sweep.run_sample(kSampleHead, kSampleSpread, body);
    }
    for (std::size_t i = 0; i < roots.size(); ++i) {
      const std::string slot = key('n', find(Op::anchor, roots[i]));
      Value* maximum = sweep.total(maxima[i]);
      // A softmax whose sum was good keeps its anchor, and so its bits, whatever another one of the row
      // needs.
      if (exact) maximum = b_.CreateSelect(good_sum(frame, roots[i]), load_slot(frame, slot), maximum);
      store_slot(frame, slot, maximum);
    }
    b_.CreateRetVoid();
    sweep.finish(*f);
    return name;
  }

  // The accumulators of a phase and the body that feeds them.
  class PhaseBody {
   public:
    PhaseBody(RegionGenerator& r, std::size_t k, Value* frame, Value* kept, SweepLoop& sweep)
        : r_(r), sweep_(sweep), statistics_(r.region_.phases[k].statistics) {
      operands_ = r.operands(frame, r.phase_roots(k), r.phase_exponentials(k));
      for (NodeId id : statistics_) {
        const Op op = r_.c_.node(id).op;
        Accumulator::Kind kind = Accumulator::Kind::sum;
        if (op == Op::vocab_max) kind = Accumulator::Kind::max;
        if (op == Op::vocab_argmax) kind = Accumulator::Kind::argmax;
        if (op != Op::anchor) accumulators_[id] = sweep.accumulator(kind);
      }
      if (k + 1 == r.region_.phases.size() && kept != nullptr) {
        for (std::size_t i = 0; i < r.kept_.size(); ++i) {
          stores_.emplace_back(r.kept_[i], r.kept_address(kept, i));
        }
      }
    }

    void operator()(const SweepLoop::Place& place) {
      Codegen& c = r_.c_;
      ElementEmitter e(c, operands_, place.j, place.mask);
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
        const bool sum_of_exponentials = r_.c_.node(id).op == Op::log_sum;
        const std::string slot = sum_of_exponentials ? key('s', r_.c_.node(id).in[0]) : key('n', id);
        r_.store_slot(frame, slot, sweep_.total(accumulator));
      }
    }

    // Addresses to fetch ahead of: the row's inputs.
    std::vector<SweepLoop::Stream> streams() const {
      std::vector<SweepLoop::Stream> streams;
      for (const auto& [in, address] : operands_.tensors) {
        const DType dtype =
            r_.c_.layout.tensors[static_cast<std::size_t>(r_.c_.layout.tensor_of.at(in))].dtype;
        streams.push_back({address, dtype_size(dtype), false});
      }
      return streams;
    }

   private:
    RegionGenerator& r_;
    SweepLoop& sweep_;
    const std::vector<NodeId>& statistics_;
    SweepOperands operands_;
    std::map<NodeId, Accumulator> accumulators_;
    std::vector<std::pair<Kept, Value*>> stores_;
  };

  // The body that writes the gradient.
  class EmitBody {
   public:
    EmitBody(RegionGenerator& r, Value* frame, Value* kept) : r_(r) {
      Codegen& c = r.c_;
      operands_ = r.operands(frame, r.emit_roots(), r.emitted_softmaxes_);
      if (kept != nullptr) {
        for (std::size_t i = 0; i < r.kept_.size(); ++i) {
          const Kept& k = r.kept_[i];
          operands_.kept[{k.x, k.a}] = r.kept_address(kept, i);
        }
      }
      gradient_ = c.b.CreateLoad(c.ptr(), c.at(frame, r.gradient_slot()));
      std::int64_t i = 0;
      for (const ir::DenseTerm& t : c.plan.loss.dense) {
        Value* v = r.lanes(frame, key('c', i++));
        coefficients_.push_back(v);
        guards_.push_back(t.guarded ? c.b.CreateFCmpUNE(v, c.splat(c.f32(0.0))) : nullptr);
      }
    }

    void operator()(const SweepLoop::Place& place) {
      Codegen& c = r_.c_;
      ElementEmitter e(c, operands_, place.j, place.mask);
      Value* total = nullptr;
      for (std::size_t i = 0; i < coefficients_.size(); ++i) {
        const ir::DenseTerm& t = c.plan.loss.dense[i];
        const Node& n = c.node(t.basis);
        Value* term = coefficients_[i];
        if (n.op != Op::constant) {
          Value* basis = nullptr;
          if (n.op == Op::softmax) {
            basis = e.exponential(n.in[0]);
          } else if (const NodeId x = r_.softmax_of(t.basis); x != no_node) {
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
      if (total == nullptr) total = c.splat(c.f32(0.0));
      const DType dtype = c.spec.gradient_dtype;
      Value* address =
          c.at(gradient_, c.b.CreateMul(place.j, c.i64(static_cast<std::int64_t>(dtype_size(dtype)))));
      if (c.plan.gradient == GradientMode::accumulate) {
        Value* old = place.mask == nullptr ? load(c.b, dtype, address, c.target.width)
                                           : masked_load(c.b, dtype, address, place.mask, c.f32(0.0));
        total = c.b.CreateFAdd(total, old);
      }
      if (place.mask == nullptr) {
        store(c.b, dtype, total, address, 0, false, c.target.convert);
      } else {
        masked_store(c.b, dtype, total, address, place.mask, 0, c.target.convert);
      }
    }

    SweepLoop::Stream stream() const { return {gradient_, dtype_size(r_.c_.spec.gradient_dtype), true}; }
    std::vector<SweepLoop::Stream> input_streams() const {
      std::vector<SweepLoop::Stream> streams;
      for (const auto& [in, address] : operands_.tensors) {
        const DType dtype =
            r_.c_.layout.tensors[static_cast<std::size_t>(r_.c_.layout.tensor_of.at(in))].dtype;
        streams.push_back({address, dtype_size(dtype), false});
      }
      return streams;
    }

   private:
    RegionGenerator& r_;
    SweepOperands operands_;
    Value* gradient_;
    std::vector<Value*> coefficients_, guards_;
  };

  std::string sweep(std::size_t k) {
    const std::string name = fmt::format("{}_sweep{}", prefix_, k);
    llvm::Function* f = c_.function(name, b_.getVoidTy(), {c_.ptr(), c_.ptr()});
    SweepLoop loop(c_, c_.spec.vocab, c_.target.unroll);
    PhaseBody body(*this, k, f->getArg(0), f->getArg(1), loop);
    loop.run([&](const SweepLoop::Place& place) { body(place); }, body.streams());
    body.store_totals(f->getArg(0));
    b_.CreateRetVoid();
    loop.finish(*f);
    return name;
  }

  std::string emit() {
    const std::string name = prefix_ + "_emit";
    llvm::Function* f = c_.function(name, b_.getVoidTy(), {c_.ptr(), c_.ptr()});
    preload_sparse(f->getArg(0));
    SweepLoop loop(c_, c_.spec.vocab, 2);
    EmitBody body(*this, f->getArg(0), kept_.empty() ? nullptr : f->getArg(1));
    std::vector<SweepLoop::Stream> streams{body.stream()};
    if (region_.phases.empty()) {
      for (const auto& s : body.input_streams()) streams.push_back(s);
    }
    loop.run([&](const SweepLoop::Place& place) { body(place); }, streams);
    b_.CreateRetVoid();
    loop.finish(*f);
    return name;
  }

  std::string fused() {
    const std::string name = prefix_ + "_fused";
    llvm::Function* f = c_.function(name, b_.getVoidTy(), {c_.ptr(), c_.ptr(), c_.ptr()});
    Value *previous = f->getArg(0), *current = f->getArg(1), *kept = f->getArg(2);
    preload_sparse(previous);
    SweepLoop loop(c_, c_.spec.vocab, c_.target.unroll);
    EmitBody emit(*this, previous, kept_.empty() ? nullptr : kept);
    PhaseBody phase(*this, 0, current, kept, loop);
    std::vector<SweepLoop::Stream> streams = phase.streams();
    streams.push_back(emit.stream());
    // The old exponential is read before the new one takes its place.
    loop.run(
        [&](const SweepLoop::Place& place) {
          emit(place);
          phase(place);
        },
        streams);
    phase.store_totals(current);
    b_.CreateRetVoid();
    loop.finish(*f);
    return name;
  }

  // Whether a row value is computed from a sweep of this region.
  bool from_sweep(NodeId id) const {
    if (own_.count(id) > 0 && c_.node(id).op != Op::pick) return true;
    for (NodeId in : c_.node(id).in) {
      if (in != no_node && c_.node(in).space == Space::rows && from_sweep(in)) return true;
    }
    return false;
  }

  // Whether the sum of a softmax's exponentials tells that its anchor was near the maximum; false for NaN.
  Value* good_sum(Value* frame, NodeId x) {
    Value* sum = load_slot(frame, key('s', x));
    return b_.CreateAnd(b_.CreateFCmpOLT(sum, c_.f32(kSumLimit)), b_.CreateFCmpOGT(sum, c_.f32(0.0)));
  }

  // The anchors may have been too low: a sum beyond the limit, infinite or NaN asks for exact ones.
  std::string finish(std::size_t k) {
    const std::string name = fmt::format("{}_finish{}", prefix_, k);
    llvm::Function* f = c_.function(name, b_.getInt32Ty(), {c_.ptr(), b_.getInt64Ty(), c_.ptr()});
    Value *args = f->getArg(0), *row = f->getArg(1), *frame = f->getArg(2);
    RowEmitter rows = row_emitter(args, row, frame);
    Value* good = b_.getTrue();
    for (NodeId id : region_.phases[k].statistics) {
      if (c_.node(id).op != Op::log_sum) continue;
      Value* sum = load_slot(frame, key('s', c_.node(id).in[0]));
      good = b_.CreateAnd(good, good_sum(frame, c_.node(id).in[0]));
      store_slot(frame, key('n', id), c_.math.log(sum));
    }
    for (NodeId id : region_.phases[k].statistics) {
      const Node& n = c_.node(id);
      if (n.op != Op::expect) continue;
      const NodeId log_sum = find(Op::log_sum, n.in[0]);
      Value* sum = load_slot(frame, key('n', id));
      const bool here = own_.count(log_sum) > 0;
      Value* mean = here ? b_.CreateFDiv(sum, load_slot(frame, key('s', n.in[0])))
                         : b_.CreateFMul(sum, c_.math.exp(b_.CreateFNeg(rows.value(log_sum))));
      store_slot(frame, key('n', id), mean);
    }
    for (NodeId id : region_.picks) {
      if (!from_sweep(c_.node(id).in[1])) continue;
      Value* element_row = b_.CreateLoad(c_.ptr(), c_.at(frame, pointer_slot(c_.node(id).in[0])));
      store_slot(frame, key('n', id), rows.pick(id, element_row));
    }
    stage(rows, args, row, frame, k + 1);
    b_.CreateRet(b_.CreateZExt(good, b_.getInt32Ty()));
    return name;
  }

  Value* sparse_place(Value* frame, std::size_t i, Value*& inside) {
    Value* index = load_slot(frame, key('x', static_cast<std::int64_t>(i)), b_.getInt32Ty());
    inside = b_.CreateICmpULT(index, b_.getInt32(static_cast<std::uint32_t>(c_.spec.vocab)));
    Value* gradient = b_.CreateLoad(c_.ptr(), c_.at(frame, gradient_slot()));
    Value* safe = b_.CreateZExt(b_.CreateSelect(inside, index, b_.getInt32(0)), b_.getInt64Ty());
    const auto size = static_cast<std::int64_t>(dtype_size(c_.spec.gradient_dtype));
    return c_.at(gradient, b_.CreateMul(safe, c_.i64(size)));
  }

  // Accumulation adds to what stood there before the dense store.
  void preload_sparse(Value* frame) {
    if (c_.plan.gradient != GradientMode::accumulate) return;
    for (std::size_t i = 0; i < c_.plan.loss.sparse.size(); ++i) {
      Value* inside = nullptr;
      Value* address = sparse_place(frame, i, inside);
      store_slot(frame, key('o', static_cast<std::int64_t>(i)),
                 load_scalar(b_, c_.spec.gradient_dtype, address));
    }
  }

  std::string sparse() {
    const std::string name = prefix_ + "_sparse";
    llvm::Function* f = c_.function(name, b_.getVoidTy(), {c_.ptr()});
    Value* frame = f->getArg(0);
    for (std::size_t i = 0; i < c_.plan.loss.sparse.size(); ++i) {
      Value* inside = nullptr;
      Value* address = sparse_place(frame, i, inside);
      Value* v = load_slot(frame, key('v', static_cast<std::int64_t>(i)));
      if (c_.plan.gradient == GradientMode::accumulate) {
        v = b_.CreateFAdd(v, load_slot(frame, key('o', static_cast<std::int64_t>(i))));
      }
      auto* write = llvm::BasicBlock::Create(c_.context, "write", f);
      auto* next = llvm::BasicBlock::Create(c_.context, "next", f);
      b_.CreateCondBr(inside, write, next);
      b_.SetInsertPoint(write);
      store(b_, c_.spec.gradient_dtype, v, address, 0, false, c_.target.convert);
      b_.CreateBr(next);
      b_.SetInsertPoint(next);
    }
    b_.CreateRetVoid();
    return name;
  }

  Codegen& c_;
  llvm::IRBuilder<>& b_;
  const Region& region_;
  std::string prefix_;
  std::set<NodeId> own_;  // statistics and picks of this region
  std::vector<NodeId> tensors_;
  std::map<std::string, std::int64_t> floats_;
  std::set<NodeId> emitted_softmaxes_;
  std::vector<Kept> kept_;
};

}  // namespace

RegionSymbols generate_region(Codegen& codegen, int region) {
  return RegionGenerator(codegen, region).generate();
}

}  // namespace lossc::cpu
