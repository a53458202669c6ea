// The derived gradient against numerical derivatives, both in double precision through the interpreter.
//
// Promise: the derivative is that of the simplified graph, which kernels are made from; the differences are
// those of the values as the spec's expressions say them, so that every pass stands between the two. Values
// that the derivative takes as constants (stop_gradient) are held at the batch's own while a logit moves.
//
// Each element is moved by +-h and +-h/2. Where the two central differences, or the two one-sided slopes,
// tell of more than the tolerance between them, a kink (a clip, a maximum) lies within the step: h is made
// smaller until it lies outside, and an element where that does not help is not compared but counted. What is
// compared is Richardson's (4 D(h/2) - D(h)) / 3, so that the step's own error is far below the tolerance.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ir/evaluate.h"
#include "ir/loss_graph.h"
#include "lossc/loss.h"
#include "lossc/spec.h"

namespace lossc {

struct GradientCheckOptions {
  /// Of a larger batch, half of this number of elements are those with the largest gradient, the rest random.
  std::size_t max_elements = 4096;
  /// Allowed error relative to the largest gradient of the same loss; rounding of the differences comes on
  /// top.
  double tolerance = 1e-6;
  std::uint64_t seed = 1;
  std::function<void(std::size_t done, std::size_t all)> progress;
};

/// One loss: a child's weighted loss, or the total times the upstream gradient.
struct GradientComparison {
  std::string name;    ///< The child's; "total" for the sum.
  double value = 0;    ///< The reduced loss, unweighted.
  double largest = 0;  ///< Largest absolute derivative met.
  double error = 0;    ///< At the worst element: the one whose error is largest beside what it is allowed.
  double allowed = 0;  ///< There.
  std::int64_t row = -1, column = -1;
  double derived = 0, numeric = 0;  ///< There.
  std::size_t compared = 0;
  std::size_t kinks = 0;  ///< Elements that no step keeps away from a kink.
  bool passed = false;
  std::string note;  ///< Why it did not pass, or what to know of it.
};

struct GradientCheck {
  std::vector<GradientComparison> losses;  ///< Each child, then the total.
  std::size_t elements = 0;                ///< Elements that were moved, of rows x vocab.
  bool passed() const;
};

/// `inputs` holds all tensors, maps and parameters of the spec's graph. A loss that is not finite for this
/// batch does not pass. Throws Error(invalid_argument) where an input is missing.
GradientCheck check_gradient(const Spec& spec, const LossRegistry& registry,
                             const ir::EvaluationInputs& inputs, const GradientCheckOptions& options = {});

/// The same for a graph of values (from build_graph) and one that holds its gradient.
GradientCheck check_gradient(const ir::LossGraph& values, const ir::LossGraph& derived,
                             const ir::EvaluationInputs& inputs, const GradientCheckOptions& options = {});

}  // namespace lossc
