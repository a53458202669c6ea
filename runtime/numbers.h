// Single numbers as tensors store them, to and from double precision.
#pragma once

#include "lossc/tensor.h"

namespace lossc {

/// The number at an address of any alignment. Every dtype's numbers are doubles, but i64 beyond 2^53, which
/// round; booleans are 0 or 1.
double read_number(const char* address, DType dtype);

/// Stores a number in a floating dtype: one rounding, to nearest, ties to even. What is too large becomes an
/// infinity; subnormals are kept.
void write_number(char* address, DType dtype, double value);

}  // namespace lossc
