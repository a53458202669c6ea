// Operations of the graph as CUDA source.
#pragma once

#include <array>
#include <string>

#include "ir/graph.h"

namespace lossc::cuda {

/// A number as a literal that reads back as the same float.
std::string literal(double value);
/// A point-wise operation on operands that are names or literals. `kinds` are those of the operands.
std::string operation(ir::Op op, const std::array<std::string, 3>& in);
/// float, int or bool
std::string_view type_of(ir::Kind kind);

}  // namespace lossc::cuda
