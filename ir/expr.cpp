// The operators and functions of Expr: each adds nodes to the operand's graph.
#include <cmath>
#include <limits>

#include "ir/graph.h"
#include "lossc/error.h"
#include "lossc/loss.h"

namespace lossc {
namespace {

using ir::Op;
using ir::Space;

void need_value(Expr a) {
  if (!a.empty()) return;
  throw Error(ErrorCode::invalid_argument, "an empty expression has no value; assign one before use");
}

ir::Graph& common_graph(Expr a, Expr b) {
  need_value(a);
  need_value(b);
  if (&a.graph() != &b.graph()) {
    throw Error(ErrorCode::invalid_argument,
                "expressions of two graphs do not meet; use values of one LossContext only");
  }
  return a.graph();
}

Expr constant(Expr like, double value) {
  need_value(like);
  return {&like.graph(), like.graph().constant(value)};
}

Expr unary(Op op, Expr a) {
  need_value(a);
  return {&a.graph(), a.graph().apply(op, a.node())};
}

Expr binary(Op op, Expr a, Expr b) {
  ir::Graph& graph = common_graph(a, b);
  return {&graph, graph.apply(op, a.node(), b.node())};
}

Expr ternary(Op op, Expr a, Expr b, Expr c) {
  ir::Graph& graph = common_graph(a, b);
  common_graph(b, c);
  return {&graph, graph.apply(op, a.node(), b.node(), c.node())};
}

Space space_of(Expr a) {
  need_value(a);
  return a.graph().node(a.node()).space;
}

}  // namespace

Expr Expr::operator-() const {
  return unary(Op::neg, *this);
}

Expr operator+(Expr a, Expr b) {
  return binary(Op::add, a, b);
}
Expr operator-(Expr a, Expr b) {
  return binary(Op::sub, a, b);
}
Expr operator*(Expr a, Expr b) {
  return binary(Op::mul, a, b);
}
Expr operator/(Expr a, Expr b) {
  return binary(Op::div, a, b);
}
Expr operator+(Expr a, double b) {
  return a + constant(a, b);
}
Expr operator-(Expr a, double b) {
  return a - constant(a, b);
}
Expr operator*(Expr a, double b) {
  return a * constant(a, b);
}
Expr operator/(Expr a, double b) {
  return a / constant(a, b);
}
Expr operator+(double a, Expr b) {
  return constant(b, a) + b;
}
Expr operator-(double a, Expr b) {
  return constant(b, a) - b;
}
Expr operator*(double a, Expr b) {
  return constant(b, a) * b;
}
Expr operator/(double a, Expr b) {
  return constant(b, a) / b;
}

Expr operator<(Expr a, Expr b) {
  return binary(Op::less, a, b);
}
Expr operator<=(Expr a, Expr b) {
  return binary(Op::less_equal, a, b);
}
Expr operator>(Expr a, Expr b) {
  return binary(Op::less, b, a);
}
Expr operator>=(Expr a, Expr b) {
  return binary(Op::less_equal, b, a);
}
Expr operator<(Expr a, double b) {
  return a < constant(a, b);
}
Expr operator<=(Expr a, double b) {
  return a <= constant(a, b);
}
Expr operator>(Expr a, double b) {
  return a > constant(a, b);
}
Expr operator>=(Expr a, double b) {
  return a >= constant(a, b);
}
Expr equal(Expr a, Expr b) {
  return binary(Op::equal, a, b);
}
Expr equal(Expr a, double b) {
  return equal(a, constant(a, b));
}
Expr operator&&(Expr a, Expr b) {
  return binary(Op::logical_and, a, b);
}
Expr operator||(Expr a, Expr b) {
  return binary(Op::logical_or, a, b);
}
Expr operator!(Expr a) {
  return unary(Op::logical_not, a);
}
Expr select(Expr condition, Expr a, Expr b) {
  return ternary(Op::select, condition, a, b);
}
Expr select(Expr condition, Expr a, double b) {
  return select(condition, a, constant(a, b));
}
Expr indicator(Expr condition) {
  return unary(Op::to_real, condition);
}

Expr exp(Expr a) {
  return unary(Op::exp, a);
}
Expr log(Expr a) {
  return unary(Op::log, a);
}
Expr log1p(Expr a) {
  return unary(Op::log1p, a);
}
Expr expm1(Expr a) {
  return unary(Op::expm1, a);
}
Expr log1mexp(Expr a) {
  return unary(Op::log1mexp, a);
}
Expr tanh(Expr a) {
  return unary(Op::tanh, a);
}
Expr sigmoid(Expr a) {
  return unary(Op::sigmoid, a);
}
Expr log_sigmoid(Expr a) {
  return unary(Op::log_sigmoid, a);
}
Expr softplus(Expr a) {
  return unary(Op::softplus, a);
}
Expr sqrt(Expr a) {
  return unary(Op::sqrt, a);
}
Expr abs(Expr a) {
  return unary(Op::abs, a);
}
Expr square(Expr a) {
  return a * a;
}
Expr min(Expr a, Expr b) {
  return binary(Op::minimum, a, b);
}
Expr max(Expr a, Expr b) {
  return binary(Op::maximum, a, b);
}
Expr min(Expr a, double b) {
  return min(a, constant(a, b));
}
Expr max(Expr a, double b) {
  return max(a, constant(a, b));
}
Expr clip(Expr a, Expr low, Expr high) {
  return ternary(Op::clip, a, low, high);
}
Expr clip(Expr a, double low, double high) {
  return clip(a, constant(a, low), constant(a, high));
}
Expr zero_mul(Expr a, Expr b) {
  return binary(Op::zero_mul, a, b);
}
Expr stop_gradient(Expr a) {
  return unary(Op::stop_gradient, a);
}

Expr logaddexp(Expr a, Expr b) {
  const double infinity = std::numeric_limits<double>::infinity();
  const Expr top = stop_gradient(max(a, b));
  const Expr none = equal(top, -infinity);
  // An infinite shift would give inf - inf. With shift 0 the exponentials of -inf are plain zeros, and log
  // sees 1 instead of their sum, so that the branch not taken has a finite value and a zero derivative.
  const Expr shift = select(!none && top < infinity, top, 0);
  const Expr sum = exp(a - shift) + exp(b - shift);
  const Expr one = constant(a, 1);
  return select(none, constant(a, -infinity), shift + log(select(none, one, sum)));
}

Expr lse(Expr x) {
  return unary(Op::lse, x);
}
Expr softmax(Expr x) {
  return unary(Op::softmax, x);
}
Expr expect(Expr x, Expr a) {
  return binary(Op::expect, x, a);
}
Expr entropy(Expr x) {
  return lse(x) - expect(x, x);
}

Expr vocab_sum(Expr a) {
  const Space space = space_of(a);
  // What does not vary over the vocabulary is added once an entry.
  if (space == Space::scalar || space == Space::rows) {
    return a * Expr(&a.graph(), a.graph().space_size(Space::vocab));
  }
  return unary(Op::vocab_sum, a);
}

Expr vocab_mean(Expr a, std::int64_t vocab) {
  const Space space = space_of(a);
  if (space == Space::scalar || space == Space::rows) return a;
  return vocab_sum(a) / static_cast<double>(vocab);
}

Expr vocab_max(Expr a) {
  return unary(Op::vocab_max, a);
}
Expr argmax(Expr a) {
  return unary(Op::vocab_argmax, a);
}
Expr pick(Expr a, Expr index) {
  return binary(Op::pick, a, index);
}

}  // namespace lossc
