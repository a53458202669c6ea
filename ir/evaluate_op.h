// The value of one point-wise operation on doubles: shared by constant folding and the interpreter, so that
// both agree.
#pragma once

#include "ir/graph.h"

namespace lossc::ir {

/// The result of point-wise `op`; operands that it does not have are ignored. Conditions are 0 or 1.
/// Throws Error(internal) where `op` is not point-wise.
double evaluate_op(Op op, double a, double b = 0, double c = 0);

}  // namespace lossc::ir
