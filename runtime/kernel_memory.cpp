#include "runtime/kernel_memory.h"

#include <atomic>
#include <list>
#include <map>
#include <mutex>

#include "runtime/cache/kernel_cache.h"

namespace lossc {

namespace {

// Programs own their kernels; the process keeps the last ones alive for callers that compile anew for every
// batch.
constexpr std::size_t kKept = 128;

struct Entry {
  std::mutex loading;
  std::shared_ptr<const cpu::CpuKernels> kernels;
};

class KernelMemory {
 public:
  static KernelMemory& instance() {
    static KernelMemory* memory = new KernelMemory;  // leaked: programs may outlive static destructors
    return *memory;
  }

  std::shared_ptr<const cpu::CpuKernels> get(
      const std::string& key, const std::function<std::shared_ptr<const cpu::CpuKernels>()>& load) {
    const std::shared_ptr<Entry> entry = entry_of(key);
    const std::lock_guard loading(entry->loading);
    if (entry->kernels) {
      hits_.fetch_add(1, std::memory_order_relaxed);
    } else {
      entry->kernels = load();
    }
    return entry->kernels;
  }

  std::int64_t hits() const { return hits_.load(std::memory_order_relaxed); }

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
  std::atomic<std::int64_t> hits_{0};
};

}  // namespace

std::shared_ptr<const cpu::CpuKernels> kernels_of(
    const std::string& key, const std::function<std::shared_ptr<const cpu::CpuKernels>()>& load) {
  return KernelMemory::instance().get(key, load);
}

Statistics statistics() {
  const CacheCounters cache = KernelCache::instance().counters();
  Statistics result;
  result.compilations = cache.compilations;
  result.memory_hits = KernelMemory::instance().hits() + cache.memory_hits;
  result.disk_hits = cache.disk_hits;
  result.compile_seconds = cache.compile_seconds;
  return result;
}

}  // namespace lossc
