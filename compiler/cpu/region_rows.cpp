#include "compiler/cpu/region_rows.h"

#include <fmt/format.h>

namespace lossc::cpu {

using ir::Node;
using ir::NodeId;
using ir::Op;
using ir::Space;
using llvm::Value;

namespace {

// A sampled anchor is good enough while the sum of exponentials stays below this: the true maximum is then at
// most 30 above it, which costs log(sum) no more digits than the logits' own spread does.
constexpr double kSumLimit = 1e13;

}  // namespace

Value* good_sum(Codegen& c, RegionFrame& frame, Value* of, NodeId x) {
  Value* sum = frame.load(of, Slot::sum, x);
  return c.b.CreateAnd(c.b.CreateFCmpOLT(sum, c.f32(kSumLimit)), c.b.CreateFCmpOGT(sum, c.f32(0.0)));
}

Value* sparse_place(Codegen& c, RegionFrame& frame, Value* of, std::size_t i, Value*& inside) {
  auto& b = c.b;
  Value* index = frame.load(of, Slot::sparse_index, static_cast<std::int64_t>(i), b.getInt32Ty());
  inside = b.CreateICmpULT(index, b.getInt32(static_cast<std::uint32_t>(c.spec.vocab)));
  Value* safe = b.CreateZExt(b.CreateSelect(inside, index, b.getInt32(0)), b.getInt64Ty());
  const auto size = static_cast<std::int64_t>(dtype_size(c.spec.gradient_dtype));
  return c.at(frame.gradient_address(of), b.CreateMul(safe, c.i64(size)));
}

// Values of rows while the region works: its own statistics from the frame, others from the row buffers.
RowEmitter RegionRows::row_emitter(Value* args, Value* row, Value* frame) {
  return RowEmitter(c_, args, row, Space::rows, [this, args, row, frame](NodeId id) -> Value* {
    if (shape_.owns(id)) {
      const bool index = c_.node(id).kind == ir::Kind::index;
      return frame_.load(frame, Slot::value, id, index ? b_.getInt32Ty() : c_.f32());
    }
    Value* data = c_.buffer(args, c_.layout.buffer_of.at(id));
    Value* v = b_.CreateLoad(c_.f32(), c_.at(data, b_.CreateShl(row, 2)));
    return c_.node(id).kind == ir::Kind::index ? b_.CreateFPToSI(v, b_.getInt32Ty()) : v;
  });
}

// 1 / the sum of a softmax's exponentials as sweeps form them now.
Value* RegionRows::inverse_sum(RowEmitter& rows, Value* frame, NodeId x) {
  if (shape_.summed_here(x)) return b_.CreateFDiv(c_.f32(1.0), frame_.load(frame, Slot::sum, x));
  Value* log_sum = b_.CreateFAdd(rows.value(shape_.log_sum_of(x)), frame_.load(frame, Slot::excess, x));
  return c_.math.exp(b_.CreateFNeg(log_sum));
}

// Stores what sweep k reads of the row, or, after the last sweep, the coefficients and what outlives the
// region.
void RegionRows::stage(RowEmitter& rows, Value* args, Value* row, Value* frame, std::size_t k) {
  const Region& region = shape_.region();
  if (k < region.phases.size()) {
    store_operands(rows, frame, shape_.phase_roots(k), k);
    return;
  }
  if (region.emit) {
    store_operands(rows, frame, shape_.emit_roots(), k);
    store_gradient_terms(rows, frame);
  }
  for (NodeId id : region.stored) {
    Value* data = c_.buffer(args, c_.layout.buffer_of.at(id));
    Value* v = rows.value(id);
    if (v->getType()->isIntegerTy()) v = b_.CreateSIToFP(v, c_.f32());
    b_.CreateStore(v, c_.at(data, b_.CreateShl(row, 2)));
  }
}

void RegionRows::store_gradient_terms(RowEmitter& rows, Value* frame) {
  std::int64_t i = 0;
  for (const ir::DenseTerm& t : c_.plan.loss.dense) {
    Value* coefficient = rows.value(t.coefficient);
    if (const NodeId x = shape_.softmax_of(t.basis); x != ir::no_node) {
      // A softmax of which the row counts for no child may have no finite sum.
      coefficient = c_.zero_mul(coefficient, frame_.load(frame, Slot::inverse, x));
    }
    frame_.store(frame, Slot::coefficient, i++, coefficient);
  }
  i = 0;
  for (const ir::SparseTerm& t : c_.plan.loss.sparse) {
    frame_.store(frame, Slot::sparse_value, i, rows.value(t.value));
    frame_.store(frame, Slot::sparse_index, i, rows.value(t.index));
    ++i;
  }
}

void RegionRows::store_operands(RowEmitter& rows, Value* frame, const std::vector<NodeId>& roots,
                                std::size_t k) {
  for (NodeId id : row_operands(c_.graph(), roots)) {
    const Op op = c_.node(id).op;
    if (op == Op::constant) continue;
    const bool of_softmax = op == Op::anchor || op == Op::log_sum;
    if (shape_.owns(id) && (of_softmax || shape_.phase_of(id) >= k)) continue;  // in its slot
    frame_.store(frame, Slot::value, id, rows.value(id));
  }
  const std::set<NodeId> formed = shape_.softmaxes(roots);
  std::set<NodeId> exponentials = formed;
  if (k < shape_.region().phases.size()) exponentials = shape_.phase_exponentials(k);
  // The region's own anchors are set where they are chosen.
  for (NodeId x : exponentials) {
    const NodeId anchor = shape_.anchor_of(x);
    if (!shape_.owns(anchor)) frame_.store_anchor(frame, x, rows.value(anchor));
  }
  for (NodeId x : formed) frame_.store(frame, Slot::inverse, x, inverse_sum(rows, frame, x));
}

std::string RegionRows::begin() {
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
  for (NodeId id : shape_.region().stored) {
    Value* data = c_.buffer(args, c_.layout.buffer_of.at(id));
    b_.CreateStore(c_.f32(0.0), c_.at(data, b_.CreateShl(row, 2)));
  }
  b_.CreateRet(b_.getInt32(0));
  b_.SetInsertPoint(work);
  for (NodeId id : shape_.region().picks) {
    if (shape_.from_sweep(c_.node(id).in[1])) continue;  // its index comes from a sweep: see finish
    frame_.store(frame, Slot::value, id, rows.pick(id, frame_.row_address(frame, c_.node(id).in[0])));
  }
  stage(rows, args, row, frame, 0);
  Value* flags = b_.CreateSelect(live, b_.getInt32(kRowActive | kRowLive), b_.getInt32(kRowActive));
  b_.CreateRet(flags);
  return name;
}

// The anchors may have been too low: a sum beyond the limit, infinite or NaN asks for exact ones.
std::string RegionRows::finish(std::size_t k) {
  const std::string name = fmt::format("{}_finish{}", prefix_, k);
  llvm::Function* f = c_.function(name, b_.getInt32Ty(), {c_.ptr(), b_.getInt64Ty(), c_.ptr()});
  Value *args = f->getArg(0), *row = f->getArg(1), *frame = f->getArg(2);
  RowEmitter rows = row_emitter(args, row, frame);
  const std::vector<NodeId>& statistics = shape_.region().phases[k].statistics;
  Value* good = b_.getTrue();
  for (NodeId id : statistics) {
    if (c_.node(id).op != Op::log_sum) continue;
    const NodeId x = c_.node(id).in[0];
    good = b_.CreateAnd(good, good_sum(c_, frame_, frame, x));
    Value* log_sum = c_.math.log(frame_.load(frame, Slot::sum, x));
    frame_.store(frame, Slot::value, id, b_.CreateFSub(log_sum, frame_.load(frame, Slot::excess, x)));
  }
  for (NodeId id : statistics) {
    const Node& n = c_.node(id);
    if (n.op != Op::expect) continue;
    Value* sum = frame_.load(frame, Slot::value, id);
    Value* mean = shape_.summed_here(n.in[0]) ? b_.CreateFDiv(sum, frame_.load(frame, Slot::sum, n.in[0]))
                                              : b_.CreateFMul(sum, inverse_sum(rows, frame, n.in[0]));
    frame_.store(frame, Slot::value, id, mean);
  }
  for (NodeId id : shape_.region().picks) {
    if (!shape_.from_sweep(c_.node(id).in[1])) continue;
    frame_.store(frame, Slot::value, id, rows.pick(id, frame_.row_address(frame, c_.node(id).in[0])));
  }
  stage(rows, args, row, frame, k + 1);
  b_.CreateRet(b_.CreateZExt(good, b_.getInt32Ty()));
  return name;
}

std::string RegionRows::sparse() {
  const std::string name = prefix_ + "_sparse";
  llvm::Function* f = c_.function(name, b_.getVoidTy(), {c_.ptr()});
  Value* frame = f->getArg(0);
  for (std::size_t i = 0; i < c_.plan.loss.sparse.size(); ++i) {
    const auto term = static_cast<std::int64_t>(i);
    Value* inside = nullptr;
    Value* address = sparse_place(c_, frame_, frame, i, inside);
    Value* v = frame_.load(frame, Slot::sparse_value, term);
    if (c_.plan.gradient == GradientMode::accumulate) {
      v = b_.CreateFAdd(v, frame_.load(frame, Slot::sparse_old, term));
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

}  // namespace lossc::cpu
