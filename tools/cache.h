// What the verbs of `lossc cache` share. None of them needs a GPU, NVRTC or LLVM.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/cache/disk_cache.h"
#include "runtime/cache/options.h"

namespace CLI {
class App;
}

namespace lossc::cli {

/// The folders that the environment names: the own one, then the read-only one.
class Folders {
 public:
  Folders();

  const CacheOptions& options() const { return options_; }
  /// The own folder. Throws Error(invalid_argument) where there is none.
  DiskCache& own();
  const std::vector<DiskCache*>& all() const { return all_; }

 private:
  CacheOptions options_;
  std::optional<DiskCache> own_, readonly_;
  std::vector<DiskCache*> all_;
};

struct Found {
  DiskCache* cache;
  StoredEntry entry;
};

/// Every entry of all folders.
std::vector<Found> all_entries(const Folders& folders);
/// The entry whose key begins so. Throws Error(invalid_argument) when there is none, or more than one.
Found find_entry(const Folders& folders, const std::string& prefix);
/// The whole of a file, checked. Throws Error(io), naming it.
CacheEntry read_entry(const std::string& path);

/// The first digits of a key: enough for people and for find_entry.
std::string short_key(const std::string& key);
/// "3 min", "5 h", "12 days": how long ago that was.
std::string age(std::int64_t seconds_since_1970);
/// A text of the entry's information, or "".
std::string info_text(const EntryHead& head, const char* name);
/// What the kernels were made for.
std::string target_of(const EntryHead& head, const KeyFields& fields);
/// "90s", "12h", "30d": seconds. Throws Error(invalid_argument), naming `what`.
std::int64_t parse_age(const std::string& text, const std::string& what);

void add_cache_list(CLI::App& cache);  // path, stats, list
void add_cache_show(CLI::App& cache);  // show, extract
void add_cache_verify(CLI::App& cache, int& status);
void add_cache_why(CLI::App& cache);
void add_cache_change(CLI::App& cache, int& status);  // prune, clear, export, import

}  // namespace lossc::cli
