// Many kernels in one file, to carry to another machine: a plain tar of the cache's files, which `tar tf`
// lists.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/cache/disk_cache.h"

namespace lossc {

struct ExportResult {
  std::int64_t entries = 0, bytes = 0;
  std::vector<std::string> refused;  ///< "KEY: why": damaged entries, which are left out
};
/// Writes the entries of `cache` into `path`; what is damaged is left out. Throws Error(io).
ExportResult export_entries(const DiskCache& cache, const std::vector<StoredEntry>& entries,
                            const std::string& path, const std::function<void(std::size_t)>& progress = {});

struct ImportResult {
  std::int64_t added = 0, present = 0;
  std::vector<std::string> refused;  ///< "NAME: why"
};
/// Adds the entries in `path` that `cache` does not have. Each is checked to its last byte first. Throws
/// Error(io) for a file that is no such archive or ends too early; what came before its end is added.
ImportResult import_entries(DiskCache& cache, const std::string& path);

}  // namespace lossc
