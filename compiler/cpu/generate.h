// Plan -> LLVM module.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <set>
#include <string>
#include <vector>

#include "compiler/cpu/codegen.h"
#include "compiler/cpu/region_codegen.h"

namespace lossc::cpu {

struct ModuleSymbols {
  std::vector<RegionSymbols> regions;
  std::vector<std::string> prologue, epilogue;
  std::vector<std::vector<std::string>> seams;

  /// The functions whose loops run over a row's elements.
  std::set<std::string> sweeps() const;

  nlohmann::json to_json() const;
  /// Throws Error(compile_failed) for what to_json() did not make.
  static ModuleSymbols from_json(const nlohmann::json& json);
};

ModuleSymbols generate_module(Codegen& codegen);

}  // namespace lossc::cpu
