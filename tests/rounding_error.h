// What fp32 arithmetic may change of a graph's values: running error analysis beside the interpreter.
//
// Every node gets a bound on |computed - exact|, elementwise, from those of its operands:
// - point-wise: the largest change of the result as each operand moves by +- its bound (all sign choices), so
//   that a derivative needs no table, and a condition that may come out the other way lets both branches in;
//   plus the operation's own rounding (tests/tolerances.h has the constants);
// - softmax and what is a mean under it: an error e_k of the scores changes log p_k by e_k - sum_j p_j e_j,
//   at most e_k + sum_j p_j e_j; rounding of exp and of the sum is softmax_error of the exponent;
// - sums: the terms' bounds added, and sum_error(n) * sum |terms|.
// Bounds are first order in the unit except where a condition flips. Anchors differ between interpreter and
// backend by construction, but only by rounding of the scores while the sample that the backend takes covers
// the row: callers keep to vocabularies where it does.
#pragma once

#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "ir/evaluate.h"
#include "ir/evaluate_op.h"
#include "ir/graph.h"
#include "tests/tolerances.h"

namespace lossc::test {

class RoundingError {
 public:
  RoundingError(const ir::Graph& graph, const ir::EvaluationInputs& inputs, ir::Evaluator& values)
      : graph_(graph), inputs_(inputs), values_(values), known_(static_cast<std::size_t>(graph.size())) {}

  /// The bounds of a node's values, dense in its space.
  const std::vector<double>& of(ir::NodeId id) {
    std::vector<double>& error = known_[static_cast<std::size_t>(id)];
    if (error.empty()) error = compute(id);
    return error;
  }

  /// The position in a value of `space` of what element i of a value of `result` reads.
  std::size_t place(ir::Space space, ir::Space result, std::size_t i) const {
    if (space == result) return i;
    if (space == ir::Space::scalar) return 0;
    const auto vocab = static_cast<std::size_t>(inputs_.vocab);
    return space == ir::Space::rows ? i / vocab : i % vocab;
  }

 private:
  std::vector<double> compute(ir::NodeId id) {
    const ir::Node& n = graph_.node(id);
    const std::vector<double>& value = values_.value(id);
    std::vector<double> error(value.size(), 0.0);
    switch (n.op) {
      case ir::Op::constant:
      case ir::Op::parameter:
        for (std::size_t i = 0; i < value.size(); ++i) {
          const double stored = static_cast<float>(value[i]);
          error[i] = stored == value[i] ? 0 : std::abs(stored - value[i]);
        }
        return error;
      case ir::Op::input:
      case ir::Op::space_size:
      case ir::Op::vocab_argmax:
        return error;
      case ir::Op::pick:
        return pick(n);
      case ir::Op::gather:
      case ir::Op::segment_sum:
      case ir::Op::segment_min:
      case ir::Op::segment_max:
        return along(n, value.size());
      case ir::Op::reduce_sum:
      case ir::Op::reduce_min:
      case ir::Op::reduce_max:
      case ir::Op::vocab_sum:
      case ir::Op::vocab_max:
      case ir::Op::anchor:
        return reduce(n, value.size());
      case ir::Op::lse:
      case ir::Op::log_sum:
      case ir::Op::expect:
      case ir::Op::softmax:
        return over_softmax(n, value);
      default:
        for (std::size_t i = 0; i < value.size(); ++i) error[i] = pointwise(n, value[i], i);
        return error;
    }
  }

  double pointwise(const ir::Node& n, double value, std::size_t i) {
    std::array<double, 3> x{}, e{};
    for (std::size_t k = 0; k < 3 && n.in[k] >= 0; ++k) {
      const std::size_t at = place(graph_.node(n.in[k]).space, n.space, i);
      x[k] = values_.value(n.in[k])[at];
      e[k] = of(n.in[k])[at];
    }
    double error = 0;
    for (int corner = 0; corner < 1 << n.arity(); ++corner) {
      std::array<double, 3> moved = x;
      for (std::size_t k = 0; k < 3 && n.in[k] >= 0; ++k) {
        moved[k] += (corner >> k & 1) != 0 ? e[k] : -e[k];
        if (graph_.node(n.in[k]).kind == ir::Kind::boolean) moved[k] = moved[k] > 0.25 ? 1 : 0;
      }
      const double other = ir::evaluate_op(n.op, moved[0], moved[1], moved[2]);
      if (other == value || (std::isnan(other) && std::isnan(value))) continue;
      const double change = std::abs(other - value);
      error = std::isnan(change) ? infinity : std::max(error, change);
    }
    return std::isfinite(value) ? error + rounding(n.op, x[0], value) : error;
  }

  static double rounding(ir::Op op, double x, double value) {
    const double v = std::abs(value);
    switch (op) {
      case ir::Op::add:
      case ir::Op::sub:
      case ir::Op::mul:
      case ir::Op::zero_mul:
      case ir::Op::sqrt:
        return unit * v;
      case ir::Op::div:  // a reciprocal and a product
        return 2 * unit * v;
      case ir::Op::exp:
      case ir::Op::expm1:
        return exp_error(x) * v;
      case ir::Op::sigmoid:
        return (exp_error(std::min(std::abs(x), 88.0)) + 4 * unit) * v;
      case ir::Op::softplus:
      case ir::Op::log_sigmoid:
        return (8 + 2 * std::abs(x)) * unit * std::min(v, 1.0) + 4 * unit * v;
      case ir::Op::log1mexp:
        return (8 + 2 * std::abs(x)) * unit * v;
      case ir::Op::log:
      case ir::Op::log1p:
      case ir::Op::tanh:
        return 8 * unit * v;
      default:  // exact
        return 0;
    }
  }

  std::vector<double> pick(const ir::Node& n) {
    const std::vector<double>& index = values_.value(n.in[1]);
    const std::vector<double>& e = of(n.in[0]);
    const bool shared = graph_.node(n.in[0]).space == ir::Space::vocab;
    std::vector<double> error(index.size(), 0.0);
    for (std::size_t r = 0; r < index.size(); ++r) {
      if (index[r] < 0 || index[r] >= static_cast<double>(inputs_.vocab)) continue;
      const auto k = static_cast<std::size_t>(index[r]);
      error[r] = e[shared ? k : r * static_cast<std::size_t>(inputs_.vocab) + k];
    }
    return error;
  }

  std::vector<double> along(const ir::Node& n, std::size_t size) {
    const std::vector<std::int64_t>& map = inputs_.maps.at(graph_.symbol(n.symbol));
    const std::vector<double>& x = values_.value(n.in[0]);
    const std::vector<double>& e = of(n.in[0]);
    std::vector<double> error(size, 0.0), absolute(size, 0.0), terms(size, 0.0);
    for (std::size_t i = 0; i < map.size(); ++i) {
      if (map[i] < 0) continue;
      const auto j = static_cast<std::size_t>(map[i]);
      if (n.op == ir::Op::gather) {
        error[i] = e[j];
      } else if (n.op == ir::Op::segment_sum) {
        error[j] += e[i];
        absolute[j] += std::abs(x[i]);
        terms[j] += 1;
      } else {
        error[j] = std::max(error[j], e[i]);
      }
    }
    for (std::size_t j = 0; j < size; ++j) {
      if (terms[j] > 1) error[j] += sum_error(terms[j]) * absolute[j];
    }
    return error;
  }

  std::vector<double> reduce(const ir::Node& n, std::size_t size) {
    const std::vector<double>& x = values_.value(n.in[0]);
    const std::vector<double>& e = of(n.in[0]);
    const std::size_t length = size == 0 ? 0 : x.size() / size;
    const bool sum = n.op == ir::Op::vocab_sum || n.op == ir::Op::reduce_sum;
    std::vector<double> error(size, 0.0);
    for (std::size_t r = 0; r < size; ++r) {
      double absolute = 0;
      for (std::size_t k = r * length; k < (r + 1) * length; ++k) {
        error[r] = sum ? error[r] + e[k] : std::max(error[r], e[k]);
        absolute += std::abs(x[k]);
      }
      if (sum) error[r] += sum_error(static_cast<double>(length)) * absolute;
    }
    return error;
  }

  std::vector<double> over_softmax(const ir::Node& n, const std::vector<double>& value) {
    const auto vocab = static_cast<std::size_t>(inputs_.vocab);
    const std::vector<double>& x = values_.value(n.in[0]);
    const std::vector<double>& e = of(n.in[0]);
    std::vector<double> error(value.size(), 0.0), p(vocab), relative(vocab);
    for (std::size_t r = 0; r < x.size() / vocab; ++r) {
      const double* z = &x[r * vocab];
      double top = z[0], sum = 0, mean_error = 0, mean_rounding = 0;
      for (std::size_t k = 0; k < vocab; ++k) top = std::max(top, z[k]);
      for (std::size_t k = 0; k < vocab; ++k) sum += p[k] = std::exp(z[k] - top);
      for (std::size_t k = 0; k < vocab; ++k) {
        p[k] /= sum;
        relative[k] = softmax_error(z[k] - top);
        if (p[k] == 0) continue;
        mean_error += p[k] * e[r * vocab + k];
        mean_rounding += p[k] * relative[k];
      }
      const double sum_rounding =
          mean_rounding + sum_error(static_cast<double>(vocab)) + softmax_error(std::log(sum));
      if (n.op == ir::Op::lse || n.op == ir::Op::log_sum) {
        // log_sum is relative to an anchor that moves with the scores.
        const double both = n.op == ir::Op::log_sum ? of_largest(e, r * vocab, vocab) : 0;
        error[r] = mean_error + both + sum_rounding + 4 * unit * std::abs(value[r]);
        continue;
      }
      for (std::size_t k = 0; k < vocab; ++k) {
        if (p[k] == 0) continue;
        const double of_p = e[r * vocab + k] + mean_error + relative[k] + sum_rounding;
        if (n.op == ir::Op::softmax) {
          error[r * vocab + k] = p[k] * of_p;
          continue;
        }
        const std::size_t i = place(graph_.node(n.in[1]).space, ir::Space::element, r * vocab + k);
        const double a = values_.value(n.in[1])[i];
        error[r] += p[k] * (of(n.in[1])[i] + std::abs(a - value[r]) * of_p +
                            std::abs(a) * (sum_error(static_cast<double>(vocab)) + relative[k]));
      }
    }
    return error;
  }

  static double of_largest(const std::vector<double>& e, std::size_t from, std::size_t n) {
    double largest = 0;
    for (std::size_t i = from; i < from + n; ++i) largest = std::max(largest, e[i]);
    return largest;
  }

  static constexpr double infinity = std::numeric_limits<double>::infinity();
  const ir::Graph& graph_;
  const ir::EvaluationInputs& inputs_;
  ir::Evaluator& values_;
  std::vector<std::vector<double>> known_;
};

}  // namespace lossc::test
