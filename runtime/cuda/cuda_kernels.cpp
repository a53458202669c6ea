#include "runtime/cuda/cuda_kernels.h"

#include <fmt/format.h>

#include <charconv>
#include <functional>
#include <future>
#include <map>
#include <mutex>

#include "lossc/error.h"
#include "runtime/cuda/cuda_images.h"

namespace lossc::cuda {

namespace {

struct Loaded {
  ImagePointer image;
  std::map<std::string, Module> modules;  // by unit

  const Module& unit(const std::string& name) const {
    const auto found = modules.find(name);
    if (found != modules.end()) return found->second;
    throw Error(ErrorCode::internal, fmt::format("a kernel image without the unit \"{}\"", name));
  }
};

// The image of a key, loaded. What the driver refuses is compiled once more.
Loaded load(const KeyFields& key, const std::function<ImagePointer(KernelCache&)>& image) {
  KernelCache& cache = KernelCache::instance();
  const auto once = [&] {
    ImagePointer got = image(cache);
    Loaded loaded{std::move(got), {}};
    for (const auto& [unit, code] : image_code(*loaded.image)) {
      loaded.modules.emplace(unit, Module(std::string(code)));
    }
    return loaded;
  };
  try {
    return once();
  } catch (const Error& error) {
    if (error.code() == ErrorCode::compile_failed || cache.options().no_compile) throw;
    cache.discard(key);
    return once();
  }
}

std::shared_ptr<const BatchKernels> load_batch_kernels(const Device& device) {
  static std::mutex mutex;
  static auto* loaded =
      new std::map<int, std::shared_ptr<const BatchKernels>>;  // the design's lazy singleton
  const std::lock_guard lock(mutex);
  auto& kernels = (*loaded)[device.ordinal()];
  if (kernels) return kernels;
  const Loaded found =
      load(batch_key(device.arch()), [&](KernelCache& c) { return batch_image(c, device.arch()); });
  const Module& module = found.unit(kBatchUnit);
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
  // The context and the kernels of batches take as long as a compilation does: side by side.
  std::future<CUcontext> context = std::async(std::launch::async, [&] { return device.context(); });
  std::future<std::shared_ptr<const BatchKernels>> batch;
  if (segments) batch = std::async(std::launch::async, [&] { return load_batch_kernels(device); });
  auto kernels = std::make_shared<CudaKernels>();
  kernels->device = &device;
  const auto text = [&](int relax) { return cuda_source(plan, layout, spec, device.arch(), relax); };
  const Loaded loaded =
      load(key, [&](KernelCache& cache) { return plan_image(cache, key, text, device.arch(), title); });
  CudaSource source = cuda_source(plan, layout, spec, device.arch(), image_relax(*loaded.image));
  context.get();
  const ContextScope scope(device);
  auto steps = [&](const std::vector<StepKernel>& list, const std::string& unit) {
    std::vector<StepLaunch> launches;
    for (const StepKernel& step : list) {
      launches.push_back({step, loaded.unit(unit).prepare(step.name, device)});
    }
    return launches;
  };
  kernels->prologue = steps(source.prologue, "prologue");
  for (const RegionKernel& region : source.regions) {
    const Module& module = loaded.unit(region.name);
    kernels->regions.push_back({region, module.prepare(region.name, device, region.shared_bytes)});
  }
  for (std::size_t i = 0; i < source.seams.size(); ++i) {
    kernels->seams.push_back(steps(source.seams[i], fmt::format("seam{}", i)));
  }
  kernels->epilogue = steps(source.epilogue, "epilogue");
  kernels->tickets = source.tickets;
  kernels->source = std::move(source.text);
  if (segments) kernels->batch = batch.get();
  return kernels;
}

}  // namespace lossc::cuda
