// Random values for everything that a spec's graph reads: a batch to check a gradient with.
#pragma once

#include <cstdint>

#include "ir/evaluate.h"
#include "lossc/loss.h"
#include "lossc/spec.h"

namespace lossc::ir {

struct RandomInputOptions {
  std::int64_t rows = 12;
  std::uint64_t seed = 1;
  double spread = 2;  ///< Standard deviation of logits.
};

/// A batch of rows with the spec's vocabulary, in segments of about four rows, each two of which make a pair.
/// Some rows are ignored, masked or in no segment. Log-probabilities of another policy lie near those of the
/// logits, in some segments much nearer than in others, so that ratios lie on both sides of a clip;
/// advantages have both signs. Optional inputs other than masks are left out. Parameters have the spec's
/// values. The same arguments give the same batch on every machine, up to the last bits of its logarithms.
EvaluationInputs random_inputs(const Spec& spec, const LossRegistry& registry,
                               const RandomInputOptions& options = {});

}  // namespace lossc::ir
