// Rewrites a loss graph into the form that sweeps compute.
//
// Promise: the results are the same numbers up to rounding, and
// - lse(x) appears as the pair anchor(x), log_sum(x); sums of values of one softmax are written relative to
// its anchor
//   wherever the anchors cancel (losses, entropies, divergences, their adjoints), so a shift of all logits
//   costs no digits;
// - pick reads raw inputs only: pick(f(z), i) becomes f(pick(z, i)), outside of every sweep;
// - row constants stand outside of vocabulary sums;
// - the gradient is one list of terms with distinct bases, all children's coefficients added;
// - nothing that no result needs is left.
#pragma once

#include "ir/loss_graph.h"

namespace lossc::ir {

LossGraph simplify(const LossGraph& loss);

}  // namespace lossc::ir
