// Code in the driver.
#include <fmt/format.h>

#include <map>
#include <mutex>
#include <tuple>
#include <utility>

#include "lossc/error.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/image.h"

namespace lossc::cuda {
namespace {

/// What a kernel was prepared for.
struct Limits {
  int dynamic_shared_bytes = 0;
  bool large_clusters = false;
};

}  // namespace

/// Never freed: the driver reads the image and writes the log as long as the library is loaded.
struct Module::Loaded {
  std::string image;
  char log[4096] = "";
  // The driver writes through the first, and the length over the second, which is no pointer but the size
  // itself.
  void* log_options[2] = {log, reinterpret_cast<void*>(sizeof log - 1)};
  CUlibrary library = nullptr;
  std::mutex mutex;
  std::map<std::string, CUkernel> kernels;
  std::map<std::tuple<CUkernel, int, CUcontext>, Limits> prepared;

  // The driver's own log says what the error code does not. It is filled at the load, though most refusals
  // come later.
  void check_load(CUresult result, const std::string& what) const {
    if (result == CUDA_SUCCESS) return;
    try {
      check(result, what.c_str());
    } catch (const Error& error) {
      if (log[0] == '\0') throw;
      throw Error(error.code(), fmt::format("{}\n{}", error.what(), log));
    }
  }
};

Module::Module(std::string image) : loaded_(nullptr) {
  check_image(image);
  const Driver& cuda = driver();
  auto loaded = std::make_unique<Loaded>();
  loaded->image = std::move(image);

  CUjit_option names[] = {CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES};
  CUlibraryOption library_names[] = {CU_LIBRARY_BINARY_IS_PRESERVED};
  void* library_values[] = {reinterpret_cast<void*>(1)};
  const RelaxedCapture relaxed;
  const CUresult result = cuda.cuLibraryLoadData(&loaded->library, loaded->image.c_str(), names,
                                                 loaded->log_options, 2, library_names, library_values, 1);
  loaded->check_load(result, "loading code");
  loaded_ = loaded.release();
}

CUkernel Module::kernel(const std::string& name) const {
  const Driver& cuda = driver();
  const std::lock_guard lock(loaded_->mutex);
  if (const auto found = loaded_->kernels.find(name); found != loaded_->kernels.end()) return found->second;
  CUkernel kernel = nullptr;
  const RelaxedCapture relaxed;
  loaded_->check_load(cuda.cuLibraryGetKernel(&kernel, loaded_->library, name.c_str()),
                      fmt::format("finding the kernel \"{}\"", name));
  loaded_->kernels.emplace(name, kernel);
  return kernel;
}

CUkernel Module::prepare(const std::string& name, const Device& device, int dynamic_shared_bytes,
                         bool large_clusters) const {
  const Driver& cuda = driver();
  const CUkernel wanted = kernel(name);
  const RelaxedCapture relaxed;
  const ContextScope scope(device);
  CUcontext context = nullptr;
  check(cuda.cuCtxGetCurrent(&context), "cuCtxGetCurrent");

  const std::lock_guard lock(loaded_->mutex);
  const auto [entry, fresh] = loaded_->prepared.try_emplace({wanted, device.ordinal(), context});
  try {
    if (fresh) {
      CUfunction function = nullptr;
      loaded_->check_load(cuda.cuKernelGetFunction(&function, wanted),
                          fmt::format("bringing the kernel \"{}\" onto cuda:{}", name, device.ordinal()));
    }
    Limits& limits = entry->second;
    if (dynamic_shared_bytes > limits.dynamic_shared_bytes) {
      int fixed = 0;
      check(cuda.cuKernelGetAttribute(&fixed, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, wanted, device.handle()),
            "cuKernelGetAttribute");
      if (dynamic_shared_bytes > device.max_shared_bytes() - fixed) {
        throw Error(
            ErrorCode::unsupported,
            fmt::format("the kernel \"{}\" wants {} bytes of shared memory a block; {} allows {}", name,
                        dynamic_shared_bytes + fixed, device.name(), device.max_shared_bytes()));
      }
      check(cuda.cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, dynamic_shared_bytes,
                                      wanted, device.handle()),
            "cuKernelSetAttribute(MAX_DYNAMIC_SHARED_SIZE_BYTES)");
      limits.dynamic_shared_bytes = dynamic_shared_bytes;
    }
    if (large_clusters && !limits.large_clusters) {
      check(cuda.cuKernelSetAttribute(CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, wanted,
                                      device.handle()),
            "cuKernelSetAttribute(NON_PORTABLE_CLUSTER_SIZE_ALLOWED)");
      limits.large_clusters = true;
    }
  } catch (...) {
    if (fresh) loaded_->prepared.erase(entry);
    throw;
  }
  return wanted;
}

}  // namespace lossc::cuda
