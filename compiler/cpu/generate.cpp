#include "compiler/cpu/generate.h"

#include <fmt/format.h>

#include "compiler/cpu/step_codegen.h"

namespace lossc::cpu {

ModuleSymbols generate_module(Codegen& codegen) {
  ModuleSymbols symbols;
  auto steps = [&](const std::vector<Step>& list, const std::string& name) {
    std::vector<std::string> names;
    for (const Step& step : list) {
      names.push_back(fmt::format("{}_step{}", name, names.size()));
      generate_step(codegen, step, names.back());
    }
    return names;
  };
  symbols.prologue = steps(codegen.plan.prologue, "prologue");
  for (std::size_t r = 0; r < codegen.plan.regions.size(); ++r) {
    symbols.regions.push_back(generate_region(codegen, static_cast<int>(r)));
  }
  for (std::size_t s = 0; s < codegen.plan.seams.size(); ++s) {
    symbols.seams.push_back(steps(codegen.plan.seams[s], fmt::format("seam{}", s)));
  }
  symbols.epilogue = steps(codegen.plan.epilogue, "epilogue");
  return symbols;
}

}  // namespace lossc::cpu
