// A region of the plan as functions over one row: begin, the sweeps and finishes of its phases, emit.
//
// Promise: the value of a row depends on nothing but the row's inputs: not on its neighbours, the number of
// threads, or whether its statistics were accumulated while another row's gradient was written.
#pragma once

#include "compiler/cpu/codegen.h"

namespace lossc::cpu {

/// Names of a region's functions in the module; empty where the region has none.
struct RegionSymbols {
  std::string begin, emit, sparse, fused, emit_stream, fused_stream;
  struct PhaseSymbols {
    std::string sample, exact, sweep, finish;
  };
  std::vector<PhaseSymbols> phases;
  std::int64_t frame_bytes = 0;
  std::int64_t kept_floats = 0;
};

RegionSymbols generate_region(Codegen& codegen, int region);

}  // namespace lossc::cpu
