// Compiled kernels by key, for every backend: in memory, then on disk, then compiled.
//
//   KeyFields key;
//   key.add("backend", "cuda").add("source", source).add("target", "sm_90a").add("compiler", build);
//   auto image = KernelCache::instance().get(key, [&] { return compile(source); });
//   if (!load(*image)) KernelCache::instance().discard(key);  // the next get() compiles once more
//
// Promise: a key is compiled once across threads, and across processes that share a folder on one host,
// unless a compiler takes longer than CacheOptions::lock_wait. What is read from a folder is whole and
// belongs to its key, or is removed and compiled again. No trouble with the disk reaches the caller: it costs
// one warning.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "compiler/kernel_image.h"
#include "compiler/kernel_key.h"
#include "runtime/cache/options.h"

namespace lossc {

/// What happened in this process.
struct CacheCounters {
  std::int64_t memory_hits = 0;    ///< Images that were in this process.
  std::int64_t disk_hits = 0;      ///< Images read from a folder.
  std::int64_t compilations = 0;   ///< Calls of a compiler that ended well.
  std::int64_t writes = 0;         ///< Entries written.
  std::int64_t write_errors = 0;   ///< Entries that could not be written.
  std::int64_t damaged = 0;        ///< Entries that were refused, and removed where they could be.
  std::int64_t discarded = 0;      ///< Images that a loader refused.
  std::int64_t evictions = 0;      ///< Entries removed to stay within the size.
  std::int64_t lock_timeouts = 0;  ///< Waits for another process that were given up.
  double compile_seconds = 0;
};

class KernelCache {
 public:
  /// The process's cache, configured by the environment on first use and never destroyed.
  static KernelCache& instance();

  explicit KernelCache(CacheOptions options);
  ~KernelCache();
  KernelCache(const KernelCache&) = delete;
  KernelCache& operator=(const KernelCache&) = delete;

  /// The image of `key`; `compile` makes it when neither memory nor disk has it. Thread safe; compilers of
  /// different keys run side by side, threads that want the same key wait for one and get its exception too.
  /// Throws what `compile` throws, and Error(compile_failed) on a miss where CacheOptions::no_compile is set.
  std::shared_ptr<const KernelImage> get(const KeyFields& key, const std::function<KernelImage()>& compile);

  /// Forgets an image that a loader refused, in memory and on disk: the next get() compiles.
  void discard(const KeyFields& key);

  CacheCounters counters() const;
  const CacheOptions& options() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lossc
