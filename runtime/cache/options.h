// Where the kernel cache is kept, and how it behaves.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

namespace lossc {

struct CacheOptions {
  /// The folder; absolute, made when something is first written. Empty: kernels are kept in memory alone.
  std::string folder = {};
  /// Where `folder` comes from ("LOSSC_CACHE_DIR", "XDG_CACHE_HOME", "HOME", "the user's entry in passwd"),
  /// or why it is empty.
  std::string from = {};
  /// A second folder that is only read (LOSSC_CACHE_READONLY_DIR); empty: none.
  std::string readonly_folder = {};
  /// When entries take more, those unused for longest go (LOSSC_CACHE_MAX_SIZE).
  std::int64_t max_bytes = std::int64_t{1} << 30;
  /// Keeping kernels in memory alone is what was asked for (LOSSC_NO_CACHE=1): no reason to warn.
  bool no_cache = false;
  /// A kernel that is in no folder is an error (LOSSC_NO_COMPILE=1).
  bool no_compile = false;
  /// How long to wait for another process that compiles the same kernel before compiling it here too.
  std::chrono::milliseconds lock_wait{10'000};
  /// Gets each kind of warning once. Empty: standard error.
  std::function<void(const std::string&)> warn = {};

  /// As the environment says: LOSSC_CACHE_DIR, else XDG_CACHE_HOME/lossc, else HOME/.cache/lossc, else the
  /// same in the home folder that passwd names; LOSSC_NO_CACHE=1 names none. Empty variables count as unset.
  /// Throws Error(invalid_argument) for a value that means nothing.
  static CacheOptions from_environment();
};

/// "64M", "1.5GiB", "1000000": bytes. Throws Error(invalid_argument), naming `what`.
std::int64_t parse_byte_count(const std::string& text, const std::string& what);

}  // namespace lossc
