// A region of the plan as a CUDA struct: what templates/row.cuh asks of R.
#pragma once

#include <string>

#include "compiler/cuda/context.h"

namespace lossc::cuda {

/// The shape of a region that the choice of kernels depends on.
struct RegionShape {
  int phases = 0;
  bool emits = false;
  int width = 8;         ///< elements that a thread handles at once
  int vector_bytes = 0;  ///< of that many elements of all of a row's inputs
};

struct RegionSource {
  std::string text;  ///< "struct Region0 { ... };"
  RegionShape shape;
};

RegionSource region_source(const SourceContext& context, int region);

}  // namespace lossc::cuda
