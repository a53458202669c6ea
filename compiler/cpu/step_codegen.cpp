#include "compiler/cpu/step_codegen.h"

#include <cstddef>
#include <limits>

#include "compiler/cpu/row_emitter.h"
#include "lossc/error.h"

namespace lossc::cpu {

using ir::NodeId;
using ir::Op;
using ir::Space;
using llvm::Value;

namespace {

class StepGenerator {
 public:
  StepGenerator(Codegen& codegen, const Step& step) : c_(codegen), b_(codegen.b), step_(step) {}

  void generate(const std::string& name) {
    function_ = c_.function(name, b_.getVoidTy(), {c_.ptr(), b_.getInt64Ty(), b_.getInt64Ty(), c_.ptr()});
    args_ = function_->getArg(0);
    switch (step_.kind) {
      case Step::Kind::map:
        map();
        break;
      case Step::Kind::reduce:
        reduce();
        break;
      case Step::Kind::segment:
        segment();
        break;
    }
    b_.CreateRetVoid();
  }

 private:
  Value* begin() { return function_->getArg(1); }
  Value* end() { return function_->getArg(2); }
  Value* partial(std::size_t i) { return c_.at(function_->getArg(3), 8 * static_cast<std::int64_t>(i)); }

  // Statistics come from the row buffers that the regions filled.
  RowEmitter emitter(Value* position, Space space) {
    return RowEmitter(c_, args_, position, space, [this, position](NodeId id) {
      Value* v = b_.CreateLoad(c_.f32(), buffer(id, position));
      return c_.node(id).kind == ir::Kind::index ? b_.CreateFPToSI(v, b_.getInt32Ty()) : v;
    });
  }
  Value* buffer(NodeId id, Value* position) {
    return c_.at(c_.buffer(args_, c_.layout.buffer_of.at(id)), b_.CreateShl(position, 2));
  }
  Value* as_float(Value* v) {
    if (v->getType()->isIntegerTy(1)) return b_.CreateUIToFP(v, c_.f32());
    if (v->getType()->isIntegerTy()) return b_.CreateSIToFP(v, c_.f32());
    return v;
  }

  void map() {
    auto body = [&](Value* i) {
      RowEmitter rows = emitter(i, step_.domain);
      for (NodeId id : step_.values) {
        Value* v = is_statistic(c_.graph(), id) ? rows.value(id) : rows.compute(id);
        v = as_float(v);
        if (auto scalar = c_.layout.scalar_of.find(id); scalar != c_.layout.scalar_of.end()) {
          b_.CreateStore(v, c_.at(c_.field(args_, offsetof(KernelArgs, scalars)), 4 * scalar->second));
        } else if (auto outputs = c_.layout.outputs_of.find(id); outputs != c_.layout.outputs_of.end()) {
          for (int tensor : outputs->second) {
            b_.CreateAlignedStore(v, c_.tensor_address(args_, tensor, i), llvm::Align(4));
          }
        } else {
          b_.CreateStore(v, buffer(id, i));
        }
      }
    };
    if (step_.domain == Space::scalar) {
      body(c_.i64(0));
    } else {
      c_.loop(begin(), end(), 1, body, "positions");
    }
  }

  enum class Fold { sum, min, max };
  static Fold fold_of(Op op) {
    if (op == Op::reduce_min || op == Op::segment_min) return Fold::min;
    if (op == Op::reduce_max || op == Op::segment_max) return Fold::max;
    return Fold::sum;
  }
  static double identity(Fold fold) {
    const double infinity = std::numeric_limits<double>::infinity();
    return fold == Fold::sum ? 0 : fold == Fold::min ? infinity : -infinity;
  }
  Value* combine(Fold fold, Value* total, Value* v) {
    v = b_.CreateFPExt(v, b_.getDoubleTy());
    if (fold == Fold::sum) return b_.CreateFAdd(total, v);
    // NaN stays: it is neither larger nor smaller, so it is taken whenever the comparison with the total
    // fails.
    Value* keep = fold == Fold::min ? b_.CreateFCmpULE(total, v) : b_.CreateFCmpUGE(total, v);
    Value* total_is_nan = b_.CreateFCmpUNO(total, total);
    Value* v_is_nan = b_.CreateFCmpUNO(v, v);
    return b_.CreateSelect(b_.CreateOr(total_is_nan, b_.CreateAnd(keep, b_.CreateNot(v_is_nan))), total, v);
  }

  // body(position, emitter) once for every position, folding each value's operand into `totals` (stack
  // slots).
  std::vector<Value*> totals() {
    std::vector<Value*> slots;
    for (std::size_t k = 0; k < step_.values.size(); ++k) slots.push_back(b_.CreateAlloca(b_.getDoubleTy()));
    return slots;
  }
  void reset(const std::vector<Value*>& slots) {
    for (std::size_t k = 0; k < slots.size(); ++k) {
      const Fold fold = fold_of(c_.node(step_.values[k]).op);
      b_.CreateStore(llvm::ConstantFP::get(b_.getDoubleTy(), identity(fold)), slots[k]);
    }
  }
  void fold(const std::vector<Value*>& slots, Value* position, Space space) {
    RowEmitter rows = emitter(position, space);
    for (std::size_t k = 0; k < slots.size(); ++k) {
      const ir::Node& n = c_.node(step_.values[k]);
      Value* v = as_float(rows.value(n.in[0]));
      Value* total = b_.CreateLoad(b_.getDoubleTy(), slots[k]);
      b_.CreateStore(combine(fold_of(n.op), total, v), slots[k]);
    }
  }

  void reduce() {
    const auto slots = totals();
    reset(slots);
    c_.loop(begin(), end(), 1, [&](Value* i) { fold(slots, i, step_.domain); }, "positions");
    for (std::size_t k = 0; k < slots.size(); ++k) {
      b_.CreateStore(b_.CreateLoad(b_.getDoubleTy(), slots[k]), partial(k));
    }
  }

  void segment() {
    const Space from = c_.graph().map(step_.map).from;
    const auto slots = totals();
    Value* maps = c_.field(args_, offsetof(KernelArgs, maps));
    Value* index = c_.at(maps, static_cast<std::int64_t>(sizeof(MapIndex)) * c_.layout.map_index(step_.map));
    Value* offsets =
        b_.CreateLoad(c_.ptr(), c_.at(index, static_cast<std::int64_t>(offsetof(MapIndex, offsets))));
    Value* order =
        b_.CreateLoad(c_.ptr(), c_.at(index, static_cast<std::int64_t>(offsetof(MapIndex, order))));
    Value* identity_order = b_.CreateIsNull(order);
    // Read behind the selection: without an order, any valid address will do.
    Value* readable = b_.CreateSelect(identity_order, offsets, order);
    c_.loop(
        begin(), end(), 1,
        [&](Value* s) {
          reset(slots);
          Value* at = c_.at(offsets, b_.CreateShl(s, 3));
          Value* first = b_.CreateLoad(b_.getInt64Ty(), at);
          Value* last = b_.CreateLoad(b_.getInt64Ty(), c_.at(at, 8));
          c_.loop(
              first, last, 1,
              [&](Value* k) {
                Value* place = b_.CreateSelect(identity_order, c_.i64(0), b_.CreateShl(k, 2));
                Value* listed =
                    b_.CreateSExt(b_.CreateLoad(b_.getInt32Ty(), c_.at(readable, place)), b_.getInt64Ty());
                fold(slots, b_.CreateSelect(identity_order, k, listed), from);
              },
              "members");
          for (std::size_t k = 0; k < slots.size(); ++k) {
            Value* v = b_.CreateFPTrunc(b_.CreateLoad(b_.getDoubleTy(), slots[k]), c_.f32());
            b_.CreateStore(v, buffer(step_.values[k], s));
          }
        },
        "segments");
  }

  Codegen& c_;
  llvm::IRBuilder<>& b_;
  const Step& step_;
  llvm::Function* function_ = nullptr;
  Value* args_ = nullptr;
};

}  // namespace

void generate_step(Codegen& codegen, const Step& step, const std::string& name) {
  StepGenerator(codegen, step).generate(name);
}

}  // namespace lossc::cpu
