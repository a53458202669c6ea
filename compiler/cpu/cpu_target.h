// The machine that code is generated for, and the measured choices that go with it.
#pragma once

#include <string>

#include "compiler/cpu/convert.h"
#include "compiler/cpu/vector_math.h"

namespace lossc::cpu {

struct CpuTarget {
  std::string name, features;  ///< LLVM's names
  unsigned width = 8;          ///< floats in a vector
  unsigned unroll =
      1;  ///< vectors in the body of a loop with accumulators: more would spill with 16 registers
  MathTarget math;
  ConvertTarget convert;
  bool prefetch_write = true;  ///< prefetchw ahead of plain gradient stores
  unsigned read_ahead = 8192;  ///< bytes
  unsigned write_ahead = 4096;
};

/// This machine, with the features that its system lets it use.
CpuTarget host_target();
/// The x86 processor that LLVM knows by `name`, with all its features, to look at code for a machine that is
/// not here. Throws Error(invalid_argument) for a name that LLVM does not know.
CpuTarget named_target(const std::string& name);

}  // namespace lossc::cpu
