// The names of a module's functions, kept beside its object files.
#include <fmt/format.h>

#include <array>
#include <nlohmann/json.hpp>

#include "compiler/cpu/generate.h"
#include "lossc/error.h"

namespace lossc::cpu {

std::set<std::string> ModuleSymbols::sweeps() const {
  std::set<std::string> names;
  for (const RegionSymbols& region : regions) {
    names.insert({region.emit, region.fused, region.emit_stream, region.fused_stream});
    for (const auto& phase : region.phases) names.insert({phase.sample, phase.exact, phase.sweep});
  }
  return names;
}

nlohmann::json ModuleSymbols::to_json() const {
  nlohmann::json list = nlohmann::json::array();
  for (const RegionSymbols& r : regions) {
    nlohmann::json phases = nlohmann::json::array();
    for (const auto& p : r.phases) phases.push_back({p.sample, p.exact, p.sweep, p.finish});
    list.push_back({{"functions", {r.begin, r.emit, r.sparse, r.fused, r.emit_stream, r.fused_stream}},
                    {"phases", phases},
                    {"frame_bytes", r.frame_bytes},
                    {"kept_floats", r.kept_floats}});
  }
  return {{"regions", list}, {"prologue", prologue}, {"seams", seams}, {"epilogue", epilogue}};
}

ModuleSymbols ModuleSymbols::from_json(const nlohmann::json& json) {
  try {
    ModuleSymbols symbols;
    for (const auto& item : json.at("regions")) {
      const auto functions = item.at("functions").get<std::array<std::string, 6>>();
      RegionSymbols region;
      region.begin = functions[0];
      region.emit = functions[1];
      region.sparse = functions[2];
      region.fused = functions[3];
      region.emit_stream = functions[4];
      region.fused_stream = functions[5];
      for (const auto& phase : item.at("phases")) {
        const auto names = phase.get<std::array<std::string, 4>>();
        region.phases.push_back({names[0], names[1], names[2], names[3]});
      }
      region.frame_bytes = item.at("frame_bytes").get<std::int64_t>();
      region.kept_floats = item.at("kept_floats").get<std::int64_t>();
      symbols.regions.push_back(std::move(region));
    }
    json.at("prologue").get_to(symbols.prologue);
    json.at("seams").get_to(symbols.seams);
    json.at("epilogue").get_to(symbols.epilogue);
    return symbols;
  } catch (const nlohmann::json::exception& error) {
    throw Error(ErrorCode::compile_failed, fmt::format("names of a kernel's functions: {}", error.what()));
  }
}

}  // namespace lossc::cpu
