// Elementary functions as LLVM IR, for scalar `float` and `<W x float>` alike: the type of the argument
// decides, and both give the same bits. No fast-math flags: -inf, NaN and signed results mean what they mean
// in the loss.
//
// The code assumes round-to-nearest. Error bounds stand in tests/vector_math_test.cpp.
#pragma once

namespace llvm {
class IRBuilderBase;
class Type;
class Value;
}  // namespace llvm

namespace lossc::cpu {

struct MathTarget {
  bool avx512 = false;          ///< AVX-512 F, DQ and VL: exponents are applied with vscalefps.
  bool fma = true;              ///< Without it each fma is a double multiply and add: right, slow.
  bool avx2 = true;             ///< 8 lanes of integer arithmetic.
  bool flush_denormals = true;  ///< FTZ and DAZ are set while kernels run: a denormal input counts as 0.
};

class VectorMath {
 public:
  VectorMath(llvm::IRBuilderBase& builder, MathTarget target);

  /// For x in [-86.9, 88.72] within 2.03 ulp. Below: exactly 0 from -87.34 down, -inf included (results
  /// between 1.2e-38 and 1.7e-38 are already 0 on AVX2). Above 88.73: +inf. exp(0) = 1. No denormal result.
  llvm::Value* exp(llvm::Value* x);
  /// 2^x within a relative error of 1.7e-7, for x in [-126, 127.9]. Below: 0 or what rounds there, 0 for
  /// -inf. Above: +inf, or no less than 1e38. NaN stays NaN.
  llvm::Value* exp2(llvm::Value* x);

  llvm::Value* log(llvm::Value* x);       ///< 0 -> -inf, negative -> NaN.
  llvm::Value* log1p(llvm::Value* x);     ///< -1 -> -inf, less -> NaN.
  llvm::Value* expm1(llvm::Value* x);     ///< -inf -> -1.
  llvm::Value* log1mexp(llvm::Value* x);  ///< log(1 - exp(x)): 0 -> -inf, positive -> NaN.
  llvm::Value* tanh(llvm::Value* x);
  llvm::Value* sigmoid(llvm::Value* x);
  llvm::Value* log_sigmoid(llvm::Value* x);
  llvm::Value* softplus(llvm::Value* x);
  llvm::Value* sqrt(llvm::Value* x);
  llvm::Value* abs(llvm::Value* x);
  llvm::Value* sign(llvm::Value* x);       ///< -1, 0 or 1; NaN -> NaN.
  llvm::Value* is_finite(llvm::Value* x);  ///< i1 or <W x i1>.

  // NaN in any operand gives NaN. One instruction for a constant bound, four otherwise; of two zeros either
  // may come.
  llvm::Value* minimum(llvm::Value* a, llvm::Value* b);
  llvm::Value* maximum(llvm::Value* a, llvm::Value* b);
  llvm::Value* clip(llvm::Value* x, llvm::Value* low, llvm::Value* high);  ///< minimum(maximum(x, low), high)

  /// a * b + c, rounded once.
  llvm::Value* fma(llvm::Value* a, llvm::Value* b, llvm::Value* c);
  /// The number as a constant of the type, in every lane.
  llvm::Value* constant(llvm::Type* type, double value);

 private:
  struct Reduction {
    llvm::Value* shifted;    ///< Its low bits are k + 126.
    llvm::Value* k;          ///< round(x / ln 2)
    llvm::Value* remainder;  ///< x - k * ln 2
  };
  Reduction reduce(llvm::Value* x);
  llvm::Value* half_power(llvm::Value* shifted);       ///< 2^(k - 1); 0 for k = -126
  llvm::Value* scale(llvm::Value* x, llvm::Value* k);  ///< x * 2^floor(k) by vscalefps
  llvm::Value* fraction(llvm::Value* x);               ///< x - floor(x) by vreduceps
  llvm::Value* expm1_remainder(llvm::Value* r);
  llvm::Value* log1p_remainder(llvm::Value* f, llvm::Value* k);
  llvm::Value* log_near(llvm::Value* sum, llvm::Value* x, llvm::Value* one, llvm::Value** k);
  llvm::Value* clamp_low(llvm::Value* x, double low);
  llvm::Value* clamp_high(llvm::Value* x, double high);
  template <unsigned N>
  llvm::Value* polynomial(llvm::Value* x, const double (&coefficients)[N], double factor = 1);
  llvm::Type* integer_type(llvm::Type* type);
  llvm::Value* integer_constant(llvm::Type* type, unsigned value);

  llvm::IRBuilderBase& builder_;
  MathTarget target_;
};

}  // namespace lossc::cpu
