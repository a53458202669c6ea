#include "compiler/cpu/region_codegen.h"

#include <fmt/format.h>

#include "compiler/cpu/region_frame.h"
#include "compiler/cpu/region_rows.h"
#include "compiler/cpu/region_shape.h"
#include "compiler/cpu/region_sweeps.h"

namespace lossc::cpu {

RegionSymbols generate_region(Codegen& codegen, int index) {
  const Region& region = codegen.plan.regions[static_cast<std::size_t>(index)];
  const std::string prefix = fmt::format("region{}", index);
  const RegionShape shape(codegen.plan, region, codegen.spec.vocab);
  RegionFrame frame(codegen, shape);
  RegionRows rows(codegen, shape, frame, prefix);
  RegionSweeps sweeps(codegen, shape, frame, prefix);

  RegionSymbols symbols;
  symbols.begin = rows.begin();
  for (std::size_t k = 0; k < region.phases.size(); ++k) {
    RegionSymbols::PhaseSymbols phase;
    if (!shape.anchors_of(k).empty()) {
      phase.sample = sweeps.anchor(k, false);
      phase.exact = sweeps.anchor(k, true);
    }
    phase.sweep = sweeps.sweep(k);
    phase.finish = rows.finish(k);
    symbols.phases.push_back(phase);
  }
  if (region.emit) {
    symbols.emit = sweeps.emit(false);
    if (!codegen.plan.loss.sparse.empty()) symbols.sparse = rows.sparse();
    if (region.phases.size() == 1) symbols.fused = sweeps.fused(false);
    if (sweeps.streams()) {
      symbols.emit_stream = sweeps.emit(true);
      if (region.phases.size() == 1) symbols.fused_stream = sweeps.fused(true);
    }
  }
  symbols.frame_bytes = frame.bytes();
  symbols.kept_floats = shape.kept_floats();
  return symbols;
}

}  // namespace lossc::cpu
