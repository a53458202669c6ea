// Tensors in host memory for a program that runs on a GPU: copied to the device before the kernels, and back
// after them. For files, checks and small batches; a framework binds device memory.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lossc/tensor.h"
#include "runtime/cuda/workspace.h"

namespace lossc::cuda {

/// A staged tensor that kernels write, and where its elements belong.
struct Returned {
  TensorView device, host;
};

class Staging {
 public:
  Staging(const Device& device, Workspace& workspace) : device_(device), workspace_(workspace) {}

  /// Whether a tensor lies in host memory; asked of the driver once an address. Throws
  /// Error(invalid_argument) for another device's memory.
  bool in_host_memory(const std::string& name, const TensorView& view);
  /// The tensor in device memory: itself, or a copy made on the stream. A copy that is written is added to
  /// `back`. Throws Error(invalid_argument) for an address that is not aligned to the elements.
  TensorView on_device(const std::string& name, const TensorView& view, bool written,
                       std::vector<Returned>& back, CUstream stream);
  /// Copies the elements of a staged tensor back, once the stream has come there.
  void to_host(const Returned& staged, CUstream stream);

  /// Whether anything was copied since the last forget().
  bool used() const { return used_; }
  void forget() { used_ = false; }

 private:
  TensorView to_device(const std::string& name, const TensorView& host, CUstream stream);

  const Device& device_;
  Workspace& workspace_;
  bool used_ = false;
  std::map<std::string, std::pair<const void*, bool>> known_;  ///< what an address was found to be
};

}  // namespace lossc::cuda
