#include "ir/evaluate_op.h"

#include <cmath>
#include <limits>
#include <string>

#include "lossc/error.h"

namespace lossc::ir {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kLogHalf = -0.6931471805599453;

double sigmoid(double x) {
  const double e = std::exp(-std::fabs(x));
  return x >= 0 ? 1 / (1 + e) : e / (1 + e);
}

double softplus(double x) {
  return (x < 0 ? 0 : x) + std::log1p(std::exp(-std::fabs(x)));
}

// Either form alone loses all digits at one end of the range.
double log1mexp(double x) {
  return x > kLogHalf ? std::log(-std::expm1(x)) : std::log1p(-std::exp(x));
}

double sign(double x) {
  return std::isnan(x) ? x : static_cast<double>((x > 0) - (x < 0));
}

double minimum(double a, double b) {
  return std::isnan(a) || std::isnan(b) ? kNaN : (b < a ? b : a);
}
double maximum(double a, double b) {
  return std::isnan(a) || std::isnan(b) ? kNaN : (a < b ? b : a);
}

}  // namespace

double evaluate_op(Op op, double a, double b, double c) {
  switch (op) {
    case Op::neg:
      return -a;
    case Op::exp:
      return std::exp(a);
    case Op::log:
      return std::log(a);
    case Op::log1p:
      return std::log1p(a);
    case Op::expm1:
      return std::expm1(a);
    case Op::log1mexp:
      return log1mexp(a);
    case Op::tanh:
      return std::tanh(a);
    case Op::sigmoid:
      return sigmoid(a);
    case Op::log_sigmoid:
      return -softplus(-a);
    case Op::softplus:
      return softplus(a);
    case Op::sqrt:
      return std::sqrt(a);
    case Op::abs:
      return std::fabs(a);
    case Op::sign:
      return sign(a);
    case Op::is_finite:
      return std::isfinite(a) ? 1 : 0;
    case Op::logical_not:
      return a == 0 ? 1 : 0;
    case Op::to_real:
    case Op::stop_gradient:
      return a;
    case Op::add:
      return a + b;
    case Op::sub:
      return a - b;
    case Op::mul:
      return a * b;
    case Op::div:
      return a / b;
    case Op::zero_mul:
      return a == 0 ? 0 : a * b;
    case Op::minimum:
      return minimum(a, b);
    case Op::maximum:
      return maximum(a, b);
    case Op::less:
      return a < b ? 1 : 0;
    case Op::less_equal:
      return a <= b ? 1 : 0;
    case Op::equal:
      return a == b ? 1 : 0;
    case Op::logical_and:
      return a != 0 && b != 0 ? 1 : 0;
    case Op::logical_or:
      return a != 0 || b != 0 ? 1 : 0;
    case Op::select:
      return a != 0 ? b : c;
    case Op::clip:
      return minimum(maximum(a, b), c);
    default:
      throw Error(ErrorCode::internal, "evaluate_op: " + std::string(op_name(op)) + " is not point-wise");
  }
}

}  // namespace lossc::ir
