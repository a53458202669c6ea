// Random well-typed losses, written with the public builder alone.
//
// Every value carries a bound on its magnitude, so that an operation is only applied where it stays finite
// and moderate: what the losses test is the passes, not overflow. Comparisons and the second operands of
// minima and maxima are shifted by an odd amount: an exact tie, where a one-sided derivative is a matter of
// taste, does not occur by construction.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <utility>

#include "lossc/loss.h"

namespace lossc::test {

class RandomLoss {
 public:
  RandomLoss(LossContext& context, std::uint64_t seed) : c_(context), random_(seed) {}

  Expr value(LossDomain domain, int depth) {
    const Value v = domain == LossDomain::rows       ? rows(depth)
                    : domain == LossDomain::segments ? segments(depth)
                                                     : pairs(depth);
    // The adjoint of what does not depend on the logits is empty; one term always does.
    const Value own = domain == LossDomain::rows ? Value{c_.logprob(), 30} : mean(Value{c_.logprob(), 30});
    const Expr base = domain == LossDomain::pairs ? c_.chosen(own.e) - c_.rejected(own.e) : own.e;
    return (domain == LossDomain::pairs ? bounded(v, 20).e : v.e) - 0.25 * base;
  }

 private:
  struct Value {
    Expr e;
    double bound = 0;
  };

  int below(int n) { return static_cast<int>(random_() % static_cast<std::uint64_t>(n)); }
  double uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }
  /// Has few digits, so that fp32 holds it.
  double number(double low, double high) { return low + (high - low) * (1 + below(254)) / 256.0; }
  double odd() { return number(-1, 1) + 0.0137; }

  /// The value with a bound of at most `most`, scaled down where needed.
  Value bounded(Value v, double most) {
    if (v.bound <= most) return v;
    return {v.e * (most / v.bound), most};
  }
  Value mean(Value rows) { return {c_.segment_mean(rows.e), rows.bound}; }

  Value element(int depth) {
    if (depth <= 0 || below(6) == 0) return element_leaf();
    if (below(5) == 0) {
      const Value a = bounded(element(depth - 1), 8), r = bounded(rows(depth - 1), 8);
      return below(2) == 0 ? Value{a.e * r.e, 64} : Value{a.e - r.e, 16};
    }
    if (below(5) == 0) {
      const Value a = bounded(element(depth - 1), 8), b = bounded(element(depth - 1), 8);
      return {logaddexp(a.e, b.e + odd()), 10};
    }
    return pointwise([this](int d) { return element(d); }, depth);
  }

  Value element_leaf() {
    switch (below(6)) {
      case 0:
        return {c_.teacher(), 10};
      case 1:
        return {softmax(c_.logits()), 1};
      case 2:
        return {softmax(c_.teacher()), 1};
      case 3:
        return {c_.logits() - c_.lse(), 30};
      case 4:
        return {c_.teacher() - lse(c_.teacher()), 30};
      default:
        return {c_.logits(), 10};
    }
  }

  Value rows(int depth) {
    if (depth <= 0) return row_leaf();
    switch (below(14)) {
      case 0:
        return row_leaf();
      case 1:
      case 2: {
        const Value x = scores(depth - 1), a = element(depth - 1);
        return {expect(x.e, a.e), a.bound};
      }
      case 3:
        return {entropy(scores(depth - 1).e), 3};
      case 4: {
        const Value a = element(depth - 1);
        return {vocab_mean(a.e, c_.vocab()), a.bound};
      }
      case 5: {
        const Value a = element(depth - 1);
        return {vocab_sum(softmax(c_.logits()) * a.e), a.bound};
      }
      case 6: {
        const Value a = element(depth - 1);
        return {vocab_max(a.e), a.bound};
      }
      case 7: {
        const Value a = element(depth - 1);
        return {pick(a.e, c_.labels()), a.bound};
      }
      case 8: {
        const Value x = scores(depth - 1);
        return {lse(x.e), x.bound + 3};
      }
      case 9: {
        const Value s = segments(depth - 1);
        return {c_.to_rows(s.e), s.bound};
      }
      default:
        return pointwise([this](int d) { return rows(d); }, depth);
    }
  }

  /// Element values that a softmax is taken of.
  Value scores(int depth) {
    switch (below(4)) {
      case 0:
        return {c_.logits(), 10};
      case 1:
        return {c_.teacher(), 10};
      default:
        return bounded(element(depth), 10);
    }
  }

  Value row_leaf() {
    switch (below(8)) {
      case 0:
        return {c_.input("old_logprobs"), 30};
      case 1:
        return {c_.advantages(), 5};
      case 2:
        return {c_.input("side"), 5};
      case 3:
        return {c_.lse(), 12};
      case 4:
        return {indicator(equal(argmax(c_.logits()), c_.labels())), 1};
      default:
        return {c_.logprob(), 30};
    }
  }

  Value segments(int depth) {
    if (depth > 0 && below(2) == 0) return pointwise([this](int d) { return segments(d); }, depth);
    if (below(8) == 0) return {c_.segment_count(), 6};
    const Value r = rows(depth - 1);
    if (below(2) == 0) return mean(r);
    return {c_.segment_sum(bounded(r, 8).e), 48};
  }

  Value pairs(int depth) {
    if (depth > 1 && below(2) == 0) return pointwise([this](int d) { return pairs(d); }, depth);
    const Value s = segments(depth - 1);
    return {below(2) == 0 ? c_.chosen(s.e) : c_.rejected(s.e), s.bound};
  }

  template <class Operand>
  Value pointwise(const Operand& operand, int depth) {
    const Value a = operand(depth - 1);
    switch (below(22)) {
      case 0: {
        const Value b = operand(depth - 1);
        return {a.e + b.e, a.bound + b.bound};
      }
      case 1: {
        const Value b = operand(depth - 1);
        return {a.e - b.e, a.bound + b.bound};
      }
      case 2: {
        const Value x = bounded(a, 6), b = bounded(operand(depth - 1), 6);
        return {x.e * b.e, x.bound * b.bound};
      }
      case 3: {
        const Value b = bounded(operand(depth - 1), 6);
        return {a.e / (0.5 + square(b.e)), 2 * a.bound};
      }
      case 4:
        return {exp(bounded(a, 1.5).e), 4.5};
      case 5:
        return {exp(clip(a.e, -2 + odd(), 0.5 * odd())), 2};
      case 6:
        return {log(square(bounded(a, 6).e) + 0.2), 4};
      case 7:
        return {log(softplus(a.e) + 0.1), 5};
      case 8:
        return {tanh(a.e), 1};
      case 9:
        return {sigmoid(a.e), 1};
      case 10:
        return {log_sigmoid(a.e), a.bound + 1};
      case 11:
        return {softplus(a.e), a.bound + 1};
      case 12: {
        const Value b = operand(depth - 1), x = operand(depth - 2);
        return {select(x.e < odd(), a.e, b.e), std::max(a.bound, b.bound)};
      }
      case 13: {
        const Value b = operand(depth - 1);
        return {min(a.e, b.e + odd()), std::max(a.bound, b.bound + 1.1)};
      }
      case 14: {
        const Value b = operand(depth - 1);
        return {max(a.e, b.e + odd()), std::max(a.bound, b.bound + 1.1)};
      }
      case 15: {
        const double low = odd();
        return {clip(a.e, low, low + number(0.5, 3)), 5};
      }
      case 16: {
        const Value x = bounded(a, 6);
        return {square(x.e), x.bound * x.bound};
      }
      case 17:
        return {stop_gradient(a.e), a.bound};
      case 18:
        return {abs(a.e + odd()), a.bound + 1.1};
      case 19:
        return {sqrt(square(bounded(a, 6).e) + 0.3), 7};
      case 20:
        return {below(2) == 0 ? expm1(bounded(a, 1.5).e) : log1p(square(bounded(a, 6).e)), 4.5};
      default: {
        const Value b = bounded(operand(depth - 1), 6);
        if (below(2) == 0) return {log1mexp(-softplus(b.e) - 0.05), 4};
        return {zero_mul(bounded(a, 6).e, b.e), 36};
      }
    }
  }

  LossContext& c_;
  std::mt19937_64 random_;
};

/// A loss type of the given domain whose expression `seed` fixes.
inline LossDefinition random_loss(std::string name, LossDomain domain, std::uint64_t seed, int depth) {
  LossDefinition definition;
  definition.name = std::move(name);
  definition.summary = definition.formula = "random";
  definition.domain = domain;
  definition.inputs = {{.name = "labels"},
                       {.name = "old_logprobs"},
                       {.name = "advantages"},
                       {.name = "side"},
                       {.name = "teacher_logits", .space = "element"}};
  definition.value = [=](LossContext& c) { return RandomLoss(c, seed).value(domain, depth); };
  return definition;
}

}  // namespace lossc::test
