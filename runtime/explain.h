// What one row's results are made of: for `lossc run --explain-row`.
#pragma once

#include <map>
#include <string>

#include "runtime/batch.h"
#include "runtime/executor.h"

namespace lossc {

/// Statistics, coefficients and gradient terms of a row per child, recomputed in double precision from the
/// row's inputs and the batch's cross-row values. After an in-place gradient the logits are gone; then it
/// throws.
std::string explain_row(const Program::Impl& program, const Batch& batch, const Executor& executor,
                        const std::map<std::string, double, std::less<>>& parameters, std::int64_t row);

}  // namespace lossc
