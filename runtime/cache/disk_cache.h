// Kernels in a folder: one checked file each, <folder>/v1/<2 hex>/<62 hex>.lossc.
//
// Promise: an entry appears whole or not at all, whatever dies while it is written; what load() returns has
// been checked to its last byte and belongs to the key asked for. Locks only save work.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/cache/entry.h"
#include "runtime/cache/folder.h"
#include "runtime/cache/totals.h"

namespace lossc {

/// A file of the cache, as a listing sees it.
struct StoredEntry {
  std::string key, path;
  std::int64_t bytes = 0;      ///< on disk
  std::int64_t last_used = 0;  ///< seconds since 1970; exact to a day
  FileIdentity identity;
};

/// Held while one process compiles a key; released when it dies, too.
class CompileLock {
 public:
  enum class State { held, timed_out, unavailable };
  CompileLock(State state, FileDescriptor file) : state_(state), file_(std::move(file)) {}
  CompileLock(CompileLock&&) = default;
  CompileLock& operator=(CompileLock&&) = delete;
  ~CompileLock();

  State state() const { return state_; }

 private:
  State state_;
  FileDescriptor file_;
};

class DiskCache {
 public:
  DiskCache(std::string folder, bool readonly) : folder_(std::move(folder), readonly) {}

  const CacheFolder& folder() const { return folder_; }

  struct Loaded {
    std::optional<CacheEntry> entry;
    std::string refused;  ///< Why a file that was there is not used; it is removed where that is possible.
  };
  /// Throws Error(io) when the folder cannot be used.
  Loaded load(const std::string& key);

  /// Throws Error(io) when the file cannot be written; nothing is left behind then.
  void store(const KeyFields& fields, const KernelImage& image);
  /// The bytes of an entry that has been checked already.
  void store_bytes(const std::string& key, std::string_view file);
  /// True when there was one.
  bool remove(const std::string& key);
  /// Unless the file is another by now. True when it was removed.
  bool remove(const StoredEntry& entry);

  /// Waits until no other process compiles `key`, at most so long. Never throws.
  CompileLock lock(const std::string& key, std::chrono::milliseconds wait);

  /// All entries, by key. Nothing of them is read.
  std::vector<StoredEntry> list() const;
  /// The header and the key's fields of a listed entry; the digest is not checked. Throws Error(io).
  std::pair<EntryHead, KeyFields> peek(const StoredEntry& entry) const;

  /// Removes what was used least recently until entries take no more than `bytes`, and what killed writers
  /// left more than an hour ago. Returns the number of entries removed.
  std::int64_t shrink(std::int64_t bytes);
  /// shrink() to four fifths of `max_bytes` when the folder is thought to hold more than that.
  std::int64_t shrink_if_over(std::int64_t max_bytes);

  TotalValues totals() const;
  PendingTotals& pending() { return pending_; }
  void flush_totals();

 private:
  CacheFolder folder_;
  PendingTotals pending_;
};

/// Reads a whole file of at most kMaxEntryBytes and gives what it was. Throws Error(io).
std::string read_entry_file(int file, const CacheFolder* trusted, FileIdentity* identity);

}  // namespace lossc
