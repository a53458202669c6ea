// The small kernels between regions: which values they compute, and in which order.
//
// Promise: a value comes behind all that it is computed from; values of one kind over one space share a step
// wherever that allows; the same graph gives the same steps.
#pragma once

#include <functional>
#include <vector>

#include "compiler/plan.h"

namespace lossc {

/// What a value is computed from without going through an element: rows, segments, pairs, scalars.
using OperandsOf = std::function<const std::vector<ir::NodeId>&(ir::NodeId)>;

/// The steps of one stage (prologue, a seam, epilogue) for the values that it has to materialise. What they
/// need of earlier stages is there.
std::vector<Step> schedule_steps(const ir::Graph& graph, const std::vector<ir::NodeId>& values,
                                 const OperandsOf& operands);

}  // namespace lossc
