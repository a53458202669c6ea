// Tensors in host memory for a program that runs on a GPU: copied to the device before the kernels, and back
// after them. For files, checks and small batches; a framework binds device memory.
#pragma once

#include <string>
#include <vector>

#include "lossc/tensor.h"
#include "runtime/cuda/workspace.h"

namespace lossc::cuda {

class Staging {
 public:
  Staging(const Device& device, Workspace& workspace) : device_(device), workspace_(workspace) {}

  /// A view of device memory with the same shape and strides, filled from `host` on the stream.
  TensorView to_device(const std::string& name, const TensorView& host, CUstream stream);
  /// Copies the elements of a staged tensor back, once the stream has come there.
  void to_host(const TensorView& device, const TensorView& host, CUstream stream);

 private:
  const Device& device_;
  Workspace& workspace_;
};

}  // namespace lossc::cuda
