// The loss graph: value numbering, folding, what spaces and kinds allow, and its text forms.
#include "ir/graph.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "catch.h"
#include "ir/dump.h"
#include "lossc/error.h"
#include "lossc/loss.h"

namespace {

using namespace lossc;
using namespace lossc::ir;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

struct Leaves {
  Graph g;
  NodeId logits = g.input("logits", Space::element);
  NodeId labels = g.input("labels", Space::rows, Kind::index);
  NodeId weights = g.input("weights", Space::vocab);
  NodeId mask = g.optional_input("mask", Space::rows, Kind::boolean, 1);
  NodeId row = g.input("row", Space::rows);
  NodeId segment = g.input("segment", Space::segments);
  NodeId tau = g.parameter("tau");

  Leaves() {
    g.add_map({"segment", Space::rows, Space::segments});
    g.add_map({"chosen", Space::pairs, Space::segments});
  }

  Space space(NodeId id) const { return g.node(id).space; }
  Kind kind(NodeId id) const { return g.node(id).kind; }
};

// The message of the error that `f` throws; fails unless it throws Error(invalid_argument).
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

bool mentions(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("equal expressions are one node") {
  Leaves l;
  Graph& g = l.g;
  CHECK(g.input("row", Space::rows) == l.row);
  CHECK(g.parameter("tau") == l.tau);
  CHECK(g.apply(Op::exp, l.row) == g.apply(Op::exp, l.row));
  CHECK(g.apply(Op::exp, l.row) != g.apply(Op::expm1, l.row));
  CHECK(g.along(Op::gather, l.segment, "segment") == g.along(Op::gather, l.segment, "segment"));
  CHECK(g.along(Op::gather, l.segment, "segment") != g.along(Op::gather, l.segment, "chosen"));
  CHECK(g.all_reduce(l.row, "dp") != g.all_reduce(l.row, "tp"));
  CHECK(g.space_size(Space::rows) != g.space_size(Space::vocab));
  const NodeId size = g.size();
  CHECK(g.apply(Op::exp, l.row) < size);
  CHECK(g.size() == size);
}

TEST_CASE("the order of operands does not matter where the result does not depend on it") {
  Leaves l;
  Graph& g = l.g;
  const NodeId a = l.row, b = l.tau;
  for (const Op op : {Op::add, Op::mul, Op::equal}) CHECK(g.apply(op, a, b) == g.apply(op, b, a));
  const NodeId c = g.apply(Op::less, a, b), d = g.apply(Op::is_finite, a);
  for (const Op op : {Op::logical_and, Op::logical_or}) CHECK(g.apply(op, c, d) == g.apply(op, d, c));
  for (const Op op : {Op::sub, Op::div, Op::minimum, Op::maximum, Op::less, Op::less_equal, Op::zero_mul}) {
    CHECK(g.apply(op, a, b) != g.apply(op, b, a));
  }
}

TEST_CASE("constants are numbered by their bits") {
  Graph g;
  CHECK(g.constant(1) == g.constant(1));
  CHECK(g.constant(0.0) != g.constant(-0.0));
  CHECK(g.constant(kNaN) == g.constant(std::copysign(kNaN, -1.0)));
  CHECK(g.constant(1) != g.boolean(true));
  CHECK(g.is_constant(g.constant(-0.0), 0));
  CHECK(g.is_constant(g.constant(kNaN), kNaN));
  CHECK_FALSE(g.is_constant(g.constant(2), 1));
  CHECK_FALSE(g.is_constant(g.parameter("one"), 1));
}

TEST_CASE("operations on constants fold") {
  Graph g;
  const auto c = [&](double v) { return g.constant(v); };
  CHECK(g.apply(Op::add, c(2), c(3)) == c(5));
  CHECK(g.apply(Op::div, c(1), c(0)) == c(kInfinity));
  CHECK(g.apply(Op::log, c(-1)) == c(kNaN));
  CHECK(g.apply(Op::clip, c(5), c(0), c(2)) == c(2));
  CHECK(g.apply(Op::less, c(1), c(2)) == g.boolean(true));
  CHECK(g.apply(Op::logical_not, g.boolean(true)) == g.boolean(false));
  CHECK(g.apply(Op::to_real, g.boolean(true)) == c(1));
  CHECK(g.apply(Op::is_finite, c(kNaN)) == g.boolean(false));
  CHECK(g.apply(Op::stop_gradient, c(4)) == c(4));
  CHECK(g.apply(Op::select, g.boolean(false), c(1), c(2)) == c(2));
}

TEST_CASE("identities fold, and only those that hold for every value") {
  Leaves l;
  Graph& g = l.g;
  const NodeId x = l.row, zero = g.constant(0), one = g.constant(1);
  const NodeId yes = g.boolean(true), no = g.boolean(false);
  CHECK(g.apply(Op::add, x, zero) == x);
  CHECK(g.apply(Op::add, zero, x) == x);
  CHECK(g.apply(Op::sub, x, zero) == x);
  CHECK(g.apply(Op::mul, x, one) == x);
  CHECK(g.apply(Op::mul, one, x) == x);
  CHECK(g.apply(Op::div, x, one) == x);
  CHECK(g.apply(Op::neg, g.apply(Op::neg, x)) == x);
  CHECK(g.apply(Op::zero_mul, zero, x) == zero);
  CHECK(g.apply(Op::zero_mul, one, x) == x);
  CHECK(g.apply(Op::select, yes, x, g.apply(Op::exp, x)) == x);
  CHECK(g.apply(Op::select, no, g.apply(Op::exp, x), x) == x);
  CHECK(g.apply(Op::select, l.mask, x, x) == x);
  CHECK(g.apply(Op::logical_and, l.mask, yes) == l.mask);
  CHECK(g.apply(Op::logical_and, yes, l.mask) == l.mask);
  CHECK(g.apply(Op::logical_or, no, l.mask) == l.mask);
  CHECK(g.apply(Op::logical_and, l.mask, l.mask) == l.mask);
  CHECK(g.apply(Op::logical_not, g.apply(Op::logical_not, l.mask)) == l.mask);
  CHECK(g.apply(Op::stop_gradient, l.labels) == l.labels);

  // Infinite and NaN values of x forbid these.
  CHECK_FALSE(g.is_constant(g.apply(Op::mul, x, zero), 0));
  CHECK_FALSE(g.is_constant(g.apply(Op::sub, x, x), 0));
  CHECK_FALSE(g.is_constant(g.apply(Op::div, x, x), 1));
  CHECK(g.apply(Op::sub, zero, x) != x);
  CHECK(g.apply(Op::stop_gradient, x) != x);
}

TEST_CASE("folding keeps the space of a value") {
  Leaves l;
  Graph& g = l.g;
  const NodeId zero = g.constant(0), yes = g.boolean(true);
  CHECK(l.space(g.apply(Op::select, l.mask, zero, zero)) == Space::rows);
  CHECK(l.space(g.apply(Op::select, yes, l.tau, l.row)) == Space::rows);
  CHECK(l.space(g.apply(Op::logical_or, l.mask, yes)) == Space::rows);
  CHECK(l.space(g.apply(Op::logical_and, l.mask, g.boolean(false))) == Space::rows);
}

TEST_CASE("point-wise results live in the broadcast space") {
  Leaves l;
  Graph& g = l.g;
  CHECK(l.space(g.apply(Op::mul, l.tau, l.segment)) == Space::segments);
  CHECK(l.space(g.apply(Op::sub, l.logits, l.row)) == Space::element);
  CHECK(l.space(g.apply(Op::mul, l.weights, l.logits)) == Space::element);
  CHECK(l.space(g.apply(Op::mul, l.weights, l.row)) == Space::element);
  CHECK(l.space(g.apply(Op::select, l.mask, l.tau, l.weights)) == Space::element);
  const std::string message = refusal([&] { g.apply(Op::add, l.row, l.segment); });
  CHECK(mentions(message, "'rows'"));
  CHECK(mentions(message, "'segments'"));
  refusal([&] { g.apply(Op::add, l.segment, l.logits); });
  refusal([&] { g.apply(Op::select, l.mask, l.segment, l.segment); });
  const NodeId named = g.input("group_mean", g.add_space("groups"));
  CHECK(l.space(g.apply(Op::mul, named, l.tau)) == g.add_space("groups"));
  refusal([&] { g.apply(Op::mul, named, l.row); });
}

TEST_CASE("vocabulary operations check and derive spaces") {
  Leaves l;
  Graph& g = l.g;
  for (const Op op : {Op::lse, Op::vocab_sum, Op::vocab_max, Op::vocab_argmax, Op::anchor, Op::log_sum}) {
    CHECK(l.space(g.apply(op, l.logits)) == Space::rows);
    for (const NodeId wrong : {l.row, l.tau, l.segment}) {
      CHECK(mentions(refusal([&] { g.apply(op, wrong); }), std::string(op_name(op))));
    }
  }
  CHECK(l.kind(g.apply(Op::vocab_argmax, l.logits)) == Kind::index);
  CHECK(l.space(g.apply(Op::vocab_sum, l.weights)) == Space::scalar);
  CHECK(l.space(g.apply(Op::softmax, l.logits)) == Space::element);
  CHECK(l.space(g.apply(Op::expect, l.logits, l.logits)) == Space::rows);
  CHECK(l.space(g.apply(Op::expect, l.logits, l.weights)) == Space::rows);
  refusal([&] { g.apply(Op::expect, l.row, l.logits); });
  refusal([&] { g.apply(Op::expect, l.logits, l.segment); });

  CHECK(l.space(g.apply(Op::pick, l.logits, l.labels)) == Space::rows);
  CHECK(l.space(g.apply(Op::pick, l.weights, l.labels)) == Space::rows);
  CHECK(g.apply(Op::pick, l.row, l.labels) == l.row);
  CHECK(g.apply(Op::pick, l.tau, l.labels) == l.tau);
  refusal([&] { g.apply(Op::pick, l.logits, l.row); });
  refusal([&] { g.apply(Op::pick, l.segment, l.labels); });
}

TEST_CASE("reductions check and derive spaces") {
  Leaves l;
  Graph& g = l.g;
  for (const Op op : {Op::reduce_sum, Op::reduce_min, Op::reduce_max}) {
    for (const NodeId x : {l.row, l.segment, l.weights}) CHECK(l.space(g.apply(op, x)) == Space::scalar);
    refusal([&] { g.apply(op, l.tau); });
    refusal([&] { g.apply(op, l.logits); });
    refusal([&] { g.apply(op, l.mask); });
  }
  CHECK(l.space(g.along(Op::segment_sum, l.row, "segment")) == Space::segments);
  CHECK(l.space(g.along(Op::gather, l.segment, "segment")) == Space::rows);
  CHECK(l.space(g.along(Op::gather, l.segment, "chosen")) == Space::pairs);
  CHECK(l.space(g.all_reduce(l.segment, "sp")) == Space::segments);
  CHECK(mentions(refusal([&] { g.along(Op::gather, l.row, "segment"); }), "'segments'"));
  refusal([&] { g.along(Op::segment_sum, l.segment, "segment"); });
  refusal([&] { g.along(Op::segment_max, l.mask, "segment"); });
  CHECK(mentions(refusal([&] { g.along(Op::gather, l.segment, "rejected"); }), "segment, chosen"));
  refusal([&] { g.add_map({"segment", Space::pairs, Space::segments}); });
}

TEST_CASE("kinds are checked") {
  Leaves l;
  Graph& g = l.g;
  CHECK(mentions(refusal([&] { g.apply(Op::add, l.mask, l.row); }), "indicator"));
  refusal([&] { g.apply(Op::exp, l.labels); });
  refusal([&] { g.apply(Op::select, l.row, l.row, l.row); });
  refusal([&] { g.apply(Op::select, l.mask, l.row, l.mask); });
  refusal([&] { g.apply(Op::logical_and, l.mask, l.row); });
  refusal([&] { g.apply(Op::logical_not, l.labels); });
  refusal([&] { g.apply(Op::less, l.labels, l.row); });
  refusal([&] { g.apply(Op::equal, l.labels, g.constant(0.5)); });
  refusal([&] { g.apply(Op::equal, l.mask, l.mask); });
  const NodeId hit = g.apply(Op::equal, g.apply(Op::vocab_argmax, l.logits), l.labels);
  CHECK(l.kind(hit) == Kind::boolean);
  CHECK(l.kind(g.apply(Op::less, l.labels, g.constant(0))) == Kind::boolean);
  CHECK(l.kind(g.apply(Op::less_equal, g.constant(0), l.labels)) == Kind::boolean);
  CHECK(l.kind(g.apply(Op::select, l.mask, l.labels, g.constant(-1))) == Kind::index);
  CHECK(l.kind(g.apply(Op::to_real, l.labels)) == Kind::real);
}

TEST_CASE("declarations are copied and dependence is found") {
  Leaves l;
  const Space groups = l.g.add_space("groups");
  l.g.add_map({"group", Space::rows, groups});
  Graph copy;
  copy.copy_declarations(l.g);
  CHECK(copy.size() == 0);
  CHECK(copy.space_name(groups) == "groups");
  CHECK(copy.map("group").to == groups);
  CHECK(copy.maps().size() == 3);
  CHECK(copy.intern("tau") == l.g.node(l.tau).symbol);

  const NodeId a = l.g.apply(Op::lse, l.logits), b = l.g.apply(Op::exp, l.row);
  const NodeId c = l.g.apply(Op::add, a, b);
  const std::vector<bool> dependent = depends_on(l.g, {l.logits});
  CHECK(dependent[static_cast<std::size_t>(l.logits)]);
  CHECK(dependent[static_cast<std::size_t>(a)]);
  CHECK_FALSE(dependent[static_cast<std::size_t>(b)]);
  CHECK(dependent[static_cast<std::size_t>(c)]);
}

TEST_CASE("expressions of two graphs do not meet") {
  Leaves one, two;
  const Expr a(&one.g, one.row), b(&two.g, two.row);
  refusal([&] { a + b; });
  refusal([&] { a + Expr(); });
  refusal([&] { lse(Expr()); });
  CHECK((1 - a).node() == one.g.apply(Op::sub, one.g.constant(1), one.row));
  CHECK((a > 2).node() == one.g.apply(Op::less, one.g.constant(2), one.row));
}

TEST_CASE("a dump lists what the roots reach") {
  Leaves l;
  Graph& g = l.g;
  const NodeId u = g.apply(Op::div, l.logits, l.tau);
  const NodeId lse_u = g.apply(Op::lse, u), picked = g.apply(Op::pick, u, l.labels);
  const NodeId nll = g.apply(Op::sub, lse_u, picked);
  g.apply(Op::exp, l.row);  // not reached
  const NodeId counted = g.apply(Op::select, l.mask, nll, g.constant(0));
  const NodeId sum = g.apply(Op::reduce_sum, counted);
  const NodeId mean = g.apply(Op::div, sum, g.space_size(Space::rows));
  const NodeId by_segment = g.all_reduce(g.along(Op::segment_sum, counted, "segment"), "sp");
  CHECK(dump(g, {{"loss", mean}, {"segments", by_segment}, {"tau", l.tau}}) ==
        "input logits: element\n"
        "input labels: rows index\n"
        "input mask: rows boolean, optional, default 1\n"
        "parameter $tau\n"
        "%7 element = div logits, $tau\n"
        "%8 rows = lse %7\n"
        "%9 rows = pick %7, labels\n"
        "%10 rows = sub %8, %9\n"
        "%13 rows = select mask, %10, 0\n"
        "%14 scalar = reduce_sum %13\n"
        "%16 scalar = div %14, size(rows)\n"
        "%17 segments = segment_sum %13 along segment\n"
        "%18 segments = all_reduce %17 over sp\n"
        "loss = %16\n"
        "segments = %18\n"
        "tau = $tau\n");
}

TEST_CASE("a formula has the parentheses that its meaning needs") {
  Leaves l;
  const Expr x(&l.g, l.row), tau(&l.g, l.tau), u(&l.g, l.logits), labels(&l.g, l.labels);
  const auto text = [&](Expr e) { return formula(l.g, e.node()); };
  // Named first: commutative operands stand in the order in which they were made.
  const Expr next = x + 1, not_below = !(x < tau), small = x <= 1;
  CHECK(text((x - tau) - 1) == "row - tau - 1");
  CHECK(text(x - (tau - 1)) == "row - (tau - 1)");
  CHECK(text(next * exp(x) / 2) == "(row + 1) * exp(row) / 2");
  CHECK(text(x / (tau * 2)) == "row / (tau * 2)");
  CHECK(text(-(x * tau)) == "-(row * tau)");
  CHECK(text(x - -2.0 * tau) == "row - tau * -2");
  CHECK(text(not_below && (small || equal(x, 3))) == "!(row < tau) && (row <= 1 || row == 3)");
  CHECK(text(pick(u, labels) - lse(u)) == "logits[labels] - lse(logits)");
  CHECK(text(pick(u / tau, labels)) == "(logits / tau)[labels]");
  CHECK(text(clip(min(x, tau), 0, 1)) == "clip(min(row, tau), 0, 1)");
  CHECK(formula(l.g, l.g.along(Op::gather, l.segment, "segment")) == "gather(segment, segment)");
  // Doubling 60 times writes a text of 2^60 terms, were it not bounded.
  Expr doubled = x;
  for (int i = 0; i < 60; ++i) doubled = doubled + doubled;
  CHECK(text(doubled).size() < 10'000);
}

TEST_CASE("shared subexpressions of a formula get names") {
  Leaves l;
  const Expr tau(&l.g, l.tau), u = Expr(&l.g, l.logits) / tau, labels(&l.g, l.labels);
  const Expr logprob = pick(u, labels) - lse(u);
  const Expr focal = -square(1 - exp(logprob)) * logprob;
  const std::vector<std::string> lines = formula(l.g, {{"loss", focal.node()}, {"logprob", logprob.node()}});
  CHECK(lines == std::vector<std::string>{
                     "t1 = (logits / tau)[labels] - lse(logits / tau)",
                     "t2 = 1 - exp(t1)",
                     "loss = t1 * -(t2 * t2)",
                     "logprob = t1",
                 });
}
