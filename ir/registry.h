// What a spec may say about a child of a loss type, derived from the type's definition.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lossc/loss.h"

namespace lossc::ir {

/// Keys that every child may have, whatever its type; no definition may use one for its own.
const std::vector<std::string>& common_child_keys();

/// The reductions that a spec may name, the default first.
const std::vector<std::string>& allowed_reductions(const LossDefinition& definition);

/// Does the reduction divide by the run-time parameter CHILD.divisor?
bool needs_divisor(std::string_view reduction);

/// The tensors that a child may rename: the definition's, and those that say what counts. Segments and pairs
/// are the batch's: it has one set of them.
std::vector<std::string> child_inputs(const LossDefinition& definition);

/// May a child opt out of this tensor with null? True for `labels` and `mask` unless the loss itself needs
/// them, and for inputs the definition calls optional.
bool may_opt_out(const LossDefinition& definition, std::string_view input);

/// The figures `<child>.<metric>` of a child, without suffix.
std::vector<std::string> child_metrics(const LossDefinition& definition);

/// The figures of the whole batch, which every child has too.
const std::vector<std::string>& batch_metrics();

/// A mean takes the suffixes `.sum` and `.count`, and a weighting by document unless it is one of pairs.
struct MetricForm {
  bool mean = true, of_pairs = false;
};
MetricForm metric_form(const LossDefinition& definition, std::string_view metric);

}  // namespace lossc::ir
