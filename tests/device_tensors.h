// Tensors in device memory, for tests of programs on a GPU.
#pragma once

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "lossc/program.h"
#include "runtime/cuda/driver.h"

namespace lossc::test {

class DeviceTensors {
 public:
  explicit DeviceTensors(const cuda::Device& device) : device_(device) {}

  /// Makes or overwrites a tensor; its address stays while its bytes do not grow.
  template <class T>
  TensorView set(const std::string& name, const std::vector<T>& values, DType dtype,
                 std::vector<std::int64_t> shape) {
    const cuda::ContextScope scope(device_);
    const std::size_t bytes = values.size() * sizeof(T);
    cuda::DeviceBuffer& buffer = buffers_[name];
    if (buffer.size() < bytes) buffer = cuda::DeviceBuffer(device_, bytes);
    if (bytes > 0) cuda::check(cuda::driver().cuMemcpyHtoD(buffer.address(), values.data(), bytes), "upload");
    // The copy may still be under way, and streams of a test do not wait for the default one.
    cuda::check(cuda::driver().cuCtxSynchronize(), "upload");
    return {buffer.data(), dtype, std::move(shape), {}};
  }
  template <class T>
  std::vector<T> get(const std::string& name, std::size_t count) const {
    const cuda::ContextScope scope(device_);
    std::vector<T> values(count);
    cuda::check(cuda::driver().cuMemcpyDtoH(values.data(), buffers_.at(name).address(), count * sizeof(T)),
                "download");
    return values;
  }

 private:
  const cuda::Device& device_;
  std::map<std::string, cuda::DeviceBuffer> buffers_;
};

}  // namespace lossc::test
