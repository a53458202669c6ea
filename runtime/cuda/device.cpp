// Devices, contexts and the memory that belongs to them.
#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "lossc/error.h"
#include "runtime/cuda/cuda_images.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/driver_state.h"

namespace lossc::cuda {
namespace {

struct Devices {
  std::mutex mutex;
  std::map<int, const Device*> by_ordinal;
};

Devices& devices() {
  static Devices* const only = [] {
    auto* made = new Devices;
    ::pthread_atfork([] { devices().mutex.lock(); }, [] { devices().mutex.unlock(); },
                     [] { devices().mutex.unlock(); });
    return made;
  }();
  return *only;
}

int attribute(CUdevice device, CUdevice_attribute which) {
  int value = 0;
  check(driver().cuDeviceGetAttribute(&value, which, device), "cuDeviceGetAttribute");
  return value;
}

}  // namespace

struct Device::Lazy {
  std::mutex mutex;
  std::atomic<CUcontext> context = nullptr;
};

Device::Device(int ordinal) : ordinal_(ordinal), lazy_(std::make_unique<Lazy>()) {
  const Driver& cuda = driver();
  check(cuda.cuDeviceGet(&handle_, ordinal), "cuDeviceGet");
  char name[256] = "";
  check(cuda.cuDeviceGetName(name, sizeof name, handle_), "cuDeviceGetName");
  name_ = name;
  major_ = attribute(handle_, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  minor_ = attribute(handle_, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  sm_count_ = attribute(handle_, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  l2_bytes_ = static_cast<std::size_t>(attribute(handle_, CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE));
  max_shared_bytes_ = attribute(handle_, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
  sm_shared_bytes_ = attribute(handle_, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
  check(cuda.cuDeviceTotalMem(&memory_bytes_, handle_), "cuDeviceTotalMem");
}

int Device::count() {
  int count = 0;
  check(driver().cuDeviceGetCount(&count), "cuDeviceGetCount");
  return count;
}

const Device& Device::get(int ordinal) {
  driver();  // Throws in a forked child, where the objects below are of no use.
  Devices& all = devices();
  const std::lock_guard lock(all.mutex);
  if (const auto found = all.by_ordinal.find(ordinal); found != all.by_ordinal.end()) return *found->second;
  const int visible = count();
  if (ordinal < 0 || ordinal >= visible) {
    throw Error(ErrorCode::invalid_argument,
                visible == 0 ? fmt::format("there is no device cuda:{}: no GPU is visible", ordinal)
                             : fmt::format("there is no device cuda:{}; allowed are cuda:0 to cuda:{}",
                                           ordinal, visible - 1));
  }
  return *all.by_ordinal.emplace(ordinal, new Device(ordinal)).first->second;
}

bool Device::overlaps_launches() const {
  return major_ >= 9 && driver().version >= 12030;
}

std::string Device::arch() const {
  return card_arch(10 * major_ + minor_);
}

CUcontext Device::context() const {
  const Driver& cuda = driver();
  if (const CUcontext ready = lazy_->context.load(std::memory_order_acquire)) return ready;
  const std::lock_guard lock(lazy_->mutex);
  if (lazy_->context.load(std::memory_order_relaxed) == nullptr) {
    CUcontext context = nullptr;
    check(cuda.cuDevicePrimaryCtxRetain(&context, handle_), "cuDevicePrimaryCtxRetain");
    lazy_->context.store(context, std::memory_order_release);
  }
  return lazy_->context.load(std::memory_order_relaxed);
}

ContextScope::ContextScope(const Device& device) {
  const Driver& cuda = driver();
  CUcontext current = nullptr;
  check(cuda.cuCtxGetCurrent(&current), "cuCtxGetCurrent");
  CUdevice of = -1;
  if (current != nullptr && cuda.cuCtxGetDevice(&of) == CUDA_SUCCESS && of == device.handle()) return;
  check(cuda.cuCtxPushCurrent(device.context()), "cuCtxPushCurrent");
  pushed_ = true;
}

ContextScope::~ContextScope() {
  if (!pushed_) return;
  CUcontext popped = nullptr;
  if (const Driver* cuda = usable_driver()) cuda->cuCtxPopCurrent(&popped);
}

RelaxedCapture::RelaxedCapture() {
  check(driver().cuThreadExchangeStreamCaptureMode(&mode_), "cuThreadExchangeStreamCaptureMode");
}

RelaxedCapture::~RelaxedCapture() {
  if (const Driver* cuda = usable_driver()) cuda->cuThreadExchangeStreamCaptureMode(&mode_);
}

namespace {

// Runs `release` where the driver still works; what it answers does not matter, for the process may be
// ending.
template <class Release>
void release_on(const Device& device, Release release) noexcept {
  const Driver* cuda = usable_driver();
  if (cuda == nullptr) return;
  try {
    const RelaxedCapture relaxed;
    const ContextScope scope(device);
    release(*cuda);
  } catch (...) {
  }
}

}  // namespace

DeviceBuffer::DeviceBuffer(const Device& device, std::size_t bytes) : device_(&device) {
  if (bytes == 0) return;
  const RelaxedCapture relaxed;
  const ContextScope scope(device);
  check(driver().cuMemAlloc(&address_, bytes),
        fmt::format("allocating {} bytes on cuda:{}", bytes, device.ordinal()).c_str());
  size_ = bytes;
}

DeviceBuffer::DeviceBuffer(DeviceBuffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      address_(std::exchange(other.address_, 0)),
      size_(std::exchange(other.size_, 0)) {}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  DeviceBuffer taken(std::move(other));
  std::swap(device_, taken.device_);
  std::swap(address_, taken.address_);
  std::swap(size_, taken.size_);
  return *this;
}

DeviceBuffer::~DeviceBuffer() {
  if (address_ != 0) release_on(*device_, [this](const Driver& cuda) { cuda.cuMemFree(address_); });
}

PinnedBuffer::PinnedBuffer(const Device& device, std::size_t bytes) : device_(&device) {
  if (bytes == 0) return;
  const RelaxedCapture relaxed;
  const ContextScope scope(device);
  check(driver().cuMemHostAlloc(&data_, bytes, CU_MEMHOSTALLOC_PORTABLE),
        fmt::format("allocating {} bytes of pinned host memory", bytes).c_str());
  size_ = bytes;
}

PinnedBuffer::PinnedBuffer(PinnedBuffer&& other) noexcept
    : device_(std::exchange(other.device_, nullptr)),
      data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)) {}

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  PinnedBuffer taken(std::move(other));
  std::swap(device_, taken.device_);
  std::swap(data_, taken.data_);
  std::swap(size_, taken.size_);
  return *this;
}

PinnedBuffer::~PinnedBuffer() {
  if (data_ != nullptr) release_on(*device_, [this](const Driver& cuda) { cuda.cuMemFreeHost(data_); });
}

}  // namespace lossc::cuda
