// A run that is repeated: recorded once as a CUDA graph, it costs the host one call, whatever it consists of.
#pragma once

#include <functional>

#include "runtime/cuda/driver.h"

namespace lossc::cuda {

class RecordedRun {
 public:
  explicit RecordedRun(const Device& device) : device_(&device) {}
  ~RecordedRun() { clear(); }
  RecordedRun(const RecordedRun&) = delete;
  RecordedRun& operator=(const RecordedRun&) = delete;

  /// Records what `work` puts on the stream that it is given; nothing of it runs. Arguments of kernels are
  /// copied, what they point to is not. False, and nothing is kept, where the driver or `work` refuses.
  bool record(const std::function<void(CUstream)>& work);
  explicit operator bool() const { return replay_ != nullptr; }
  /// Puts all of it on a stream of the device.
  void launch(CUstream stream) const;
  void clear() noexcept;

 private:
  const Device* device_;
  CUgraphExec replay_ = nullptr;
};

/// Whether work that is put on a stream of the device is recorded by someone instead of being done.
bool is_recorded(CUstream stream);

}  // namespace lossc::cuda
