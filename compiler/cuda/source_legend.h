// What the names in generated CUDA source stand for, in the words of the spec and of `lossc plan`.
//
// The source itself names nothing that a user may name, so that specs which differ in names share their
// kernels; this text is for readers and is never compiled.
#pragma once

#include <string>

#include "compiler/layout.h"

namespace lossc::cuda {

/// Comment lines: the tensors, buffers, scalars, parameters and results by their numbers, and the values
/// v0, v1, ... by the names and formulas that `lossc plan` prints.
std::string source_legend(const Plan& plan, const Layout& layout, const Spec& spec);

}  // namespace lossc::cuda
