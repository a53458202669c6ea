#include "runtime/kernel_memory.h"

#include <chrono>
#include <list>
#include <map>
#include <mutex>

namespace lossc {

namespace {

// Programs own their kernels; the process keeps the last ones alive for callers that compile anew for every
// batch.
constexpr std::size_t kKept = 128;

struct Entry {
  std::mutex compiling;
  std::shared_ptr<const cpu::CpuKernels> kernels;
};

class KernelMemory {
 public:
  static KernelMemory& instance() {
    static KernelMemory* memory = new KernelMemory;  // leaked: programs may outlive static destructors
    return *memory;
  }

  std::shared_ptr<const cpu::CpuKernels> get(
      const std::string& key, const std::function<std::shared_ptr<const cpu::CpuKernels>()>& compile) {
    const std::shared_ptr<Entry> entry = entry_of(key);
    const std::lock_guard compiling(entry->compiling);
    if (entry->kernels) {
      const std::lock_guard lock(mutex_);
      ++statistics_.memory_hits;
      return entry->kernels;
    }
    const auto start = std::chrono::steady_clock::now();
    entry->kernels = compile();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    const std::lock_guard lock(mutex_);
    ++statistics_.compilations;
    statistics_.compile_seconds += seconds.count();
    return entry->kernels;
  }

  Statistics statistics() {
    const std::lock_guard lock(mutex_);
    return statistics_;
  }

 private:
  std::shared_ptr<Entry> entry_of(const std::string& key) {
    const std::lock_guard lock(mutex_);
    if (auto it = entries_.find(key); it != entries_.end()) {
      order_.splice(order_.end(), order_, it->second.second);
      return it->second.first;
    }
    if (entries_.size() >= kKept) {
      entries_.erase(order_.front());
      order_.pop_front();
    }
    auto entry = std::make_shared<Entry>();
    entries_[key] = {entry, order_.insert(order_.end(), key)};
    return entry;
  }

  std::mutex mutex_;
  std::list<std::string> order_;  // least recently used first
  std::map<std::string, std::pair<std::shared_ptr<Entry>, std::list<std::string>::iterator>> entries_;
  Statistics statistics_;
};

}  // namespace

std::shared_ptr<const cpu::CpuKernels> kernels_of(
    const std::string& key, const std::function<std::shared_ptr<const cpu::CpuKernels>()>& compile) {
  return KernelMemory::instance().get(key, compile);
}

Statistics statistics() {
  return KernelMemory::instance().statistics();
}

}  // namespace lossc
