#include "runtime/cuda/workspace.h"

#include <algorithm>
#include <utility>

namespace lossc::cuda {

char* Workspace::get(const std::string& name, std::size_t bytes) {
  DeviceBuffer& block = blocks_[name];
  if (block.size() < bytes || block.size() == 0) {
    const ContextScope scope(*device_);
    const RelaxedCapture relaxed;
    // By half, so that batches that grow slowly do not allocate each time.
    DeviceBuffer larger(*device_, std::max({bytes, block.size() + block.size() / 2, std::size_t{256}}));
    if (block.size() > 0) retired_.push_back(std::move(block));
    block = std::move(larger);
  }
  return static_cast<char*>(block.data());
}

}  // namespace lossc::cuda
