// Spec -> loss graph: transforms, what counts, the children's expressions, reductions, metrics and outputs.
//
// Promise: the graph holds exactly the named results of the spec, computed as DESIGN's "What counts" and
// "Metrics" say; rows that do not count contribute 0 by selection; rows with a bad label or segment id are
// NaN for every child. Children enter in an order that depends on their structure only, so that names and key
// order do not reach the kernels.
#pragma once

#include "ir/loss_graph.h"
#include "lossc/loss.h"

namespace lossc::ir {

LossGraph build_graph(const Spec& spec, const LossRegistry& registry);

}  // namespace lossc::ir
