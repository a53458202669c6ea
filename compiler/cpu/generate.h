// Plan -> LLVM module.
#pragma once

#include <string>
#include <vector>

#include "compiler/cpu/codegen.h"
#include "compiler/cpu/region_codegen.h"

namespace lossc::cpu {

struct ModuleSymbols {
  std::vector<RegionSymbols> regions;
  std::vector<std::string> prologue, epilogue;
  std::vector<std::vector<std::string>> seams;
};

ModuleSymbols generate_module(Codegen& codegen);

}  // namespace lossc::cpu
