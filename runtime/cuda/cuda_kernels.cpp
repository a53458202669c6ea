#include "runtime/cuda/cuda_kernels.h"

#include <fmt/format.h>

#include <charconv>
#include <future>
#include <map>
#include <mutex>

#include "compiler/cuda/nvrtc.h"
#include "compiler/cuda/templates.h"
#include "generator_digest.h"
#include "lossc/error.h"
#include "runtime/cache/kernel_cache.h"

namespace lossc::cuda {

namespace {

KernelImage compile(const std::string& source, const std::string& name, const std::string& arch) {
  NvrtcResult result = nvrtc_compile({source, name, arch, {}});
  KernelImage image;
  image.kind = result.cubin.empty() ? "ptx" : "cubin";
  if (!result.cubin.empty()) image.blobs["cubin"] = std::move(result.cubin);
  image.blobs["ptx"] = std::move(result.ptx);
  image.source = source;
  image.log = std::move(result.log);
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

struct LoadedImage {
  Module module;
  nlohmann::json info;
};

// The image of a key, loaded. What the driver refuses is compiled once more.
LoadedImage load(const KeyFields& key, const std::function<KernelImage()>& compile_image) {
  KernelCache& cache = KernelCache::instance();
  const auto code = [](const KernelImage& image) {
    const auto cubin = image.blobs.find("cubin");
    return cubin != image.blobs.end() ? cubin->second : image.blobs.at("ptx");
  };
  const auto loaded = [&] {
    const std::shared_ptr<const KernelImage> image = cache.get(key, compile_image);
    return LoadedImage{Module(code(*image)), image->info};
  };
  try {
    return loaded();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::compile_failed || cache.options().no_compile) throw;
    cache.discard(key);
    return loaded();
  }
}

std::shared_ptr<const BatchKernels> load_batch_kernels(const Device& device) {
  static std::mutex mutex;
  static auto* loaded =
      new std::map<int, std::shared_ptr<const BatchKernels>>;  // the design's lazy singleton
  const std::lock_guard lock(mutex);
  auto& kernels = (*loaded)[device.ordinal()];
  if (kernels) return kernels;
  std::string source;
  for (const char* file : {"abi.h", "base.cuh", "batch_abi.h", "batch.cuh"}) {
    source += std::string(template_text(file)) + "\n";
  }
  KeyFields key;
  key.add("schema", "1").add("backend", "cuda");
  add_cuda_fields(key, device.arch());
  key.add("plan", "the kernels of batch.cuh");
  const LoadedImage loaded_image = load(key, [&] {
    KernelImage image = compile(source, "lossc_batch", device.arch());
    image.info["title"] = "segments and pairs of a batch";
    return image;
  });
  const Module& module = loaded_image.module;
  const ContextScope scope(device);
  auto made = std::make_shared<BatchKernels>();
  made->offsets_to_ids = module.prepare("batch_offsets_to_ids", device);
  made->keys = module.prepare("batch_keys", device);
  made->histogram = module.prepare("batch_histogram", device);
  made->scan = module.prepare("batch_scan", device);
  made->scatter = module.prepare("batch_scatter", device);
  made->offsets = module.prepare("batch_offsets", device);
  made->spread = module.prepare("batch_spread", device);
  made->check_pairs = module.prepare("batch_check_pairs", device);
  kernels = std::move(made);
  return kernels;
}

}  // namespace

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

int cuda_ordinal(const std::string& device) {
  if (device == "cuda") return 0;
  if (device.rfind("cuda:", 0) != 0) return -1;
  int ordinal = -1;
  const char* end = device.data() + device.size();
  const auto [stop, error] = std::from_chars(device.data() + 5, end, ordinal);
  return error == std::errc() && stop == end && ordinal >= 0 ? ordinal : -1;
}

std::shared_ptr<const CudaKernels> load_cuda_kernels(const Plan& plan, const Layout& layout, const Spec& spec,
                                                     const KeyFields& key, const Device& device,
                                                     bool segments, const std::string& title) {
  // The context takes as long as a compilation does: side by side.
  std::future<CUcontext> context = std::async(std::launch::async, [&] { return device.context(); });
  auto kernels = std::make_shared<CudaKernels>();
  kernels->device = &device;
  const bool clusters = device.major() >= 9;
  const LoadedImage image = load(key, [&] {
    // Kernels that spill are asked for again with fewer values in registers.
    for (int relax = 0;; ++relax) {
      KernelImage made =
          compile(cuda_source(plan, layout, spec, clusters, relax).text, "lossc_kernels", device.arch());
      if (spills(made) && relax < kMostRelaxed) continue;
      made.info["title"] = title;
      made.info["relax"] = relax;
      return made;
    }
  });
  CudaSource source = cuda_source(plan, layout, spec, clusters, image.info.at("relax").get<int>());
  const Module& module = image.module;
  context.get();
  const ContextScope scope(device);
  auto steps = [&](const std::vector<StepKernel>& list) {
    std::vector<StepLaunch> launches;
    for (const StepKernel& step : list) launches.push_back({step, module.prepare(step.name, device)});
    return launches;
  };
  kernels->prologue = steps(source.prologue);
  for (const RegionKernel& region : source.regions) {
    kernels->regions.push_back({region, module.prepare(region.name, device)});
  }
  for (const auto& seam : source.seams) kernels->seams.push_back(steps(seam));
  kernels->epilogue = steps(source.epilogue);
  kernels->tickets = source.tickets;
  kernels->source = std::move(source.text);
  if (segments) kernels->batch = load_batch_kernels(device);
  return kernels;
}

}  // namespace lossc::cuda
