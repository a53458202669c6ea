// A plan as text: what `lossc plan` prints, and what its JSON carries.
//
// Promise: the same plan gives the same text, byte for byte; every value that a region or step computes has
// one short name, and its line says how it is computed.
#pragma once

#include <string>

#include "compiler/plan.h"

namespace lossc {

/// A summary (children, passes against the bound, bytes a row), then prologue, regions, seams, epilogue.
std::string plan_text(const Plan& plan, const Spec& spec);

/// The same as JSON: `spec`, `prologue`, `regions`, `seams`, `epilogue`, `passes`, `bound_passes`,
/// `extra_reads`, `bytes_per_row`, `bound_bytes_per_row`, `row_bytes`.
std::string plan_json(const Plan& plan, const Spec& spec);

/// The derivative of each child and of the total with respect to the logits, as formulas.
std::string plan_math(const Plan& plan, const Spec& spec);

/// The simplified graph: ir::dump of the plan's results.
std::string graph_text(const Plan& plan);

}  // namespace lossc
