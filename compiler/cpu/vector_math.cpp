#include "compiler/cpu/vector_math.h"

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsX86.h>

#include <limits>
#include <utility>

namespace lossc::cpu {

using llvm::Type;
using llvm::Value;

namespace {

constexpr double log2_e = 1.4426950408889634;
// ln 2 in two floats: k * ln2_high is rounded inside an fma only.
constexpr double ln2_high = 0x1.62e43p-1;
constexpr double ln2_low = -0x1.05c610ca86c39p-29;
constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits; the 126 makes them the exponent field
// of 2^(k - 1), so that one shift forms the power. k - 1 and a doubled polynomial, because k reaches 128.
constexpr double round_shift = 12582912.0 + 126.0;

// Coefficients, lowest first: minimax in relative error of the function.
// exp(r) on |r| <= ln(2)/2: 9.2e-8. The 1 is fixed, so that exp(0) = 1; the others are chosen among the
// floats nearby for the least error with all roundings, 1.9 ulp.
constexpr double exp_coefficients[] = {1, 0.999999702, 0.499991566, 0.166676164, 0.0418980271, 0.00829573721};
// 2^f on |f| <= 1/2: 9.7e-8, with all roundings 1.5e-7; on [0, 1]: 8.4e-8, 1.4e-7. Chosen as for exp.
constexpr double exp2_near_coefficients[] = {
    1, 0.693147004, 0.240222409, 0.0555071943, 0.00967153069, 0.00132644339};
constexpr double exp2_unit_coefficients[] = {
    1, 0.693151295, 0.240164489, 0.0557999536, 0.0090169711, 0.00186712446};
// (exp(r) - 1 - r) / r^2 on |r| <= ln(2)/2; exp(r) - 1 within 1.4e-8.
constexpr double expm1_coefficients[] = {0.49999998154, 0.16666543621, 0.0416671998591, 0.00836652057738,
                                         0.00138825215073};
// (log(1 + f) - f) / f^2 on |f| <= 1/3; log(1 + f) within 2.7e-8.
constexpr double log1p_coefficients[] = {-0.499999360788, 0.333331981381, -0.250078188963, 0.200111686229,
                                         -0.164159607201, 0.139958076911, -0.153885400354, 0.140263554495};

constexpr unsigned two_thirds = 0x3f2aaaab;
constexpr unsigned exponent_field = 0xff800000;

/// A constant other than NaN, the same in every lane.
bool is_number(Value* value) {
  auto* constant = llvm::dyn_cast<llvm::Constant>(value);
  if (constant && constant->getType()->isVectorTy()) constant = constant->getSplatValue();
  auto* number = llvm::dyn_cast_or_null<llvm::ConstantFP>(constant);
  return number && !number->isNaN();
}

}  // namespace

VectorMath::VectorMath(llvm::IRBuilderBase& builder, MathTarget target)
    : builder_(builder), target_(target) {}

Value* VectorMath::constant(Type* type, double value) {
  return llvm::ConstantFP::get(type, value);
}

Type* VectorMath::integer_type(Type* type) {
  return type->getWithNewType(builder_.getInt32Ty());
}

Value* VectorMath::integer_constant(Type* type, unsigned value) {
  return llvm::ConstantInt::get(integer_type(type), value);
}

Value* VectorMath::fma(Value* a, Value* b, Value* c) {
  Type* type = a->getType();
  if (target_.fma) return builder_.CreateIntrinsic(llvm::Intrinsic::fma, {type}, {a, b, c});
  // The product of two floats is exact in double; the sum rounds twice, which differs from once by a hair
  // above 1/2 ulp.
  Type* wide = type->getWithNewType(builder_.getDoubleTy());
  Value* product = builder_.CreateFMul(builder_.CreateFPExt(a, wide), builder_.CreateFPExt(b, wide));
  return builder_.CreateFPTrunc(builder_.CreateFAdd(product, builder_.CreateFPExt(c, wide)), type);
}

template <unsigned N>
Value* VectorMath::polynomial(Value* x, const double (&coefficients)[N], double factor) {
  Type* type = x->getType();
  auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(type);
  if (vector == nullptr || target_.avx512) {
    Value* sum = constant(type, factor * coefficients[N - 1]);
    for (unsigned i = N - 1; i-- > 0;) sum = fma(sum, x, constant(type, factor * coefficients[i]));
    return sum;
  }
  // With 16 vector registers the coefficients of one exp would fill half of them and push a sweep's
  // accumulators to the stack. They are read from memory instead, as operands of the multiply-adds: from a
  // table that counts as writable, so that the code generator does not turn it into registers, and from one
  // of each call's own, so that two calls do not share a load.
  llvm::SmallVector<llvm::Constant*, N> rows;
  for (double c : coefficients) rows.push_back(llvm::cast<llvm::Constant>(constant(type, factor * c)));
  auto* table_type = llvm::ArrayType::get(type, N);
  auto* table = new llvm::GlobalVariable(*builder_.GetInsertBlock()->getModule(), table_type, false,
                                         llvm::GlobalValue::InternalLinkage,
                                         llvm::ConstantArray::get(table_type, rows), "coefficients");
  const llvm::Align align(vector->getNumElements() * 4);
  table->setAlignment(align);
  auto coefficient = [&](unsigned i) {
    return builder_.CreateAlignedLoad(type, builder_.CreateConstInBoundsGEP2_32(table_type, table, 0, i),
                                      align);
  };
  Value* sum = coefficient(N - 1);
  for (unsigned i = N - 1; i-- > 0;) sum = fma(sum, x, coefficient(i));
  return sum;
}

// maxps and minps return their second operand when one is NaN: with the bound first NaN stays, in one
// instruction.
Value* VectorMath::clamp_low(Value* x, double low) {
  Value* bound = constant(x->getType(), low);
  return builder_.CreateSelect(builder_.CreateFCmpOLT(x, bound), bound, x);
}

Value* VectorMath::clamp_high(Value* x, double high) {
  Value* bound = constant(x->getType(), high);
  return builder_.CreateSelect(builder_.CreateFCmpOGT(x, bound), bound, x);
}

VectorMath::Reduction VectorMath::reduce(Value* x) {
  Type* type = x->getType();
  Value* shift = constant(type, round_shift);
  Value* shifted = fma(x, constant(type, log2_e), shift);
  Value* k = builder_.CreateFSub(shifted, shift);
  Value* remainder = fma(k, constant(type, -ln2_high), x);
  return {shifted, k, fma(k, constant(type, -ln2_low), remainder)};
}

Value* VectorMath::half_power(Value* shifted) {
  Type* type = shifted->getType();
  Value* bits = builder_.CreateBitCast(shifted, integer_type(type));
  return builder_.CreateBitCast(builder_.CreateShl(bits, integer_constant(type, 23)), type);
}

Value* VectorMath::scale(Value* x, Value* k) {
  Type* type = x->getType();
  auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(type);
  if (vector && vector->getNumElements() == 16) {
    return builder_.CreateIntrinsic(
        llvm::Intrinsic::x86_avx512_mask_scalef_ps_512, {},
        {x, k, llvm::PoisonValue::get(type), builder_.getInt16(0xffff), builder_.getInt32(4)});
  }
  if (vector && vector->getNumElements() == 8) {
    return builder_.CreateIntrinsic(llvm::Intrinsic::x86_avx512_mask_scalef_ps_256, {},
                                    {x, k, llvm::PoisonValue::get(type), builder_.getInt8(0xff)});
  }
  // A scalar, in the low lane of four.
  Type* four = llvm::FixedVectorType::get(builder_.getFloatTy(), 4);
  Value* undefined = llvm::PoisonValue::get(four);
  Value* result = builder_.CreateIntrinsic(
      llvm::Intrinsic::x86_avx512_mask_scalef_ps_128, {},
      {builder_.CreateInsertElement(undefined, x, builder_.getInt32(0)),
       builder_.CreateInsertElement(undefined, k, builder_.getInt32(0)), undefined, builder_.getInt8(0xf)});
  return builder_.CreateExtractElement(result, builder_.getInt32(0));
}

Value* VectorMath::fraction(Value* x) {
  Type* type = x->getType();
  auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(type);
  Value* down = builder_.getInt32(9);  // towards -inf, to integers, no exceptions
  if (vector && vector->getNumElements() == 16) {
    return builder_.CreateIntrinsic(
        llvm::Intrinsic::x86_avx512_mask_reduce_ps_512, {},
        {x, down, llvm::PoisonValue::get(type), builder_.getInt16(0xffff), builder_.getInt32(4)});
  }
  if (vector && vector->getNumElements() == 8) {
    return builder_.CreateIntrinsic(llvm::Intrinsic::x86_avx512_mask_reduce_ps_256, {},
                                    {x, down, llvm::PoisonValue::get(type), builder_.getInt8(0xff)});
  }
  Type* four = llvm::FixedVectorType::get(builder_.getFloatTy(), 4);
  Value* undefined = llvm::PoisonValue::get(four);
  Value* result = builder_.CreateIntrinsic(llvm::Intrinsic::x86_avx512_mask_reduce_ps_128, {},
                                           {builder_.CreateInsertElement(undefined, x, builder_.getInt32(0)),
                                            down, undefined, builder_.getInt8(0xf)});
  return builder_.CreateExtractElement(result, builder_.getInt32(0));
}

Value* VectorMath::exp(Value* x) {
  if (target_.avx512) {
    // Wide enough for vscalefps to reach 0 and +inf by itself.
    const Reduction reduction = reduce(clamp_high(clamp_low(x, -105), 89));
    return scale(polynomial(reduction.remainder, exp_coefficients), reduction.k);
  }
  // At the lower bound k is -126 and half_power 0; at the upper one the product overflows. The power is
  // multiplied in, not added to the exponent bits, so that any NaN payload stays NaN.
  const Reduction reduction = reduce(clamp_high(clamp_low(x, -87.3365), 89));
  Value* p = polynomial(reduction.remainder, exp_coefficients, 2);
  return builder_.CreateFMul(p, half_power(reduction.shifted));
}

Value* VectorMath::exp2(Value* x) {
  // Of an infinite x the fraction is 0, and vscalefps knows what to do.
  if (target_.avx512) return scale(polynomial(fraction(x), exp2_unit_coefficients), x);
  Type* type = x->getType();
  Value* shift = constant(type, round_shift);
  x = clamp_high(clamp_low(x, -126), 128);
  Value* shifted = builder_.CreateFAdd(x, shift);
  Value* near = builder_.CreateFSub(x, builder_.CreateFSub(shifted, shift));
  return builder_.CreateFMul(polynomial(near, exp2_near_coefficients, 2), half_power(shifted));
}

Value* VectorMath::expm1_remainder(Value* r) {
  return fma(builder_.CreateFMul(r, r), polynomial(r, expm1_coefficients), r);
}

Value* VectorMath::expm1(Value* x) {
  Type* type = x->getType();
  x = clamp_high(clamp_low(x, -30), 89);
  Reduction reduction = reduce(x);
  Value* power = half_power(reduction.shifted);
  Value* offset = builder_.CreateFSub(power, constant(type, 0.5));
  Value* half = fma(expm1_remainder(reduction.remainder), power, offset);
  return builder_.CreateFMul(half, constant(type, 2));
}

// log(1 + f) + k * ln 2
Value* VectorMath::log1p_remainder(Value* f, Value* k) {
  Type* type = f->getType();
  Value* tail = builder_.CreateFMul(builder_.CreateFMul(f, f), polynomial(f, log1p_coefficients));
  tail = fma(k, constant(type, ln2_low), tail);
  return fma(k, constant(type, ln2_high), builder_.CreateFAdd(f, tail));
}

// For sum = one + x, rounded, positive and normal, one being 0 or 1: k and f with one + x = 2^k * (1 + f),
// where 1 + f lies in [2/3, 4/3] and f carries what the rounding of the sum lost.
Value* VectorMath::log_near(Value* sum, Value* x, Value* one, Value** k) {
  Type* type = x->getType();
  Type* integer = integer_type(type);
  Value* bits = builder_.CreateBitCast(sum, integer);
  Value* exponent = builder_.CreateAnd(builder_.CreateSub(bits, integer_constant(type, two_thirds)),
                                       integer_constant(type, exponent_field));
  *k = builder_.CreateSIToFP(builder_.CreateAShr(exponent, integer_constant(type, 23)), type);
  // x * 2^-k: x is normal wherever k is not 0.
  Value* scaled =
      builder_.CreateBitCast(builder_.CreateSub(builder_.CreateBitCast(x, integer), exponent), type);
  if (!one) return builder_.CreateFSub(scaled, constant(type, 1));
  // one * 2^-k - 1 by way of 2^(1 - k), which is a float (0, at worst) for every k <= 128.
  Value* twice =
      builder_.CreateBitCast(builder_.CreateSub(integer_constant(type, 0x40000000), exponent), type);
  return builder_.CreateFAdd(scaled,
                             fma(twice, builder_.CreateFMul(one, constant(type, 0.5)), constant(type, -1)));
}

Value* VectorMath::log(Value* x) {
  Type* type = x->getType();
  Value* normal = x;
  Value* tiny = nullptr;
  if (!target_.flush_denormals) {
    tiny = builder_.CreateFCmpOLT(x, constant(type, 0x1p-126));
    normal = builder_.CreateSelect(tiny, builder_.CreateFMul(x, constant(type, 0x1p23)), x);
  }
  Value* k = nullptr;
  Value* f = log_near(normal, normal, nullptr, &k);
  if (tiny) k = builder_.CreateSelect(tiny, builder_.CreateFSub(k, constant(type, 23)), k);
  Value* result = log1p_remainder(f, k);
  // +inf and NaN are their own logarithms.
  result = builder_.CreateSelect(builder_.CreateFCmpOLT(x, constant(type, infinity)), result, x);
  result =
      builder_.CreateSelect(builder_.CreateFCmpOEQ(x, constant(type, 0)), constant(type, -infinity), result);
  return builder_.CreateSelect(builder_.CreateFCmpOLT(x, constant(type, 0)), constant(type, nan), result);
}

Value* VectorMath::log1p(Value* x) {
  Type* type = x->getType();
  Value* one = constant(type, 1);
  Value* k = nullptr;
  Value* f = log_near(builder_.CreateFAdd(x, one), x, one, &k);
  Value* result = log1p_remainder(f, k);
  result = builder_.CreateSelect(builder_.CreateFCmpOLT(x, constant(type, infinity)), result, x);
  result =
      builder_.CreateSelect(builder_.CreateFCmpOEQ(x, constant(type, -1)), constant(type, -infinity), result);
  return builder_.CreateSelect(builder_.CreateFCmpOLT(x, constant(type, -1)), constant(type, nan), result);
}

Value* VectorMath::log1mexp(Value* x) {
  Type* type = x->getType();
  Value* zero = constant(type, 0);
  // Near 0, 1 - exp(x) = -expm1(x) without cancellation; elsewhere log1p(-exp(x)). Both end in one logarithm
  // of one + y, with one = 0 and y = -expm1(x), or one = 1 and y = -exp(x).
  Value* near = builder_.CreateFCmpOGT(x, constant(type, -ln2_high));
  Value* one = builder_.CreateSelect(near, zero, constant(type, 1));
  Value* y = builder_.CreateFNeg(builder_.CreateSelect(near, expm1(x), exp(x)));
  Value* k = nullptr;
  Value* f = log_near(builder_.CreateFAdd(one, y), y, one, &k);
  Value* result = log1p_remainder(f, k);
  result = builder_.CreateSelect(builder_.CreateFCmpOEQ(x, zero), constant(type, -infinity), result);
  return builder_.CreateSelect(builder_.CreateFCmpOLE(x, zero), result, constant(type, nan));
}

Value* VectorMath::tanh(Value* x) {
  Type* type = x->getType();
  // -t / (t + 2) with t = expm1(-2 |x|) in [-1, 0]: no cancellation, no overflow.
  Value* t = expm1(builder_.CreateFMul(abs(x), constant(type, -2)));
  Value* result = builder_.CreateFDiv(t, builder_.CreateFAdd(t, constant(type, 2)));
  return builder_.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, result, x);
}

Value* VectorMath::sigmoid(Value* x) {
  Value* one = constant(x->getType(), 1);
  Value* e = exp(builder_.CreateFNeg(x));
  return builder_.CreateFDiv(one, builder_.CreateFAdd(e, one));
}

Value* VectorMath::softplus(Value* x) {
  // log1p(exp(-|x|)) is finite and positive: only NaN needs care, and the maximum keeps it.
  Value* e = exp(builder_.CreateFNeg(abs(x)));
  return builder_.CreateFAdd(clamp_low(x, 0), log1p(e));
}

Value* VectorMath::log_sigmoid(Value* x) {
  Value* e = exp(builder_.CreateFNeg(abs(x)));
  return builder_.CreateFSub(clamp_high(x, 0), log1p(e));
}

Value* VectorMath::sqrt(Value* x) {
  return builder_.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, x);
}

Value* VectorMath::abs(Value* x) {
  return builder_.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, x);
}

Value* VectorMath::sign(Value* x) {
  Type* type = x->getType();
  Value* zero = constant(type, 0);
  // 0 for zeros and what counts as one, NaN for NaN; infinities are replaced next.
  Value* result = builder_.CreateFMul(x, zero);
  result = builder_.CreateSelect(builder_.CreateFCmpOLT(x, zero), constant(type, -1), result);
  return builder_.CreateSelect(builder_.CreateFCmpOGT(x, zero), constant(type, 1), result);
}

Value* VectorMath::is_finite(Value* x) {
  return builder_.CreateFCmpOLT(abs(x), constant(x->getType(), infinity));
}

// minps and maxps return their second operand when one is NaN.
Value* VectorMath::minimum(Value* a, Value* b) {
  if (is_number(b)) std::swap(a, b);
  Value* result = builder_.CreateSelect(builder_.CreateFCmpOLT(a, b), a, b);
  if (is_number(a)) return result;
  return builder_.CreateSelect(builder_.CreateFCmpUNO(a, a), a, result);
}

Value* VectorMath::maximum(Value* a, Value* b) {
  if (is_number(b)) std::swap(a, b);
  Value* result = builder_.CreateSelect(builder_.CreateFCmpOGT(a, b), a, b);
  if (is_number(a)) return result;
  return builder_.CreateSelect(builder_.CreateFCmpUNO(a, a), a, result);
}

Value* VectorMath::clip(Value* x, Value* low, Value* high) {
  return minimum(maximum(x, low), high);
}

}  // namespace lossc::cpu
