#include "compiler/cpu/cpu_target.h"

#include <fmt/format.h>
#include <llvm/ADT/StringMap.h>
#include <llvm/MC/MCSubtargetInfo.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/TargetParser/Host.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "lossc/error.h"

namespace lossc::cpu {

namespace {

void choose(CpuTarget& target, const std::function<bool(const char*)>& has) {
  const bool avx512 = has("avx512f") && has("avx512vl") && has("avx512bw") && has("avx512dq");
  target.width = avx512 ? 16 : 8;
  target.unroll = avx512 ? 2 : 1;
  target.math.avx512 = avx512;
  target.math.avx2 = has("avx2");
  target.math.fma = has("fma");
#if defined(__x86_64__)
  target.math.flush_denormals = true;
#else
  target.math.flush_denormals = false;
#endif
  target.convert.avx512_bf16 = avx512 && has("avx512bf16");
}

}  // namespace

CpuTarget host_target() {
  CpuTarget target;
  target.name = llvm::sys::getHostCPUName().str();
  const llvm::StringMap<bool> features = llvm::sys::getHostCPUFeatures();
  std::vector<std::string> on;
  for (const auto& feature : features)
    on.push_back((feature.getValue() ? "+" : "-") + feature.getKey().str());
  std::sort(on.begin(), on.end());
  target.features = fmt::format("{}", fmt::join(on, ","));
  choose(target, [&](const char* name) { return features.lookup(name); });
  return target;
}

CpuTarget named_target(const std::string& name) {
  const std::string triple = llvm::sys::getProcessTriple();
  std::string problem;
  const llvm::Target* machine = llvm::TargetRegistry::lookupTarget(triple, problem);
  if (machine == nullptr) throw Error(ErrorCode::compile_failed, "LLVM: " + problem);
  const std::unique_ptr<llvm::MCSubtargetInfo> info(machine->createMCSubtargetInfo(triple, "", ""));
  if (!info->isCPUStringValid(name)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("LLVM knows no processor \"{}\" of {}", name, triple));
  }
  const std::unique_ptr<llvm::MCSubtargetInfo> known(machine->createMCSubtargetInfo(triple, name, ""));
  CpuTarget target;
  target.name = name;
  choose(target, [&](const char* feature) { return known->checkFeatures(std::string("+") + feature); });
  return target;
}

}  // namespace lossc::cpu
