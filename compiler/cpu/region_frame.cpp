#include "compiler/cpu/region_frame.h"

#include <algorithm>
#include <numbers>

namespace lossc::cpu {

using ir::NodeId;
using llvm::Value;

namespace {

// Floats beyond this lie at least 128 apart, so that the lesser of two has the exponential 0 beside the
// other's, in base 2 as in base e. Up to here an offset is rounded by 64 at most, and no exponential or sum
// leaves the range.
constexpr double kHuge = 0x1p30;

}  // namespace

Value* RegionFrame::pointer(Value* frame, std::int64_t index) {
  return c_.b.CreateLoad(c_.ptr(), c_.at(frame, 8 * index));
}

Value* RegionFrame::row_address(Value* frame, NodeId input) {
  const auto& tensors = shape_.tensors();
  return pointer(frame, std::find(tensors.begin(), tensors.end(), input) - tensors.begin());
}

Value* RegionFrame::gradient_address(Value* frame) {
  return pointer(frame, pointers_ - 1);
}

Value* RegionFrame::place(Value* frame, Slot slot, std::int64_t of) {
  const auto index = static_cast<std::int64_t>(slots_.size());
  return c_.at(frame, 8 * pointers_ + 4 * slots_.try_emplace({slot, of}, index).first->second);
}

Value* RegionFrame::load(Value* frame, Slot slot, std::int64_t of, llvm::Type* type) {
  return c_.b.CreateLoad(type != nullptr ? type : c_.f32(), place(frame, slot, of));
}

void RegionFrame::store(Value* frame, Slot slot, std::int64_t of, Value* v) {
  if (v->getType()->isIntegerTy(1)) v = c_.b.CreateUIToFP(v, c_.f32());
  c_.b.CreateStore(v, place(frame, slot, of));
}

// exp(x - anchor) as 2^(x * factor - offset), one multiply-add an element. The offset is rounded; by what
// that adds to every exponent of the row, the logarithm of a sum is corrected: `excess`. Beyond
// kHuge the factor is 1: nothing is rounded, and nothing overflows.
void RegionFrame::store_anchor(Value* frame, NodeId x, Value* anchor) {
  auto& b = c_.b;
  Value* huge = b.CreateFCmpOGT(c_.math.abs(anchor), c_.f32(kHuge));
  Value* factor = b.CreateSelect(huge, c_.f32(1.0), c_.f32(std::numbers::log2e));
  Value* offset = b.CreateFMul(anchor, factor);
  Value* excess = c_.math.fma(anchor, factor, b.CreateFNeg(offset));
  store(frame, Slot::value, shape_.anchor_of(x), anchor);
  store(frame, Slot::factor, x, factor);
  store(frame, Slot::offset, x, offset);
  store(frame, Slot::excess, x, b.CreateFMul(excess, c_.f32(std::numbers::ln2)));
}

}  // namespace lossc::cpu
