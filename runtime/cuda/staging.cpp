#include "runtime/cuda/staging.h"

#include <fmt/format.h>

#include <cstring>

#include "runtime/tensor_layout.h"

namespace lossc::cuda {

namespace {

/// The bytes from a view's first element in memory to behind its last, and where its data pointer is in them.
struct Extent {
  std::int64_t before = 0, bytes = 0;
};

Extent extent_of(const TensorView& view) {
  const auto strides = view.full_strides();
  const auto size = static_cast<std::int64_t>(dtype_size(view.dtype));
  std::int64_t low = 0, high = 0;
  for (std::size_t i = 0; i < view.shape.size(); ++i) {
    if (view.shape[i] == 0) return {};
    const std::int64_t reach = (view.shape[i] - 1) * strides[i] * size;
    (reach < 0 ? low : high) += reach;
  }
  return {-low, high - low + size};
}

// Copies runs of elements that are contiguous in both memories, which have one layout.
void copy_elements(char* to, const char* from, const TensorView& view,
                   const std::vector<std::int64_t>& strides, std::size_t dimension, std::int64_t size) {
  if (dimension == view.shape.size()) {
    std::memcpy(to, from, static_cast<std::size_t>(size));
    return;
  }
  if (dimension + 1 == view.shape.size() && strides[dimension] == 1) {
    std::memcpy(to, from, static_cast<std::size_t>(view.shape[dimension] * size));
    return;
  }
  for (std::int64_t i = 0; i < view.shape[dimension]; ++i) {
    const std::int64_t offset = i * strides[dimension] * size;
    copy_elements(to + offset, from + offset, view, strides, dimension + 1, size);
  }
}

}  // namespace

bool Staging::in_host_memory(const std::string& name, const TensorView& view) {
  auto& known = known_[name];
  if (known.first == view.data && view.data != nullptr) return known.second;
  const auto address = reinterpret_cast<CUdeviceptr>(view.data);
  unsigned type = 0;
  const CUresult result = driver().cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address);
  const bool host = result != CUDA_SUCCESS || type == CU_MEMORYTYPE_HOST;
  int ordinal = device_.ordinal();
  if (!host &&
      driver().cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) ==
          CUDA_SUCCESS &&
      ordinal != device_.ordinal()) {
    refuse(fmt::format("tensor \"{}\" lies on cuda:{}; the program runs on cuda:{}", name, ordinal,
                       device_.ordinal()));
  }
  known = {view.data, host};
  return host;
}

TensorView Staging::on_device(const std::string& name, const TensorView& view, bool written,
                              std::vector<Returned>& back, CUstream stream) {
  const auto size = static_cast<std::int64_t>(dtype_size(view.dtype));
  if (view.size() == 0) return view;
  if (in_host_memory(name, view)) {
    used_ = true;
    TensorView device = to_device(name, view, stream);
    if (written) back.push_back({device, view});
    return device;
  }
  if (reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(size) != 0) {
    refuse(fmt::format("tensor \"{}\" begins at an address that is no multiple of its {} bytes an element",
                       name, size));
  }
  return view;
}

TensorView Staging::to_device(const std::string& name, const TensorView& host, CUstream stream) {
  const Extent extent = extent_of(host);
  const auto size = static_cast<std::int64_t>(dtype_size(host.dtype));
  const char* first = static_cast<const char*>(host.data) - extent.before;
  // The same place within 256 bytes as in host memory, so that rows are cut the same way; elements are
  // aligned.
  const std::int64_t shift =
      static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(first) % 256) / size * size;
  char* memory = workspace_.get("staged." + name, static_cast<std::size_t>(extent.bytes + 256)) + shift;
  if (extent.bytes > 0) {
    const ContextScope scope(device_);
    check(driver().cuMemcpyHtoDAsync(reinterpret_cast<CUdeviceptr>(memory), first,
                                     static_cast<std::size_t>(extent.bytes), stream),
          "copying a tensor to the device", device_);
  }
  TensorView view = host;
  view.data = memory + extent.before;
  view.strides = host.full_strides();
  return view;
}

void Staging::to_host(const Returned& staged, CUstream stream) {
  const auto& [device, host] = staged;
  const Extent extent = extent_of(host);
  if (extent.bytes == 0) return;
  const ContextScope scope(device_);
  std::vector<char> bytes(static_cast<std::size_t>(extent.bytes));
  check(driver().cuMemcpyDtoHAsync(
            bytes.data(), reinterpret_cast<CUdeviceptr>(static_cast<char*>(device.data) - extent.before),
            bytes.size(), stream),
        "copying a tensor from the device", device_);
  check(driver().cuStreamSynchronize(stream), "waiting for the device", device_);
  copy_elements(static_cast<char*>(host.data), bytes.data() + extent.before, host, host.full_strides(), 0,
                static_cast<std::int64_t>(dtype_size(host.dtype)));
}

}  // namespace lossc::cuda
