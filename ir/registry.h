// What a spec may say about a child of a loss type, derived from the type's definition.
#pragma once

#include <string>
#include <vector>

#include "lossc/loss.h"

namespace lossc::ir {

/// Keys that every child may have, whatever its type; no definition may use one for its own.
const std::vector<std::string>& common_child_keys();

/// The reductions that a spec may name, the default first.
const std::vector<std::string>& allowed_reductions(const LossDefinition& definition);

/// The tensors that a child may rename: the definition's, and those that say what counts and which rows
/// belong together.
std::vector<std::string> child_inputs(const LossDefinition& definition);

/// May a child opt out of this tensor with null? True for `labels` and `mask` unless the loss itself needs
/// them, and for inputs the definition calls optional.
bool may_opt_out(const LossDefinition& definition, std::string_view input);

/// The figures `<child>.<metric>` of a child, without suffix.
std::vector<std::string> child_metrics(const LossDefinition& definition);

/// The figures of the whole batch, which every child has too.
const std::vector<std::string>& batch_metrics();

/// Suffixes that a metric of this name takes: `.sum` and `.count` for means, none for sums, minima and
/// maxima.
bool metric_takes_suffix(std::string_view metric);

}  // namespace lossc::ir
