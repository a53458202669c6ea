#include "runtime/cuda/cuda_images.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <future>
#include <map>

#include "compiler/cuda/cuda_source.h"
#include "compiler/cuda/nvrtc.h"
#include "compiler/cuda/templates.h"
#include "generator_digest.h"
#include "lossc/error.h"

namespace lossc::cuda {

namespace {

constexpr const char* kBatchTitle = "segments and pairs of a batch";
constexpr int kFirstExact = 90;  // the first architecture that has instructions of its own alone

// `known`: what was compiled already, by the text.
KernelImage compile(const std::vector<CudaUnit>& units, const std::string& source, const std::string& arch,
                    const std::string& title, std::map<std::string, NvrtcResult>& known) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::pair<const CudaUnit*, std::future<NvrtcResult>>> pending;
  for (const CudaUnit& unit : units) {
    if (known.count(unit.text) > 0) continue;
    pending.emplace_back(&unit, std::async(std::launch::async, [&unit, &arch] {
      return nvrtc_compile({unit.text, "lossc_" + unit.name, arch, {}});
    }));
  }
  for (auto& [unit, result] : pending) known[unit->text] = result.get();

  KernelImage image;
  nlohmann::json kernels = nlohmann::json::array();
  for (const CudaUnit& unit : units) {
    const NvrtcResult& result = known.at(unit.text);
    image.kind = result.cubin.empty() ? "ptx" : "cubin";
    if (!result.cubin.empty()) image.blobs[unit.name + ".cubin"] = result.cubin;
    image.blobs[unit.name + ".ptx"] = result.ptx;
    image.log += result.log;
    image.info["target"] = result.target;
    for (const KernelFigures& k : result.kernels) {
      kernels.push_back({{"name", k.name},
                         {"registers", k.registers},
                         {"spill_bytes", k.spill_store_bytes + k.spill_load_bytes},
                         {"stack_bytes", k.stack_bytes},
                         {"shared_bytes", k.static_shared_bytes}});
    }
  }
  image.source = source;
  image.info["title"] = title;
  image.info["compile_ms"] =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  image.info["kernels"] = std::move(kernels);
  return image;
}

bool spills(const KernelImage& image) {
  for (const nlohmann::json& kernel : image.info["kernels"]) {
    if (kernel["spill_bytes"] > 0 || kernel["stack_bytes"] > 0) return true;
  }
  return false;
}

std::string batch_source() {
  std::string source;
  for (const char* file : {"abi.h", "base.cuh", "batch_abi.h", "batch.cuh"}) {
    source += std::string(template_text(file)) + "\n";
  }
  return source;
}

}  // namespace

std::string card_arch(int number) {
  return fmt::format("sm_{}{}", number, number >= kFirstExact ? "a" : "");
}

std::string card_arch(std::string_view name) {
  if (name.starts_with("sm_")) {
    int number = 0;
    const char* const end = name.data() + name.size();
    const auto [rest, code] = std::from_chars(name.data() + 3, end, number);
    if (code == std::errc() && number > 0) {
      const std::string arch = card_arch(number);
      if (rest == end || name == arch) return arch;
    }
  }
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("\"{}\" is no GPU architecture that kernels are compiled for; allowed are names such as "
                  "sm_80, sm_90a, sm_120a (sm_90 is sm_90a)",
                  name));
}

std::vector<std::string> card_archs() {
  std::vector<std::string> names;
  for (const int number : nvrtc_build().archs) names.push_back(card_arch(number));
  return names;
}

void add_cuda_fields(KeyFields& key, const std::string& arch) {
  const NvrtcBuild& build = nvrtc_build();
  key.add("generator", kGeneratorDigest)
      .add("compiler", fmt::format("NVRTC {}.{} {} {}", build.major, build.minor, build.build_id,
                                   build.builtins_build_id));
  std::string options, environment;
  for (const std::string& option : nvrtc_options(arch)) options += option + "\n";
  for (const std::string& variable : nvrtc_environment()) environment += variable + "\n";
  key.add("target", arch).add("options", options).add("environment", environment);
}

ImagePointer plan_image(KernelCache& cache, const KeyFields& key,
                        const std::function<CudaSource(int)>& source, const std::string& arch,
                        const std::string& title, bool* compiled) {
  if (compiled != nullptr) *compiled = false;
  return cache.get(key, [&] {
    std::map<std::string, NvrtcResult> known;
    for (int relax = 0;; ++relax) {
      const CudaSource asked = source(relax);
      KernelImage image = compile(asked.units, asked.text, arch, title, known);
      if (spills(image) && relax < kMostRelaxed) continue;
      image.info["relax"] = relax;
      if (compiled != nullptr) *compiled = true;
      return image;
    }
  });
}

int image_relax(const KernelImage& image) {
  return image.info.at("relax").get<int>();
}

KeyFields batch_key(const std::string& arch) {
  KeyFields key;
  key.add("schema", "1").add("backend", "cuda");
  add_cuda_fields(key, arch);
  key.add("plan", "the kernels of batch.cuh");
  return key;
}

ImagePointer batch_image(KernelCache& cache, const std::string& arch, bool* compiled) {
  if (compiled != nullptr) *compiled = false;
  return cache.get(batch_key(arch), [&] {
    std::map<std::string, NvrtcResult> known;
    const std::string source = batch_source();
    KernelImage image = compile({{kBatchUnit, source}}, source, arch, kBatchTitle, known);
    if (compiled != nullptr) *compiled = true;
    return image;
  });
}

bool needs_batch_kernels(const Layout& layout) {
  return std::any_of(layout.tensors.begin(), layout.tensors.end(), [](const TensorSlot& slot) {
    return slot.name == "segment_ids" || slot.name.starts_with("pairs.");
  });
}

std::map<std::string, std::string_view> image_code(const KernelImage& image) {
  std::map<std::string, std::string_view> code;
  for (const char* kind : {".ptx", ".cubin"}) {
    for (const auto& [name, blob] : image.blobs) {
      if (name.ends_with(kind)) code[name.substr(0, name.size() - std::string_view(kind).size())] = blob;
    }
  }
  return code;
}

}  // namespace lossc::cuda
