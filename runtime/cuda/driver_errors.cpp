#include "runtime/cuda/driver_errors.h"

#include <fmt/format.h>

namespace lossc::cuda {
namespace {

constexpr const char* kLost =
    "an earlier kernel did this, and no GPU work is possible in this process any more; start it anew, with "
    "compute-sanitizer to find the kernel";

// What to do about an error; null where its own words have to do. {} is where the driver's version is said.
// The names are those of the oldest headers that are built with.
const char* hint(CUresult result) {
  switch (static_cast<int>(result)) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return "the device has not enough free memory";
    case CUDA_ERROR_NOT_INITIALIZED:
      return "a process that was forked from one that had used the GPU cannot use it: start workers by spawn";
    case CUDA_ERROR_DEINITIALIZED:
      return "the process is ending";
    case CUDA_ERROR_STUB_LIBRARY:
      return "this libcuda is the toolkit's stub, good for linking alone: take its folder (.../stubs) out of "
             "LD_LIBRARY_PATH and install the NVIDIA driver";
    case CUDA_ERROR_DEVICE_UNAVAILABLE:
      return "another process has the device in exclusive mode";
    case CUDA_ERROR_NO_DEVICE:
      return "no GPU is visible: is CUDA_VISIBLE_DEVICES empty, or the container started without GPU access?";
    case CUDA_ERROR_INVALID_DEVICE:
      return "there is no such device";
    case CUDA_ERROR_INVALID_IMAGE:
      return "the code is damaged";
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
      return "the code is for another architecture than this device's: compile for this one";
    case CUDA_ERROR_INVALID_PTX:
      return "the driver's compiler refuses the PTX: it is for a newer architecture, or damaged";
    case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
      return "the driver's PTX compiler (libnvidia-ptxjitcompiler.so.1) is not installed: install the whole "
             "driver";
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
      return "the driver{} is older than the NVRTC that made the PTX: install a newer driver, or set "
             "LOSSC_NVRTC to an older libnvrtc.so";
    case CUDA_ERROR_JIT_COMPILATION_DISABLED:
      return "CUDA_DISABLE_PTX_JIT is set, and the code is PTX: unset it, or use an NVRTC that knows this "
             "device";
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ECC_UNCORRECTABLE:
      return kLost;
    case CUDA_ERROR_SYSTEM_NOT_READY:
      return "on a machine with NVSwitch: is nvidia-fabricmanager running?";
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
      return "libcuda and the kernel's NVIDIA module are of different versions: reboot, or in a container "
             "use the "
             "host's libcuda";
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
      return "the libcuda of a cuda-compat package does not work with this device: take its folder out of "
             "LD_LIBRARY_PATH";
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
      return "a stream is being captured into a graph, and this call is not allowed then: make it before";
    case CUDA_ERROR_UNKNOWN:
      return "is the NVIDIA kernel module loaded, and may this user open /dev/nvidia*?";
    default:
      return nullptr;
  }
}

}  // namespace

std::string describe_error(const Driver* driver, CUresult result) {
  const int number = static_cast<int>(result);
  const char* name = nullptr;
  const char* meaning = nullptr;
  if (driver != nullptr) {
    driver->cuGetErrorName(result, &name);
    driver->cuGetErrorString(result, &meaning);
  }
  std::string text =
      name == nullptr ? fmt::format("CUDA error {}", number) : fmt::format("{} ({})", name, number);
  if (meaning != nullptr) text += fmt::format(", {}", meaning);
  if (const char* what = hint(result)) {
    const int version = driver == nullptr ? 0 : driver->version;
    const std::string of =
        version == 0 ? "" : fmt::format(", which is for CUDA {}.{},", version / 1000, version % 1000 / 10);
    text += ": " + fmt::format(fmt::runtime(what), of);
  }
  std::size_t free = 0, total = 0;
  if (driver != nullptr && result == CUDA_ERROR_OUT_OF_MEMORY &&
      driver->cuMemGetInfo(&free, &total) == CUDA_SUCCESS) {
    constexpr double kMiB = 1024.0 * 1024.0;
    text += fmt::format("; {:.0f} of {:.0f} MiB are free", static_cast<double>(free) / kMiB,
                        static_cast<double>(total) / kMiB);
  }
  return text;
}

ErrorCode error_code(CUresult result) {
  switch (static_cast<int>(result)) {
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_STUB_LIBRARY:
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
    case CUDA_ERROR_JIT_COMPILATION_DISABLED:
    case CUDA_ERROR_SYSTEM_NOT_READY:
    case CUDA_ERROR_SYSTEM_DRIVER_MISMATCH:
    case CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE:
      return ErrorCode::unsupported;
    default:
      return ErrorCode::compile_failed;
  }
}

}  // namespace lossc::cuda
