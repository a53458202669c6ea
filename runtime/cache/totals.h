// Counts of what all processes did with a cache folder, kept in a small text file in it. Lossy by design:
// what a killed process has counted is lost, and nothing depends on it but the figures that people read.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

namespace lossc {

enum class Total {
  disk_hits,
  compilations,
  writes,
  damaged,
  evictions,
  bytes,    ///< What entries take, as far as it is known: decides when to look closely.
  scanned,  ///< 1 once `bytes` was counted; later changes are added.
};
inline constexpr std::array<const char*, 7> kTotalNames = {"disk_hits", "compilations", "writes", "damaged",
                                                           "evictions", "bytes",        "scanned"};
using TotalValues = std::array<std::int64_t, kTotalNames.size()>;

/// What the file in an opened layout folder says; zeros where there is none.
TotalValues read_totals(int folder);

/// Counts in this process that are not in the file yet. Thread safe.
class PendingTotals {
 public:
  void add(Total total, std::int64_t count = 1);
  /// Adds what is pending to the file, when that is possible at once.
  void flush(int folder);
  /// Sets `bytes` to what a scan has found.
  void set_bytes(int folder, std::int64_t bytes);
  bool empty() const;
  void forget();

 private:
  std::array<std::atomic<std::int64_t>, kTotalNames.size()> pending_{};
};

}  // namespace lossc
