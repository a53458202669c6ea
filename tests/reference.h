// The right values, computed directly in double precision from the formulas, in plain loops. Shares no code
// with the compiler. Every value carries a bound on the error that fp32 arithmetic may have made
// (tests/tolerances.h).
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/batch.h"
#include "tests/loss_case.h"
#include "tests/tolerances.h"

namespace lossc::test {

struct Reference {
  std::map<std::string, Bounded> scalars;            // "loss", "loss.<child>", "metric.<name>"
  std::map<std::string, std::vector<Bounded>> rows;  // "output.<name>"
  std::vector<Bounded> gradient;  // rows * vocab, before it is stored; empty when not asked for
  /// Row -> some child with a weight above 0 counts it. The gradient of other rows is exactly 0.
  std::vector<bool> live;
  /// A clip, comparison or argmax is nearer to its tie than fp32 can tell: either side would be right.
  bool undecided = false;
};

/// Losses, metrics, outputs and the gradient by the analytic formulas.
Reference reference(const LossCase& spec, const Batch& batch, bool with_gradient = true);
/// Only the total loss.
double total_loss(const LossCase& spec, const Batch& batch);
/// grad_scale * d loss / d logits by central differences of total_loss. Slow: two evaluations an element.
std::vector<double> numeric_gradient(const LossCase& spec, Batch batch, double step = 1e-5);

/// True if the row counts for the child.
bool row_counts(const LossCase& spec, const Batch& batch, const Child& child, std::int64_t row);

}  // namespace lossc::test
