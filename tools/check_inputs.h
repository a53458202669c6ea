// A batch from a file as the interpreter reads it.
#pragma once

#include <cstdint>

#include "ir/evaluate.h"
#include "lossc/loss.h"
#include "lossc/spec.h"
#include "runtime/safetensors.h"

namespace lossc::cli {

/// The first `max_rows` rows of the batch in double precision; segments keep their number. Parameters are the
/// spec's. Throws Error(invalid_argument) that names the tensor which is missing or does not fit.
ir::EvaluationInputs inputs_from_file(const Spec& spec, const LossRegistry& registry,
                                      const SafetensorsFile& batch, std::int64_t max_rows);

}  // namespace lossc::cli
