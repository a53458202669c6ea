// The CUDA driver: libcuda, opened when it is first needed. Nothing links to it, so that one binary runs with
// and without a GPU. docs/cuda.md says where it is looked for.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace lossc::cuda {

// Every function of the driver that lossc calls. All exist since CUDA 12.0, with the signature that cuda.h
// declares.
#define LOSSC_CUDA_FUNCTIONS(X)                  \
  X(cuInit)                                      \
  X(cuDriverGetVersion)                          \
  X(cuGetErrorName)                              \
  X(cuGetErrorString)                            \
  X(cuDeviceGet)                                 \
  X(cuDeviceGetCount)                            \
  X(cuDeviceGetName)                             \
  X(cuDeviceGetAttribute)                        \
  X(cuDeviceTotalMem)                            \
  X(cuDevicePrimaryCtxRetain)                    \
  X(cuDevicePrimaryCtxRelease)                   \
  X(cuCtxGetCurrent)                             \
  X(cuCtxSetCurrent)                             \
  X(cuCtxPushCurrent)                            \
  X(cuCtxPopCurrent)                             \
  X(cuCtxGetDevice)                              \
  X(cuCtxSynchronize)                            \
  X(cuMemGetInfo)                                \
  X(cuMemAlloc)                                  \
  X(cuMemFree)                                   \
  X(cuMemAllocAsync)                             \
  X(cuMemFreeAsync)                              \
  X(cuMemHostAlloc)                              \
  X(cuMemFreeHost)                               \
  X(cuMemcpyHtoD)                                \
  X(cuMemcpyDtoH)                                \
  X(cuMemcpyDtoD)                                \
  X(cuMemcpyHtoDAsync)                           \
  X(cuMemcpyDtoHAsync)                           \
  X(cuMemcpyDtoDAsync)                           \
  X(cuMemsetD8Async)                             \
  X(cuMemsetD16Async)                            \
  X(cuMemsetD32Async)                            \
  X(cuPointerGetAttribute)                       \
  X(cuPointerGetAttributes)                      \
  X(cuStreamCreate)                              \
  X(cuStreamDestroy)                             \
  X(cuStreamSynchronize)                         \
  X(cuStreamQuery)                               \
  X(cuStreamWaitEvent)                           \
  X(cuStreamGetCtx)                              \
  X(cuStreamIsCapturing)                         \
  X(cuStreamBeginCapture)                        \
  X(cuStreamEndCapture)                          \
  X(cuThreadExchangeStreamCaptureMode)           \
  X(cuEventCreate)                               \
  X(cuEventDestroy)                              \
  X(cuEventRecord)                               \
  X(cuEventQuery)                                \
  X(cuEventSynchronize)                          \
  X(cuEventElapsedTime)                          \
  X(cuGraphInstantiateWithFlags)                 \
  X(cuGraphLaunch)                               \
  X(cuGraphExecDestroy)                          \
  X(cuGraphDestroy)                              \
  X(cuLibraryLoadData)                           \
  X(cuLibraryUnload)                             \
  X(cuLibraryGetKernel)                          \
  X(cuKernelGetFunction)                         \
  X(cuKernelGetAttribute)                        \
  X(cuKernelSetAttribute)                        \
  X(cuFuncGetAttribute)                          \
  X(cuFuncSetAttribute)                          \
  X(cuLaunchKernel)                              \
  X(cuLaunchKernelEx)                            \
  X(cuOccupancyMaxActiveBlocksPerMultiprocessor) \
  X(cuOccupancyMaxActiveClusters)

/// The driver's functions under their own names: `driver().cuMemAlloc(...)`.
struct Driver {
#define LOSSC_CUDA_DECLARE(name) decltype(&::name) name = nullptr;
  LOSSC_CUDA_FUNCTIONS(LOSSC_CUDA_DECLARE)
#undef LOSSC_CUDA_DECLARE
  int version = 0;   ///< The CUDA version of the driver: 13000 is 13.0.
  std::string path;  ///< The file of libcuda.
};

/// Opens and initialises the driver on the first call. Throws Error(unsupported) that names what was tried
/// where there is no driver or no device, and in a forked child of a process that had used it.
const Driver& driver();

/// Whether there are a driver and a device. Never throws.
bool driver_available() noexcept;

/// One line for a person: version and file, or why the driver cannot be used. Never throws.
std::string driver_status();

/// What the search for libcuda did, in order, one line an attempt.
std::vector<std::string> driver_tried();

/// Throws Error with what was being done, the driver's name and number of the error, and what to do about it.
void check(CUresult result, const char* what);

/// A GPU. One object an ordinal, made on first use and never destroyed.
class Device {
 public:
  /// How many devices the driver shows.
  static int count();
  /// Throws Error(invalid_argument) where there is no such device.
  static const Device& get(int ordinal);

  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  int ordinal() const { return ordinal_; }
  CUdevice handle() const { return handle_; }
  const std::string& name() const { return name_; }
  int major() const { return major_; }
  int minor() const { return minor_; }
  /// What to compile for: "sm_80"; with the suffix of the exact architecture from 9.0 on: "sm_90a".
  std::string arch() const;
  int sm_count() const { return sm_count_; }
  std::size_t l2_bytes() const { return l2_bytes_; }
  /// The most shared memory that a block may ask for, and what one multiprocessor has.
  int max_shared_bytes() const { return max_shared_bytes_; }
  int sm_shared_bytes() const { return sm_shared_bytes_; }
  std::size_t memory_bytes() const { return memory_bytes_; }
  /// Whether a kernel can be launched while the one before it ends, in captured streams too.
  bool overlaps_launches() const;
  /// The primary context, retained on the first call (about 0.1 s) and never released.
  CUcontext context() const;

 private:
  explicit Device(int ordinal);
  struct Lazy;

  int ordinal_ = 0;
  CUdevice handle_ = 0;
  std::string name_;
  int major_ = 0, minor_ = 0;
  int sm_count_ = 0;
  std::size_t l2_bytes_ = 0;
  int max_shared_bytes_ = 0, sm_shared_bytes_ = 0;
  std::size_t memory_bytes_ = 0;
  std::unique_ptr<Lazy> lazy_;
};

/// check() of what was done on a device, which the message then names.
void check(CUresult result, const char* what, const Device& device);

/// While it lives, the calling thread has a current context of the device: the one that was current if it is
/// of that device, else the device's primary context.
class ContextScope {
 public:
  explicit ContextScope(const Device& device);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  bool pushed_ = false;
};

/// While it lives, the calling thread may load code and allocate memory without harm to a stream capture, its
/// own or another thread's.
class RelaxedCapture {
 public:
  RelaxedCapture();
  ~RelaxedCapture();
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

/// Code in the driver: one image serves every context and every device of its architecture. The code stays
/// loaded when the object goes, for a graph that someone has captured may launch it at any time.
class Module {
 public:
  /// `image` is a cubin or PTX. Its lengths are checked, for the driver is given none and trusts what it is
  /// given; the content is not: a file's digest must have been verified. Throws Error(io) for an image that
  /// is cut or is neither, and what check() throws where the driver refuses it. Many of its refusals come
  /// from kernel() only.
  explicit Module(std::string image);

  /// The kernel, to be launched as a CUfunction by a cast. Throws where there is none of that name.
  CUkernel kernel(const std::string& name) const;

  /// Brings the kernel onto the device and sets its limits, so that a launch does neither. Waits for all work
  /// that the device has: call it before work is queued. Safe in a stream capture. `dynamic_shared_bytes` is
  /// the most that a launch will ask for; `large_clusters` allows more than 8 blocks.
  CUkernel prepare(const std::string& name, const Device& device, int dynamic_shared_bytes = 0,
                   bool large_clusters = false) const;

 private:
  struct Loaded;
  Loaded* loaded_;  // Never freed.
};

/// Device memory.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// Of 0 bytes it holds no memory.
  DeviceBuffer(const Device& device, std::size_t bytes);
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;
  ~DeviceBuffer();

  CUdeviceptr address() const { return address_; }
  void* data() const { return reinterpret_cast<void*>(address_); }
  std::size_t size() const { return size_; }

 private:
  const Device* device_ = nullptr;
  CUdeviceptr address_ = 0;
  std::size_t size_ = 0;
};

/// Host memory that a copy engine reads and writes without a staging copy, usable with every device.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(const Device& device, std::size_t bytes);
  PinnedBuffer(PinnedBuffer&& other) noexcept;
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;
  ~PinnedBuffer();

  void* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  const Device* device_ = nullptr;
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace lossc::cuda
