#include "runtime/cuda/driver.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <future>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>

#include "compiler/cuda/nvrtc.h"
#include "compiler/cuda/shared_library.h"
#include "lossc/error.h"
#include "runtime/cuda/driver_errors.h"
#include "runtime/cuda/driver_state.h"

namespace lossc::cuda {
namespace {

static_assert(CUDA_VERSION >= 12000, "the CUDA backend needs the headers of CUDA 12.0 or newer");

// What is asked of cuGetProcAddress: the functions as 12.0 has them, whatever the driver is.
constexpr int kApiVersion = 12000;

constexpr const char* kRemedy =
    "install the NVIDIA driver (525.60 or newer), or set LOSSC_LIBCUDA to the file of libcuda.so.1; in a "
    "container, start it with GPU access";

struct State {
  std::mutex mutex;
  bool searched = false;
  std::string failure;  ///< Why there is no driver, once it has been searched for.
  std::vector<std::string> tried;
  std::atomic<const Driver*> driver = nullptr;
  bool touched = false;  ///< The driver is initialised: a child of fork() cannot use the driver any more.
  bool forked = false;
};

State& state() {
  static State* const only = [] {
    auto* made = new State;
    // A child must not inherit a lock whose owner it has no copy of. And in a child the driver is beyond use
    // once the parent has initialised it: most calls fail there, some crash. To ask getpid() in every call
    // would cost more than the calls do.
    ::pthread_atfork([] { state().mutex.lock(); }, [] { state().mutex.unlock(); },
                     [] {
                       State& child = state();
                       if (child.touched) {
                         child.forked = true;
                         child.driver.store(nullptr);
                       }
                       child.mutex.unlock();
                     });
    return made;
  }();
  return *only;
}

std::vector<std::string> candidates() {
  if (const char* chosen = ::secure_getenv("LOSSC_LIBCUDA"); chosen != nullptr && *chosen != '\0') {
    return {chosen};
  }
  return {"libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1", "/run/opengl-driver/lib/libcuda.so.1",
          "/usr/lib64/libcuda.so.1",
#if defined(__aarch64__)
          "/usr/lib/aarch64-linux-gnu/libcuda.so.1"
#else
          "/usr/lib/x86_64-linux-gnu/libcuda.so.1"
#endif
  };
}

// Fills the functions. Returns why that failed.
std::optional<std::string> bind(const SharedLibrary& library, Driver& driver) {
  const auto ask = reinterpret_cast<decltype(&::cuGetProcAddress)>(library.symbol("cuGetProcAddress_v2"));
  if (ask == nullptr) {
    return "it has no cuGetProcAddress_v2: a driver for CUDA 12.0 or newer (525.60 or newer) is needed";
  }
  std::vector<std::string> missing;
  CUresult first_failure = CUDA_SUCCESS;
  const auto get = [&](const char* name) -> void* {
    void* function = nullptr;
    CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    const CUresult result = ask(name, &function, kApiVersion, CU_GET_PROC_ADDRESS_DEFAULT, &status);
    if (result == CUDA_SUCCESS && function != nullptr) return function;
    if (missing.empty()) first_failure = result;
    missing.emplace_back(name);
    return nullptr;
  };
#define LOSSC_CUDA_BIND(name) driver.name = reinterpret_cast<decltype(driver.name)>(get(#name));
  LOSSC_CUDA_FUNCTIONS(LOSSC_CUDA_BIND)
#undef LOSSC_CUDA_BIND
  if (missing.empty()) return std::nullopt;
  if (first_failure == CUDA_ERROR_STUB_LIBRARY) return describe_error(nullptr, first_failure);
  return fmt::format("it lacks {}: a driver for CUDA 12.0 or newer (525.60 or newer) is needed",
                     fmt::join(missing, ", "));
}

// NVRTC, which every key of a kernel names, takes as long to be opened as the driver to be initialised: side
// by side. What comes of it is told when it is needed.
std::future<void> open_nvrtc() {
  try {
    return std::async(std::launch::async, [] { nvrtc_status(); });
  } catch (const std::system_error&) {
    return {};  // no thread is to be had
  }
}

// Opens libcuda and initialises it. Returns why that failed.
std::optional<std::string> open_driver(State& state, Driver& driver) {
  SharedLibrary library;
  for (const std::string& name : candidates()) {
    library = open_library(name);
    if (library) {
      state.tried.push_back(fmt::format("{}: opened ({})", name, library.path));
      break;
    }
    state.tried.push_back(library.failure.starts_with(name + ": ")
                              ? library.failure
                              : fmt::format("{}: {}", name, library.failure));
  }
  if (!library) {
    return fmt::format("libcuda, the NVIDIA driver's library, was not found. Tried:\n  {}\nWhat helps: {}",
                       fmt::join(state.tried, "\n  "), kRemedy);
  }
  driver.path = library.path;
  if (const auto failure = bind(library, driver)) {
    return fmt::format("{} cannot be used: {}", library.path, *failure);
  }
  driver.cuDriverGetVersion(&driver.version);
  const std::future<void> nvrtc = open_nvrtc();
  if (const CUresult result = driver.cuInit(0); result != CUDA_SUCCESS) {
    return fmt::format("the NVIDIA driver ({}, CUDA {}.{}) could not be initialised: {}", library.path,
                       driver.version / 1000, driver.version % 1000 / 10, describe_error(&driver, result));
  }
  state.touched = true;
  return std::nullopt;
}

// Null where the driver cannot be used; `state().failure` then says why.
const Driver* find_driver() {
  State& found = state();
  if (const Driver* driver = found.driver.load(std::memory_order_acquire)) return driver;
  const std::lock_guard lock(found.mutex);
  if (found.forked) {
    found.failure =
        "this process was forked from one that had used the GPU, and the driver does not work in such a "
        "child. What "
        "helps: start workers by spawn, not by fork, or fork before the first use of the GPU";
    return nullptr;
  }
  if (!std::exchange(found.searched, true)) {
    auto* driver = new Driver;
    if (auto failure = open_driver(found, *driver)) {
      found.failure = std::move(*failure);
      delete driver;
    } else {
      found.driver.store(driver, std::memory_order_release);
    }
  }
  return found.driver.load(std::memory_order_relaxed);
}

std::string failure() {
  const std::lock_guard lock(state().mutex);
  return state().failure;
}

}  // namespace

const Driver* usable_driver() noexcept {
  return state().driver.load(std::memory_order_acquire);
}

const Driver& driver() {
  if (const Driver* found = find_driver()) return *found;
  throw Error(ErrorCode::unsupported, failure());
}

bool driver_available() noexcept {
  try {
    const Driver* found = find_driver();
    int count = 0;
    return found != nullptr && found->cuDeviceGetCount(&count) == CUDA_SUCCESS && count > 0;
  } catch (...) {
    return false;
  }
}

std::string driver_status() {
  const Driver* found = find_driver();
  if (found == nullptr) return failure();
  return fmt::format("CUDA {}.{} ({})", found->version / 1000, found->version % 1000 / 10, found->path);
}

std::vector<std::string> driver_tried() {
  find_driver();
  const std::lock_guard lock(state().mutex);
  return state().tried;
}

void check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  throw Error(error_code(result),
              fmt::format("{} failed: {}", what, describe_error(usable_driver(), result)));
}

void check(CUresult result, const char* what, const Device& device) {
  if (result == CUDA_SUCCESS) return;
  check(result, fmt::format("{} on cuda:{}", what, device.ordinal()).c_str());
}

}  // namespace lossc::cuda
