#include "runtime/cache/options.h"

#include <fmt/format.h>
#include <pwd.h>
#include <unistd.h>

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <vector>

#include "lossc/error.h"

namespace lossc {
namespace {

namespace fs = std::filesystem;

// Empty for what is unset, and for everything in a program that runs with another user's rights.
std::string environment(const char* name) {
  const char* value = ::secure_getenv(name);
  return value == nullptr ? "" : value;
}

bool flag(const char* name) {
  const std::string value = environment(name);
  if (value.empty() || value == "0") return false;
  if (value == "1") return true;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("{}={}: allowed are 1 (on) and 0 or nothing (off)", name, value));
}

// Absolute, and without a slash at its end, so that a symbolic link there is seen as one.
std::string folder_path(const std::string& path) {
  fs::path result = fs::absolute(path).lexically_normal();
  if (!result.has_filename()) result = result.parent_path();
  return result.string();
}

std::string home_of_user() {
  std::vector<char> buffer(16384);
  passwd entry = {};
  passwd* found = nullptr;
  if (::getpwuid_r(::geteuid(), &entry, buffer.data(), buffer.size(), &found) != 0 || found == nullptr ||
      found->pw_dir == nullptr || found->pw_dir[0] != '/') {
    return "";
  }
  return found->pw_dir;
}

void choose_folder(CacheOptions& options) {
  if (flag("LOSSC_NO_CACHE")) {
    options.no_cache = true;
    options.from = "LOSSC_NO_CACHE is set";
  } else if (const std::string own = environment("LOSSC_CACHE_DIR"); !own.empty()) {
    options.folder = folder_path(own);
    options.from = "LOSSC_CACHE_DIR";
  } else if (const std::string xdg = environment("XDG_CACHE_HOME"); xdg.starts_with('/')) {
    // The XDG rules: a relative path counts as unset.
    options.folder = folder_path(xdg + "/lossc");
    options.from = "XDG_CACHE_HOME";
  } else if (const std::string home = environment("HOME"); !home.empty()) {
    options.folder = folder_path(home + "/.cache/lossc");
    options.from = "HOME";
  } else if (const std::string passwd_home = home_of_user(); !passwd_home.empty()) {
    options.folder = folder_path(passwd_home + "/.cache/lossc");
    options.from = "the user's entry in passwd";
  } else {
    options.from = "LOSSC_CACHE_DIR, XDG_CACHE_HOME and HOME are unset, and passwd names no home folder";
  }
}

}  // namespace

CacheOptions CacheOptions::from_environment() {
  CacheOptions options;
  choose_folder(options);
  if (const std::string other = environment("LOSSC_CACHE_READONLY_DIR");
      !other.empty() && !options.no_cache) {
    options.readonly_folder = folder_path(other);
  }
  if (const std::string size = environment("LOSSC_CACHE_MAX_SIZE"); !size.empty()) {
    options.max_bytes = parse_byte_count(size, "LOSSC_CACHE_MAX_SIZE");
  }
  options.no_compile = flag("LOSSC_NO_COMPILE");
  return options;
}

std::int64_t parse_byte_count(const std::string& text, const std::string& what) {
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string unit =
      error == std::errc{} ? text.substr(static_cast<std::size_t>(stop - text.data())) : "";
  double factor = 0;
  if (unit.empty() || unit == "B") factor = 1;
  const std::string letters = "KMGT";
  const std::size_t power = unit.empty() ? std::string::npos : letters.find(unit[0]);
  if (power != std::string::npos && (unit.size() == 1 || unit.substr(1) == "iB")) {
    factor = std::pow(1024.0, static_cast<double>(power + 1));
  } else if (power != std::string::npos && unit.substr(1) == "B") {
    factor = std::pow(1000.0, static_cast<double>(power + 1));
  }
  const double bytes = value * factor;
  if (error != std::errc{} || factor == 0 || !(bytes >= 0) || bytes > 9e18) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{}: \"{}\" is no size; allowed are bytes or a number with K, M, G or T (powers of "
                    "1024), for example 512M",
                    what, text));
  }
  return static_cast<std::int64_t>(bytes);
}

}  // namespace lossc
