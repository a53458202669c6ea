// Device memory of an execution: it grows to the largest batch seen and is never given back while the
// execution lives, for a captured graph may hold its addresses.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "runtime/cuda/driver.h"

namespace lossc::cuda {

class Workspace {
 public:
  explicit Workspace(const Device& device) : device_(&device) {}

  /// At least `bytes` bytes, 256-byte aligned, under a name; what they held is lost when they grow.
  char* get(const std::string& name, std::size_t bytes);

 private:
  const Device* device_;
  std::map<std::string, DeviceBuffer, std::less<>> blocks_;
  std::vector<DeviceBuffer> retired_;
};

}  // namespace lossc::cuda
