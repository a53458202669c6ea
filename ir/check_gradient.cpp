#include "ir/check_gradient.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "ir/build_graph.h"
#include "ir/differentiate.h"
#include "ir/simplify.h"
#include "lossc/error.h"

namespace lossc {
namespace {

using ir::DenseTerm;
using ir::EvaluationInputs;
using ir::Evaluator;
using ir::Graph;
using ir::LossGraph;
using ir::Node;
using ir::NodeId;
using ir::Op;
using ir::Space;
using ir::SparseTerm;

constexpr double epsilon = std::numeric_limits<double>::epsilon();
constexpr double infinity = std::numeric_limits<double>::infinity();

// The step starts here and is divided by 8 up to `refinements` times: from 1e-4 to 2.4e-8, where rounding of
// the loss still leaves 8 digits of the slope.
constexpr double first_step = 1e-4;
constexpr int refinements = 4;

// A share of elements at kinks above which a check says too little to pass.
constexpr double allowed_kinks = 0.1;

std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

/// The losses as values of a graph in which every stop_gradient is an input.
struct ValueGraph {
  Graph graph;
  std::vector<NodeId> losses;  // each child's, then the total
};

std::string frozen_name(NodeId id) {
  return fmt::format("stop_gradient %{}", id);
}

ValueGraph freeze(const LossGraph& loss, EvaluationInputs& inputs) {
  const Graph& source = loss.graph;
  ValueGraph result;
  result.graph.copy_declarations(source);
  Evaluator values(source, inputs);
  std::map<std::string, std::vector<double>> frozen;
  std::vector<NodeId> copies(at(source.size()), ir::no_node);
  for (NodeId id = 0; id < source.size(); ++id) {
    Node node = source.node(id);
    if (node.op == Op::stop_gradient) {
      copies[at(id)] = result.graph.input(frozen_name(id), node.space, node.kind);
      frozen[frozen_name(id)] = values.value(id);
      continue;
    }
    for (NodeId& in : node.in) {
      if (in != ir::no_node) in = copies[at(in)];
    }
    if (node.symbol >= 0) node.symbol = result.graph.intern(source.symbol(node.symbol));
    copies[at(id)] = result.graph.add(node);
  }
  inputs.tensors.merge(frozen);
  for (const ir::ChildValue& child : loss.children) result.losses.push_back(copies[at(child.loss)]);
  for (const ir::NamedNode& scalar : loss.scalars) {
    if (scalar.name == "loss") result.losses.push_back(copies[at(scalar.node)]);
  }
  return result;
}

/// Adds the terms up to one number an element.
std::vector<double> sum_terms(Evaluator& values, const LossGraph& loss, const EvaluationInputs& inputs,
                              const std::vector<DenseTerm>& dense, const std::vector<SparseTerm>& sparse) {
  const std::int64_t rows = inputs.rows, vocab = inputs.vocab;
  std::vector<double> gradient(at(rows * vocab), 0.0);
  const auto row_value = [&](NodeId id, std::int64_t row) {
    const std::vector<double>& value = values.value(id);
    return value[loss.graph.node(id).space == Space::scalar ? 0 : at(row)];
  };
  const std::vector<double>& live = values.value(loss.live);
  const bool one_live = loss.graph.node(loss.live).space == Space::scalar;
  for (std::int64_t row = 0; row < rows; ++row) {
    if (live[one_live ? 0 : at(row)] == 0) continue;
    double* out = &gradient[at(row * vocab)];
    for (const DenseTerm& term : dense) {
      const double coefficient = row_value(term.coefficient, row);
      if (term.guarded && coefficient == 0) continue;
      const std::vector<double>& basis = values.value(term.basis);
      const Space space = loss.graph.node(term.basis).space;
      for (std::int64_t k = 0; k < vocab; ++k) {
        const std::size_t place = space == Space::element ? at(row * vocab + k)
                                  : space == Space::vocab ? at(k)
                                  : space == Space::rows  ? at(row)
                                                          : 0;
        out[k] += coefficient * basis[place];
      }
    }
    for (const SparseTerm& term : sparse) {
      const double index = row_value(term.index, row);
      if (index >= 0 && index < static_cast<double>(vocab)) {
        out[static_cast<std::size_t>(index)] += row_value(term.coefficient, row);
      }
    }
    for (const SparseTerm& term : sparse) {
      if (term.value == ir::no_node) continue;
      const double index = row_value(term.index, row);
      if (index >= 0 && index < static_cast<double>(vocab)) {
        out[static_cast<std::size_t>(index)] = row_value(term.value, row);
      }
    }
  }
  return gradient;
}

/// The numerical side: all losses at once, as functions of one logit.
class Differences {
 public:
  Differences(const ValueGraph& values, EvaluationInputs& inputs)
      : values_(values), inputs_(inputs), logits_(inputs.tensors.at("logits")) {
    base_ = evaluate();
  }

  struct Result {
    double derivative = 0;
    double rounding = 0;  // what rounding of the loss can add to the derivative
    bool kink = true;
  };

  const std::vector<double>& base() const { return base_; }

  /// `scales`: how large a derivative of each loss is; it decides which disagreement is a kink.
  std::vector<Result> at_element(std::size_t element, const std::vector<double>& scales, double tolerance) {
    std::vector<Result> results(base_.size());
    const double z = logits_[element];
    double step = first_step + 1e-8 * std::abs(z);
    for (int i = 0; i <= refinements; ++i, step /= 8) {
      if (std::none_of(results.begin(), results.end(), [](const Result& r) { return r.kink; })) break;
      const Sides whole = move(element, step), half = move(element, step / 2);
      for (std::size_t k = 0; k < results.size(); ++k) {
        if (!results[k].kink) continue;
        const double d1 = whole.central(k), d2 = half.central(k);
        Result& r = results[k];
        r.derivative = (4 * d2 - d1) / 3;
        // A loss is a sum of terms that may cancel: their size, not the sum's, sets its rounding. 32 units in
        // the last place of 1 + |loss| cover it for the sizes of a check; the logit's own rounding moves the
        // step.
        r.rounding = 32 * epsilon * (1 + std::abs(base_[k])) / step;
        const double threshold = 0.1 * tolerance * std::max(scales[k], std::abs(r.derivative)) + r.rounding;
        // Smooth: the slopes' difference halves with the step; central differences agree. Not a number: a
        // kink.
        r.kink = !(std::abs(d1 - d2) <= threshold &&
                   std::abs(half.bend(k, base_) - whole.bend(k, base_) / 2) <= threshold);
      }
    }
    return results;
  }

 private:
  struct Sides {
    std::vector<double> up, down;
    double step_up, step_down;
    double central(std::size_t k) const { return (up[k] - down[k]) / (step_up + step_down); }
    double bend(std::size_t k, const std::vector<double>& base) const {
      return (up[k] - base[k]) / step_up - (base[k] - down[k]) / step_down;
    }
  };

  std::vector<double> evaluate() {
    Evaluator evaluator(values_.graph, inputs_);
    std::vector<double> result;
    for (const NodeId loss : values_.losses) result.push_back(evaluator.scalar(loss));
    return result;
  }

  Sides move(std::size_t element, double step) {
    const double z = logits_[element];
    const volatile double above = z + step, below = z - step;
    Sides sides;
    sides.step_up = above - z;
    sides.step_down = z - below;
    logits_[element] = above;
    sides.up = evaluate();
    logits_[element] = below;
    sides.down = evaluate();
    logits_[element] = z;
    return sides;
  }

  const ValueGraph& values_;
  EvaluationInputs& inputs_;
  std::vector<double>& logits_;
  std::vector<double> base_;
};

// NaN counts as the largest: it is what a check must not miss.
double magnitude(double g) {
  return std::isnan(g) ? infinity : std::abs(g);
}

std::vector<std::size_t> choose_elements(const std::vector<double>& logits,
                                         const std::vector<double>& gradient,
                                         const GradientCheckOptions& options) {
  std::vector<std::size_t> finite;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (std::isfinite(logits[i])) finite.push_back(i);
  }
  if (finite.size() <= options.max_elements) return finite;
  std::mt19937_64 random(options.seed);
  std::shuffle(finite.begin(), finite.end(), random);
  const auto largest = finite.begin() + static_cast<std::ptrdiff_t>(options.max_elements / 2);
  std::partial_sort(finite.begin(), largest, finite.end(), [&](std::size_t a, std::size_t b) {
    return magnitude(gradient[a]) > magnitude(gradient[b]);
  });
  std::shuffle(largest, finite.end(), random);
  finite.resize(options.max_elements);
  std::sort(finite.begin(), finite.end());
  return finite;
}

double largest_of(const std::vector<double>& gradient) {
  double largest = 0;
  for (const double g : gradient) {
    if (std::isfinite(g)) largest = std::max(largest, std::abs(g));
  }
  return largest;
}

void judge(GradientComparison& loss) {
  if (!std::isfinite(loss.value)) {
    loss.note = fmt::format("its value is {} for this batch: there is no derivative to compare", loss.value);
  } else if (!(loss.error <= loss.allowed)) {
    loss.note = "the derivative is wrong, or the loss is not differentiable here";
  } else if (static_cast<double>(loss.kinks) >
             allowed_kinks * static_cast<double>(loss.kinks + loss.compared)) {
    loss.note = "too many elements lie at a kink: the rest says too little";
  } else {
    loss.passed = true;
    if (loss.compared > 0 && loss.largest == 0) loss.note = "the gradient is 0 everywhere";
  }
}

}  // namespace

bool GradientCheck::passed() const {
  return std::all_of(losses.begin(), losses.end(),
                     [](const GradientComparison& loss) { return loss.passed; });
}

GradientCheck check_gradient(const Spec& spec, const LossRegistry& registry, const EvaluationInputs& inputs,
                             const GradientCheckOptions& options) {
  const LossGraph values = ir::build_graph(spec, registry);
  LossGraph derived = values;
  ir::differentiate(derived);
  return check_gradient(values, ir::simplify(derived), inputs, options);
}

GradientCheck check_gradient(const LossGraph& loss, const LossGraph& derived, const EvaluationInputs& inputs,
                             const GradientCheckOptions& options) {
  EvaluationInputs moved = inputs;
  const ValueGraph values = freeze(loss, moved);
  Evaluator evaluator(derived.graph, inputs);
  std::vector<std::vector<double>> gradients;
  std::vector<double> weights;
  GradientCheck check;
  for (const ir::ChildGradient& child : derived.child_gradients) {
    gradients.push_back(sum_terms(evaluator, derived, inputs, child.dense, child.sparse));
  }
  for (const ir::ChildValue& child : derived.children) {
    weights.push_back(evaluator.scalar(child.weight));
    check.losses.emplace_back().name = child.name;
  }
  gradients.push_back(sum_terms(evaluator, derived, inputs, derived.dense, derived.sparse));
  check.losses.emplace_back().name = "total";
  if (gradients.size() != values.losses.size() || gradients.size() != check.losses.size()) {
    throw Error(ErrorCode::internal, "the gradient has another number of children than the loss");
  }
  const std::vector<double>& grad_scale = evaluator.value(derived.grad_scale);

  Differences differences(values, moved);
  std::vector<double> scales;
  for (std::size_t k = 0; k < gradients.size(); ++k) {
    check.losses[k].value = differences.base()[k];
    check.losses[k].largest = largest_of(gradients[k]);
    // What a difference of the unweighted loss is to be compared with.
    const double weight = k < weights.size() ? weights[k] : 1.0;
    scales.push_back(weight > 0 ? check.losses[k].largest / weight : 0.0);
  }

  const std::vector<std::size_t> elements =
      choose_elements(inputs.tensors.at("logits"), gradients.back(), options);
  std::vector<double> worst(gradients.size(), 0.0);
  for (std::size_t i = 0; i < elements.size(); ++i) {
    if (options.progress) options.progress(i, elements.size());
    const std::size_t element = elements[i];
    const std::size_t row = element / at(inputs.vocab);
    const auto results = differences.at_element(element, scales, options.tolerance);
    for (std::size_t k = 0; k < results.size(); ++k) {
      GradientComparison& comparison = check.losses[k];
      const double factor = k < weights.size() ? weights[k] : grad_scale[grad_scale.size() == 1 ? 0 : row];
      if (factor != 0 && results[k].kink) {
        ++comparison.kinks;
        continue;
      }
      const double numeric = factor == 0 ? 0.0 : factor * results[k].derivative;
      const double derivative = gradients[k][element];
      const double error = std::abs(numeric - derivative);
      comparison.largest = std::max(comparison.largest, std::abs(numeric));
      const double allowed = options.tolerance * comparison.largest + std::abs(factor) * results[k].rounding;
      ++comparison.compared;
      // A NaN is worse than anything, and stays.
      const double ratio = allowed > 0 ? error / allowed : error > 0 ? infinity : error;
      if (comparison.row >= 0 && !(ratio > worst[k]) && !std::isnan(ratio)) continue;
      worst[k] = ratio;
      comparison.error = error;
      comparison.allowed = allowed;
      comparison.row = static_cast<std::int64_t>(row);
      comparison.column = static_cast<std::int64_t>(element % at(inputs.vocab));
      comparison.derived = derivative;
      comparison.numeric = numeric;
    }
  }
  check.elements = elements.size();
  for (GradientComparison& comparison : check.losses) judge(comparison);
  return check;
}

}  // namespace lossc
