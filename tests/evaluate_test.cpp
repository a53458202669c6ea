// The interpreter, operation by operation, against numbers worked out by hand.
//
// A tolerance is given as a number of roundings of 2^-53, relative to the larger of 1 and the expected value:
// the library functions err by at most one rounding each (glibc), and no case chains more than eight.
#include "ir/evaluate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "catch.h"
#include "ir/evaluate_op.h"
#include "lossc/error.h"
#include "lossc/loss.h"

namespace {

using namespace lossc;
using namespace lossc::ir;
using Values = std::vector<double>;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

bool close(double found, double expected, int roundings = 8) {
  if (std::isnan(expected)) return std::isnan(found);
  if (std::isinf(expected)) return found == expected;
  const double unit = std::numeric_limits<double>::epsilon() / 2;
  return std::fabs(found - expected) <= roundings * unit * std::max(1.0, std::fabs(expected));
}

void check_close(const Values& found, const Values& expected) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) {
    INFO("at " << i << ": found " << found[i] << ", expected " << expected[i]);
    CHECK(close(found[i], expected[i]));
  }
}

// Five rows of three: plain, a masked entry, +inf, NaN, only -inf.
struct Fixture {
  Graph g;
  EvaluationInputs in;
  NodeId x = g.input("x", Space::element);
  NodeId labels = g.input("labels", Space::rows, Kind::index);

  Fixture() {
    in.rows = 5;
    in.vocab = 3;
    in.tensors["x"] = {
        std::log(1.0), std::log(2.0), std::log(5.0), 0, -kInfinity, 0, kInfinity, 1, 0, kNaN, 2, 3,
        -kInfinity,    -kInfinity,    -kInfinity};
    in.tensors["labels"] = {2, 1, -100, 3, 0};
  }

  Values value(NodeId id) { return Evaluator(g, in).value(id); }
};

std::string refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    CHECK(e.code() == ErrorCode::invalid_argument);
    return e.what();
  }
  FAIL("nothing was refused");
  return {};
}

}  // namespace

TEST_CASE("point-wise operations of one operand") {
  struct Case {
    Op op;
    double x, expected;
  };
  const Case cases[] = {
      {Op::neg, 2, -2},
      {Op::exp, 1, 2.718281828459045},
      {Op::exp, -kInfinity, 0},
      {Op::log, 2, 0.6931471805599453},
      {Op::log, 0, -kInfinity},
      {Op::log, -1, kNaN},
      {Op::log1p, 1e-20, 1e-20},
      {Op::expm1, 1e-20, 1e-20},
      {Op::log1mexp, -0.6931471805599453, -0.6931471805599453},  // log(1 - 1/2)
      {Op::log1mexp, -1e-20, -46.051701859880914},               // log(1e-20)
      {Op::log1mexp, -50, -1.9287498479639178e-22},              // -exp(-50)
      {Op::log1mexp, 0, -kInfinity},
      {Op::log1mexp, -kInfinity, 0},
      {Op::tanh, 1, 0.7615941559557649},
      {Op::tanh, kInfinity, 1},
      {Op::sigmoid, 0, 0.5},
      {Op::sigmoid, -1000, 0},
      {Op::sigmoid, 1000, 1},
      {Op::sigmoid, -2, 0.11920292202211755},
      {Op::log_sigmoid, 0, -0.6931471805599453},
      {Op::log_sigmoid, -1000, -1000},
      {Op::log_sigmoid, 1000, 0},
      {Op::log_sigmoid, -kInfinity, -kInfinity},
      {Op::softplus, 0, 0.6931471805599453},
      {Op::softplus, 1000, 1000},
      {Op::softplus, -1000, 0},
      {Op::softplus, kNaN, kNaN},
      {Op::sqrt, 2, 1.4142135623730951},
      {Op::abs, -3, 3},
      {Op::sign, -3, -1},
      {Op::sign, 0, 0},
      {Op::sign, kNaN, kNaN},
      {Op::is_finite, kInfinity, 0},
      {Op::is_finite, kNaN, 0},
      {Op::is_finite, 1, 1},
      {Op::logical_not, 0, 1},
      {Op::logical_not, 1, 0},
      {Op::to_real, 1, 1},
      {Op::stop_gradient, 7, 7},
  };
  for (const Case& c : cases) {
    const double found = evaluate_op(c.op, c.x);
    INFO(op_name(c.op) << "(" << c.x << ") = " << found << ", expected " << c.expected);
    CHECK(close(found, c.expected));
  }
  // Values near 0 are held to their own size, not to 1.
  CHECK(evaluate_op(Op::log1p, 1e-20) == 1e-20);
  CHECK(evaluate_op(Op::expm1, 1e-20) == 1e-20);
  CHECK(close(evaluate_op(Op::log1mexp, -50) / -1.9287498479639178e-22, 1));
  CHECK(close(evaluate_op(Op::log_sigmoid, 50) / -1.9287498479639178e-22, 1));
}

TEST_CASE("point-wise operations of two and three operands") {
  CHECK(evaluate_op(Op::add, 1, 2) == 3);
  CHECK(evaluate_op(Op::sub, 1, 2) == -1);
  CHECK(evaluate_op(Op::mul, 3, 2) == 6);
  CHECK(std::isnan(evaluate_op(Op::mul, 0, kInfinity)));
  CHECK(evaluate_op(Op::div, 3, 2) == 1.5);
  CHECK(evaluate_op(Op::zero_mul, 0, kInfinity) == 0);
  CHECK(evaluate_op(Op::zero_mul, -0.0, kNaN) == 0);
  CHECK(std::isnan(evaluate_op(Op::zero_mul, kInfinity, 0)));
  CHECK(evaluate_op(Op::zero_mul, 2, 3) == 6);
  CHECK(evaluate_op(Op::minimum, 1, 2) == 1);
  CHECK(evaluate_op(Op::maximum, 1, 2) == 2);
  for (const Op op : {Op::minimum, Op::maximum}) {
    CHECK(std::isnan(evaluate_op(op, kNaN, 1)));
    CHECK(std::isnan(evaluate_op(op, 1, kNaN)));
  }
  CHECK(evaluate_op(Op::less, 1, 1) == 0);
  CHECK(evaluate_op(Op::less_equal, 1, 1) == 1);
  CHECK(evaluate_op(Op::equal, 1, 1) == 1);
  for (const Op op : {Op::less, Op::less_equal, Op::equal}) CHECK(evaluate_op(op, kNaN, kNaN) == 0);
  CHECK(evaluate_op(Op::logical_and, 1, 0) == 0);
  CHECK(evaluate_op(Op::logical_or, 1, 0) == 1);
  CHECK(evaluate_op(Op::select, 1, 5, kNaN) == 5);
  CHECK(evaluate_op(Op::select, 0, kNaN, 6) == 6);
  CHECK(evaluate_op(Op::clip, 3, 0, 1) == 1);
  CHECK(evaluate_op(Op::clip, -3, 0, 1) == 0);
  CHECK(evaluate_op(Op::clip, 0.25, 0, 1) == 0.25);
  CHECK(std::isnan(evaluate_op(Op::clip, kNaN, 0, 1)));
  CHECK_THROWS_AS(evaluate_op(Op::lse, 1), Error);
}

TEST_CASE("vocabulary reductions, with infinities and NaN") {
  Fixture f;
  const double log2 = std::log(2.0), log8 = std::log(8.0);
  check_close(f.value(f.g.apply(Op::lse, f.x)), {log8, log2, kNaN, kNaN, kNaN});
  check_close(f.value(f.g.apply(Op::anchor, f.x)), {std::log(5.0), 0, kInfinity, kNaN, -kInfinity});
  check_close(f.value(f.g.apply(Op::log_sum, f.x)), {std::log(1.6), log2, kNaN, kNaN, kNaN});
  check_close(f.value(f.g.apply(Op::vocab_max, f.x)), {std::log(5.0), 0, kInfinity, kNaN, -kInfinity});
  check_close(f.value(f.g.apply(Op::vocab_argmax, f.x)), {2, 0, 0, 2, 0});
  check_close(f.value(f.g.apply(Op::vocab_sum, f.x)),
              {std::log(10.0), -kInfinity, kInfinity, kNaN, -kInfinity});
  check_close(f.value(f.g.apply(Op::softmax, f.x)),
              {0.125, 0.25, 0.625, 0.5, 0, 0.5, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN, kNaN});
}

TEST_CASE("the largest value may be negative, and the first of equals is the maximum") {
  Fixture f;
  f.in.rows = 2;
  f.in.tensors["x"] = {-3, -1, -2, -4, -1, -1};
  CHECK(f.value(f.g.apply(Op::vocab_argmax, f.x)) == Values{1, 1});
  CHECK(f.value(f.g.apply(Op::vocab_max, f.x)) == Values{-1, -1});
}

TEST_CASE("an expectation leaves out what has probability 0") {
  Fixture f;
  f.in.tensors["a"] = {8, 4, 16, 1, kNaN, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1};
  f.in.tensors["w"] = {8, kInfinity, 16};
  const NodeId a = f.g.input("a", Space::element), w = f.g.input("w", Space::vocab);
  check_close(f.value(f.g.apply(Op::expect, f.x, a)), {1 + 1 + 10, 2, kNaN, kNaN, kNaN});
  check_close(f.value(f.g.apply(Op::expect, f.x, w)), {kInfinity, 12, kNaN, kNaN, kNaN});
  // entropy of (1/8, 2/8, 5/8) and of (1/2, 0, 1/2)
  const Expr x(&f.g, f.x);
  const double entropy_0 = std::log(8.0) - 0.25 * std::log(2.0) - 0.625 * std::log(5.0);
  check_close(f.value(entropy(x).node()), {entropy_0, std::log(2.0), kNaN, kNaN, kNaN});
}

TEST_CASE("a large common shift costs an lse no digits beyond the sum's own") {
  Graph g;
  EvaluationInputs in;
  in.rows = 1;
  in.vocab = 2;
  in.tensors["x"] = {1e6, 1e6};
  in.tensors["a"] = {1, 3};
  const NodeId x = g.input("x", Space::element);
  Evaluator e(g, in);
  CHECK(close(e.scalar(g.apply(Op::log_sum, x)), std::log(2.0)));
  CHECK(close(e.scalar(g.apply(Op::lse, x)), 1e6 + std::log(2.0)));
  CHECK(e.value(g.apply(Op::softmax, x)) == Values{0.5, 0.5});
  CHECK(close(e.scalar(g.apply(Op::expect, x, g.input("a", Space::element))), 2));
}

TEST_CASE("pick reads one element, 0 for a negative index, NaN beyond the end") {
  Fixture f;
  check_close(f.value(f.g.apply(Op::pick, f.x, f.labels)), {std::log(5.0), -kInfinity, 0, kNaN, -kInfinity});
  f.in.tensors["w"] = {1, 2, 4};
  check_close(f.value(f.g.apply(Op::pick, f.g.input("w", Space::vocab), f.labels)), {4, 2, 0, kNaN, 1});
}

TEST_CASE("operands broadcast to elements") {
  Graph g;
  EvaluationInputs in;
  in.rows = 2;
  in.vocab = 3;
  in.tensors = {{"x", {1, 2, 3, 4, 5, 6}}, {"r", {10, 20}}, {"w", {1, 2, 4}}, {"m", {1, 0}}};
  in.parameters["c"] = 0.5;
  const Expr x(&g, g.input("x", Space::element)), r(&g, g.input("r", Space::rows));
  const Expr w(&g, g.input("w", Space::vocab)), m(&g, g.input("m", Space::rows, Kind::boolean));
  const Expr c(&g, g.parameter("c"));
  Evaluator e(g, in);
  CHECK(e.value((x + r).node()) == Values{11, 12, 13, 24, 25, 26});
  CHECK(e.value((x * w).node()) == Values{1, 4, 12, 4, 10, 24});
  CHECK(e.value((r * w).node()) == Values{10, 20, 40, 20, 40, 80});
  CHECK(e.value((r * c).node()) == Values{5, 10});
  CHECK(e.value(select(m, x, w).node()) == Values{1, 2, 3, 1, 2, 4});
  CHECK(e.value(clip(x, c, r - 7).node()) == Values{1, 2, 3, 4, 5, 6});
  CHECK(e.value(vocab_sum(w).node()) == Values{7});
  CHECK(e.value(vocab_sum(r).node()) == Values{30, 60});
  CHECK(e.value(vocab_mean(x, 3).node()) == Values{2, 5});
  CHECK(e.value(vocab_mean(r, 3).node()) == Values{10, 20});
  CHECK(e.value(indicator(x > 3).node()) == Values{0, 0, 0, 1, 1, 1});
  CHECK(e.scalar(g.space_size(Space::element)) == 6);
}

TEST_CASE("maps lead from space to space") {
  Graph g;
  EvaluationInputs in;
  in.rows = 5;
  in.vocab = 1;
  in.segments = 3;
  in.named_sizes["groups"] = 2;
  const Space groups = g.add_space("groups");
  g.add_map({"segment", Space::rows, Space::segments});
  g.add_map({"group", Space::segments, groups});
  in.maps = {{"segment", {2, 0, -1, 2, 7}}, {"group", {1, -1, 1}}};
  in.tensors = {{"r", {1, 2, 4, 8, 16}}, {"s", {10, 20, 30}}, {"b", {1, 1, 0}}};
  const NodeId r = g.input("r", Space::rows), s = g.input("s", Space::segments);
  const NodeId b = g.input("b", Space::segments, Kind::boolean);
  Evaluator e(g, in);
  CHECK(e.value(g.along(Op::segment_sum, r, "segment")) == Values{2, 0, 9});
  CHECK(e.value(g.along(Op::segment_min, r, "segment")) == Values{2, kInfinity, 1});
  CHECK(e.value(g.along(Op::segment_max, r, "segment")) == Values{2, -kInfinity, 8});
  check_close(e.value(g.along(Op::gather, s, "segment")), {30, 10, 0, 30, kNaN});
  CHECK(e.value(g.along(Op::gather, b, "segment")) == Values{0, 1, 0, 0, 0});
  CHECK(e.value(g.along(Op::segment_sum, s, "group")) == Values{0, 40});
  CHECK(e.value(g.all_reduce(s, "dp")) == Values{10, 20, 30});
  CHECK(e.scalar(g.space_size(groups)) == 2);

  in.tensors["r"] = {1, 2, 4, kNaN, 16};
  Evaluator with_nan(g, in);
  check_close(with_nan.value(g.along(Op::segment_max, r, "segment")), {2, -kInfinity, kNaN});
}

TEST_CASE("reductions to a scalar, also of nothing") {
  Graph g;
  EvaluationInputs in;
  in.rows = 3;
  in.tensors = {{"r", {3, -1, 2}}, {"p", {}}};
  const NodeId r = g.input("r", Space::rows), p = g.input("p", Space::pairs);
  Evaluator e(g, in);
  CHECK(e.scalar(g.apply(Op::reduce_sum, r)) == 4);
  CHECK(e.scalar(g.apply(Op::reduce_min, r)) == -1);
  CHECK(e.scalar(g.apply(Op::reduce_max, r)) == 3);
  CHECK(e.scalar(g.apply(Op::reduce_sum, p)) == 0);
  CHECK(e.scalar(g.apply(Op::reduce_min, p)) == kInfinity);
  CHECK(e.scalar(g.apply(Op::reduce_max, p)) == -kInfinity);
  in.tensors["r"] = {3, kNaN, 2};
  for (const Op op : {Op::reduce_sum, Op::reduce_min, Op::reduce_max}) {
    CHECK(std::isnan(Evaluator(g, in).scalar(g.apply(op, r))));
  }
}

TEST_CASE("logaddexp of infinities") {
  Graph g;
  EvaluationInputs in;
  in.rows = 7;
  in.tensors["a"] = {0, -kInfinity, -kInfinity, 1000, kInfinity, kNaN, 3};
  in.tensors["b"] = {0, -kInfinity, 2, 1000, 1, 0, -kInfinity};
  const Expr a(&g, g.input("a", Space::rows)), b(&g, g.input("b", Space::rows));
  const double log2 = std::log(2.0);
  check_close(Evaluator(g, in).value(logaddexp(a, b).node()),
              {log2, -kInfinity, 2, 1000 + log2, kInfinity, kNaN, 3});
}

TEST_CASE("an input that a batch may leave out reads its fallback") {
  Graph g;
  EvaluationInputs in;
  in.rows = 2;
  const NodeId mask = g.optional_input("mask", Space::rows, Kind::boolean, 1);
  CHECK(Evaluator(g, in).value(mask) == Values{1, 1});
  in.tensors["mask"] = {0, 1};
  CHECK(Evaluator(g, in).value(mask) == Values{0, 1});
}

TEST_CASE("missing and wrong inputs are named") {
  Graph g;
  EvaluationInputs in;
  in.rows = 2;
  in.segments = 1;
  g.add_map({"segment", Space::rows, Space::segments});
  const NodeId r = g.input("advantages", Space::rows), tau = g.parameter("tau");
  const NodeId sum = g.along(Op::segment_sum, r, "segment");
  const NodeId size = g.space_size(g.add_space("groups"));
  const auto message = [&](NodeId id) { return refusal([&] { Evaluator(g, in).value(id); }); };
  CHECK(message(r).find("'advantages'") != std::string::npos);
  CHECK(message(tau).find("'tau'") != std::string::npos);
  CHECK(message(size).find("'groups'") != std::string::npos);
  in.tensors["advantages"] = {1, 2, 3};
  CHECK(message(r).find("has 3 values; its space 'rows' has 2") != std::string::npos);
  in.tensors["advantages"] = {1, 2};
  CHECK(message(sum).find("'segment'") != std::string::npos);
  in.maps["segment"] = {0};
  CHECK(message(sum).find("1 indices") != std::string::npos);
}

TEST_CASE("a graph may grow while an evaluator reads it") {
  Graph g;
  EvaluationInputs in;
  in.rows = 1;
  in.tensors["r"] = {2};
  NodeId x = g.input("r", Space::rows);
  Evaluator e(g, in);
  const Values& first = e.value(x);
  for (int i = 0; i < 1000; ++i) x = g.apply(Op::add, x, g.constant(1));
  CHECK(e.scalar(x) == 1002);
  CHECK(&e.value(g.input("r", Space::rows)) == &first);
  CHECK(first == Values{2});
}
