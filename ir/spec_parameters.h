// The run-time parameters of a spec, and the numbers that each may take.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lossc/loss.h"
#include "lossc/program.h"
#include "lossc/spec.h"

namespace lossc::ir {

/// The numbers of a range: those whose value in fp32, in which kernels hold them, is finite and in the range.
struct Bounds {
  double low, high;
  bool low_included;  ///< `high` never is.
};
Bounds bounds(Range range);

/// Is the value within the bounds of the range? NaN and infinities never are.
bool in_range(double value, Range range);

/// "a finite number", "a finite number > 0": for messages.
std::string_view range_text(Range range);

/// The numbers in both ranges; nullopt where no Range says that (a probability that must be positive).
std::optional<Range> intersect(Range a, Range b);

/// The range of one of a child's numbers: a parameter of its loss, "weight", "divisor" or a transform's key.
Range range_of(const LossDefinition& definition, std::string_view key);

/// Every run-time parameter that the spec names, once each: the logits block's, then each child's (weight,
/// scale, softcap, temperature, divisor, then the loss's own by name), then `params`. A parameter that
/// several places share has the range that suits all of them.
std::vector<ParameterInfo> parameters(const Spec& spec, const LossRegistry& registry);

}  // namespace lossc::ir
