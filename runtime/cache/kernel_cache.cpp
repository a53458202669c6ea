#include "runtime/cache/kernel_cache.h"

#include <fmt/format.h>
#include <pthread.h>

#include <atomic>
#include <cstdlib>
#include <future>
#include <list>
#include <map>
#include <mutex>
#include <set>

#include "lossc/error.h"
#include "runtime/cache/disk_cache.h"

namespace lossc {
namespace {

using Clock = std::chrono::steady_clock;
using Image = std::shared_ptr<const KernelImage>;

// Images stay at hand up to this size: loaders keep what they have loaded, so few are asked for again.
constexpr std::size_t kMemoryBytes = std::size_t{64} << 20;
constexpr std::chrono::seconds kFlushTotalsEvery{1};

/// Kinds of trouble; each is told once.
enum class Trouble : unsigned { folder = 1, readonly_folder = 2, write = 4, damaged = 8 };

std::size_t size_of(const KernelImage& image) {
  std::size_t size = image.source.size() + image.log.size();
  for (const auto& blob : image.blobs) size += blob.second.size();
  return size;
}

void print_warning(const std::string& text) {
  fmt::print(stderr, "lossc: warning: {}\n", text);
}

}  // namespace

struct KernelCache::Impl {
  explicit Impl(CacheOptions o) : options(std::move(o)) {
    if (!options.folder.empty()) own.emplace(options.folder, false);
    if (!options.readonly_folder.empty()) readonly.emplace(options.readonly_folder, true);
  }

  CacheOptions options;
  std::optional<DiskCache> own, readonly;
  std::atomic<unsigned> told{0};

  std::mutex mutex;  // guards what follows; never held while files are read or compilers run
  CacheCounters counters;
  struct Kept {
    Image image;
    std::list<std::string>::iterator place;
  };
  std::map<std::string, Kept> memory;
  std::list<std::string> order;  // least recently used first
  std::size_t memory_bytes = 0;
  std::map<std::string, std::shared_future<Image>> flights;
  std::set<std::string> refused;  // by a loader: not asked of the folders again
  Clock::time_point flushed{};

  void warn(Trouble kind, const std::string& text) {
    const auto bit = static_cast<unsigned>(kind);
    if ((told.fetch_or(bit) & bit) != 0) return;
    (options.warn ? options.warn : print_warning)(text);
  }

  void count(std::int64_t CacheCounters::* counter) {
    const std::lock_guard lock(mutex);
    ++(counters.*counter);
  }

  // Under the lock.
  void keep(const std::string& key, const Image& image) {
    forget(key);
    memory[key] = {image, order.insert(order.end(), key)};
    memory_bytes += size_of(*image);
    while (memory_bytes > kMemoryBytes && memory.size() > 1) forget(std::string(order.front()));
  }
  void forget(const std::string& key) {
    const auto it = memory.find(key);
    if (it == memory.end()) return;
    memory_bytes -= size_of(*it->second.image);
    order.erase(it->second.place);
    memory.erase(it);
  }

  Image load(DiskCache& disk, const std::string& key) {
    const bool is_own = !disk.folder().readonly();
    try {
      DiskCache::Loaded loaded = disk.load(key);
      if (!loaded.refused.empty()) {
        count(&CacheCounters::damaged);
        warn(Trouble::damaged,
             fmt::format("kernel cache: the entry {} in {} is not used: {}; {}", key.substr(0, 12),
                         disk.folder().path(), loaded.refused, "the kernel is compiled anew"));
      }
      if (!loaded.entry) return nullptr;
      count(&CacheCounters::disk_hits);
      disk.pending().add(Total::disk_hits);
      return std::make_shared<const KernelImage>(std::move(loaded.entry->image));
    } catch (const Error& error) {
      warn(is_own ? Trouble::folder : Trouble::readonly_folder,
           fmt::format("kernel cache: {}; {}", error.what(),
                       is_own ? "kernels are kept in memory alone" : "it is left out"));
      return nullptr;
    }
  }

  bool is_refused(const std::string& key) {
    const std::lock_guard lock(mutex);
    return refused.count(key) > 0;
  }

  Image from_disk(const std::string& key) {
    if (is_refused(key)) return nullptr;
    if (own) {
      if (Image image = load(*own, key)) return image;
    }
    return readonly ? load(*readonly, key) : nullptr;
  }

  void store(const KeyFields& fields, const KernelImage& image) {
    try {
      own->store(fields, image);
      const std::int64_t evicted = own->shrink_if_over(options.max_bytes);
      const std::lock_guard lock(mutex);
      ++counters.writes;
      counters.evictions += evicted;
      refused.erase(fields.digest());
    } catch (const Error& error) {
      count(&CacheCounters::write_errors);
      // A folder that cannot be trusted has been told of already.
      if ((told.load() & static_cast<unsigned>(Trouble::folder)) != 0) return;
      warn(Trouble::write,
           fmt::format("kernel cache: {}; kernels that are compiled now are kept in memory alone",
                       error.what()));
    }
  }

  Image compile_and_store(const KeyFields& fields, const std::function<KernelImage()>& compile) {
    const auto start = Clock::now();
    const auto image = std::make_shared<const KernelImage>(compile());
    const std::chrono::duration<double> seconds = Clock::now() - start;
    {
      const std::lock_guard lock(mutex);
      ++counters.compilations;
      counters.compile_seconds += seconds.count();
    }
    if (own) {
      own->pending().add(Total::compilations);
      store(fields, *image);
    } else if (!options.no_cache && !options.from.empty()) {
      warn(Trouble::folder, fmt::format("kernel cache: there is no folder: {}; kernels are kept in memory "
                                        "alone; LOSSC_CACHE_DIR names one, LOSSC_NO_CACHE=1 silences this",
                                        options.from));
    }
    return image;
  }

  Image fetch(const KeyFields& fields, const std::string& key, const std::function<KernelImage()>& compile) {
    if (Image image = from_disk(key)) return image;
    if (options.no_compile) {
      throw Error(ErrorCode::compile_failed,
                  fmt::format("the kernel {} is not in the cache ({}) and LOSSC_NO_COMPILE is set; fill the "
                              "cache with `lossc cache import`, or run once without LOSSC_NO_COMPILE",
                              key.substr(0, 12), own ? options.folder : "no folder: " + options.from));
    }
    if (!own) return compile_and_store(fields, compile);
    const CompileLock lock = own->lock(key, options.lock_wait);
    if (lock.state() == CompileLock::State::timed_out) count(&CacheCounters::lock_timeouts);
    if (lock.state() == CompileLock::State::held && !is_refused(key)) {
      // Whoever held the lock before may have written it.
      if (Image image = load(*own, key)) return image;
    }
    return compile_and_store(fields, compile);
  }

  void flush_totals() {
    if (own) {
      try {
        own->flush_totals();
      } catch (const Error&) {  // figures for people: not worth a word
      }
    }
  }

  // Now and then, and at the end of the process.
  void flush_totals_at_times() {
    {
      const std::lock_guard lock(mutex);
      const auto now = Clock::now();
      if (now - flushed < kFlushTotalsEvery) return;
      const bool first = flushed == Clock::time_point{};
      flushed = now;
      if (first) return;  // a process of one program writes them once, at its end
    }
    flush_totals();
  }
};

KernelCache::KernelCache(CacheOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}

KernelCache::~KernelCache() {
  impl_->flush_totals();
}

KernelCache& KernelCache::instance() {
  static KernelCache* cache = [] {
    auto* made = new KernelCache(CacheOptions::from_environment());
    // A child that is forked while another thread compiles has neither that thread nor its result.
    static Impl* impl = made->impl_.get();
    ::pthread_atfork([] { impl->mutex.lock(); }, [] { impl->mutex.unlock(); },
                     [] {
                       impl->flights.clear();
                       if (impl->own) impl->own->pending().forget();
                       impl->mutex.unlock();
                     });
    std::atexit([] { impl->flush_totals(); });
    return made;
  }();
  return *cache;
}

std::shared_ptr<const KernelImage> KernelCache::get(const KeyFields& fields,
                                                    const std::function<KernelImage()>& compile) {
  const std::string key = fields.digest();
  std::promise<Image> promise;
  std::shared_future<Image> other;
  {
    const std::lock_guard lock(impl_->mutex);
    if (const auto it = impl_->memory.find(key); it != impl_->memory.end()) {
      impl_->order.splice(impl_->order.end(), impl_->order, it->second.place);
      ++impl_->counters.memory_hits;
      return it->second.image;
    }
    if (const auto it = impl_->flights.find(key); it != impl_->flights.end()) {
      other = it->second;
    } else {
      impl_->flights.emplace(key, promise.get_future().share());
    }
  }
  if (other.valid()) {
    Image image = other.get();
    impl_->count(&CacheCounters::memory_hits);
    return image;
  }
  Image image;
  std::exception_ptr failure;
  try {
    image = impl_->fetch(fields, key, compile);
  } catch (...) {
    failure = std::current_exception();
  }
  {
    const std::lock_guard lock(impl_->mutex);
    if (image) impl_->keep(key, image);
    impl_->flights.erase(key);
  }
  if (failure) {
    promise.set_exception(failure);
    std::rethrow_exception(failure);
  }
  promise.set_value(image);
  impl_->flush_totals_at_times();
  return image;
}

void KernelCache::discard(const KeyFields& fields) {
  const std::string key = fields.digest();
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->forget(key);
    impl_->refused.insert(key);
    ++impl_->counters.discarded;
  }
  if (!impl_->own) return;
  try {
    impl_->own->remove(key);
  } catch (const Error&) {  // the next get() says what is wrong with the folder
  }
}

CacheCounters KernelCache::counters() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->counters;
}

const CacheOptions& KernelCache::options() const {
  return impl_->options;
}

}  // namespace lossc
