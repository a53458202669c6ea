// Element expressions as sums of row coefficient x vocabulary basis.
//
// Promise: linear_form(e) gives terms with distinct bases whose sum is e. Bases are element nodes that hold
// no row factor and no sum any more, or the constant 1; coefficients live in rows or scalar space.
#pragma once

#include <vector>

#include "ir/loss_graph.h"

namespace lossc::ir {

/// `e` may be no_node (the empty sum) or live in a smaller space (a broadcast: basis 1).
std::vector<DenseTerm> linear_form(Graph& graph, NodeId e);

/// a * b where an a of 0 gives 0; plain multiplication where `a` cannot be 0 or b cannot be infinite.
NodeId scaled(Graph& graph, NodeId a, NodeId b);

}  // namespace lossc::ir
