#include "runtime/cuda/cuda_images.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "compiler/cuda/cuda_source.h"
#include "compiler/cuda/nvrtc.h"
#include "compiler/cuda/templates.h"
#include "generator_digest.h"
#include "lossc/error.h"

namespace lossc::cuda {

namespace {

constexpr const char* kBatchTitle = "segments and pairs of a batch";
constexpr int kFirstExact = 90;  // the first architecture that has instructions of its own alone

KernelImage compile(const std::string& source, const std::string& name, const std::string& arch,
                    const std::string& title) {
  NvrtcResult result = nvrtc_compile({source, name, arch, {}});
  KernelImage image;
  image.kind = result.cubin.empty() ? "ptx" : "cubin";
  if (!result.cubin.empty()) image.blobs["cubin"] = std::move(result.cubin);
  image.blobs["ptx"] = std::move(result.ptx);
  image.source = source;
  image.log = std::move(result.log);
  image.info["title"] = title;
  image.info["target"] = result.target;
  image.info["compile_ms"] = result.milliseconds;
  nlohmann::json kernels = nlohmann::json::array();
  for (const KernelFigures& k : result.kernels) {
    kernels.push_back({{"name", k.name},
                       {"registers", k.registers},
                       {"spill_bytes", k.spill_store_bytes + k.spill_load_bytes},
                       {"stack_bytes", k.stack_bytes},
                       {"shared_bytes", k.static_shared_bytes}});
  }
  image.info["kernels"] = std::move(kernels);
  return image;
}

bool spills(const KernelImage& image) {
  for (const nlohmann::json& kernel : image.info["kernels"]) {
    if (kernel["spill_bytes"] > 0 || kernel["stack_bytes"] > 0) return true;
  }
  return false;
}

ImagePointer image_of(KernelCache& cache, const KeyFields& key, const std::string& source,
                      const std::string& name, const std::string& arch, const std::string& title,
                      bool* compiled) {
  if (compiled != nullptr) *compiled = false;
  return cache.get(key, [&] {
    KernelImage image = compile(source, name, arch, title);
    if (compiled != nullptr) *compiled = true;
    return image;
  });
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
                        const std::function<std::string(int)>& source, const std::string& arch,
                        const std::string& title, bool* compiled) {
  if (compiled != nullptr) *compiled = false;
  return cache.get(key, [&] {
    for (int relax = 0;; ++relax) {
      KernelImage image = compile(source(relax), "lossc_kernels", arch, title);
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
  return image_of(cache, batch_key(arch), batch_source(), "lossc_batch", arch, kBatchTitle, compiled);
}

bool needs_batch_kernels(const Layout& layout) {
  return std::any_of(layout.tensors.begin(), layout.tensors.end(), [](const TensorSlot& slot) {
    return slot.name == "segment_ids" || slot.name.starts_with("pairs.");
  });
}

const std::string& image_code(const KernelImage& image) {
  const auto cubin = image.blobs.find("cubin");
  return cubin != image.blobs.end() ? cubin->second : image.blobs.at("ptx");
}

}  // namespace lossc::cuda
