// Reverse-mode derivative of every child's weighted loss with respect to the logits.
//
// Promise: fills child_gradients, and dense and sparse with their sum times grad_scale, as row coefficient x
// vocabulary basis plus sparse terms. An adjoint that is 0 stays 0 whatever it is multiplied with (0 * inf =
// 0), so what does not count is selected away in the derivative as in the value. Ties: max and min pass the
// whole adjoint to the first operand; clip is differentiable on its closed interval. lse and expect
// differentiate through softmax, never through a maximum.
#pragma once

#include "ir/loss_graph.h"

namespace lossc::ir {

void differentiate(LossGraph& loss);

}  // namespace lossc::ir
