// lossc cache: looks after the folder of compiled kernels.
#include "tools/cache.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <ctime>

#include "lossc/error.h"
#include "tools/verbs.h"

namespace lossc::cli {
namespace {

constexpr std::size_t kShortKey = 12;
constexpr std::int64_t kMinute = 60, kHour = 60 * kMinute, kDay = 24 * kHour;

}  // namespace

Folders::Folders() : options_(CacheOptions::from_environment()) {
  if (!options_.folder.empty()) all_.push_back(&own_.emplace(options_.folder, false));
  if (!options_.readonly_folder.empty()) all_.push_back(&readonly_.emplace(options_.readonly_folder, true));
}

DiskCache& Folders::own() {
  if (own_) return *own_;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("there is no cache folder: {}; set LOSSC_CACHE_DIR", options_.from));
}

std::vector<Found> all_entries(const Folders& folders) {
  std::vector<Found> found;
  for (DiskCache* cache : folders.all()) {
    for (StoredEntry& entry : cache->list()) found.push_back({cache, std::move(entry)});
  }
  return found;
}

Found find_entry(const Folders& folders, const std::string& prefix) {
  std::vector<Found> matching;
  const std::vector<Found> all = all_entries(folders);
  for (const Found& found : all) {
    // The same key in the second folder is the same kernel.
    if (found.entry.key.starts_with(prefix) && !prefix.empty() &&
        (matching.empty() || matching.back().entry.key != found.entry.key)) {
      matching.push_back(found);
    }
  }
  if (matching.size() == 1) return matching.front();
  if (matching.empty()) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("no entry has a key that begins with \"{}\" (of {}); `lossc cache list` shows them",
                    prefix, all.size()));
  }
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("{} entries have keys that begin with \"{}\", among them {} and {}; give more digits",
                  matching.size(), prefix, short_key(matching[0].entry.key),
                  short_key(matching[1].entry.key)));
}

CacheEntry read_entry(const std::string& path) {
  try {
    const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (file.get() < 0)
      throw Error(ErrorCode::io, fmt::format("it cannot be opened: {}", std::strerror(errno)));
    return decode_entry(read_entry_file(file.get(), nullptr, nullptr));
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", path, error.what()));
  }
}

std::string short_key(const std::string& key) {
  return key.substr(0, kShortKey);
}

std::string age(std::int64_t seconds_since_1970) {
  const std::int64_t seconds = std::max<std::int64_t>(std::time(nullptr) - seconds_since_1970, 0);
  if (seconds < kMinute) return "now";
  if (seconds < kHour) return fmt::format("{} min", seconds / kMinute);
  if (seconds < 2 * kDay) return fmt::format("{} h", seconds / kHour);
  return fmt::format("{} days", seconds / kDay);
}

std::string info_text(const EntryHead& head, const char* name) {
  const auto it = head.info.is_object() ? head.info.find(name) : head.info.end();
  return it != head.info.end() && it->is_string() ? it->get<std::string>() : "";
}

std::string target_of(const EntryHead& head, const KeyFields& fields) {
  if (const std::string text = info_text(head, "target"); !text.empty()) return text;
  for (const char* name : {"target", "arch", "cpu"}) {
    if (const KeyField* field = fields.find(name)) return field->value;
  }
  return "";
}

std::int64_t parse_age(const std::string& text, const std::string& what) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  const std::string unit(error == std::errc{} ? stop : end, end);
  const std::int64_t factor = unit == "s"   ? 1
                              : unit == "m" ? kMinute
                              : unit == "h" ? kHour
                              : unit == "d" ? kDay
                                            : 0;
  if (error != std::errc{} || factor == 0 || value < 0 || value > 1'000'000) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}: \"{}\" is no age; allowed are numbers with s, m, h or d, for example 30d",
                            what, text));
  }
  return value * factor;
}

void add_cache(CLI::App& app, int& status) {
  CLI::App* verb = app.add_subcommand("cache", "Look after the folder of compiled kernels");
  verb->require_subcommand(1);
  verb->footer(
      "The folder: LOSSC_CACHE_DIR, else XDG_CACHE_HOME/lossc, else ~/.cache/lossc. A second one that is "
      "only read:\n"
      "LOSSC_CACHE_READONLY_DIR. KEY is the beginning of a key, as `lossc cache list` shows it. "
      "docs/cache.md tells\n"
      "all.");
  add_cache_list(*verb);
  add_cache_show(*verb);
  add_cache_verify(*verb, status);
  add_cache_why(*verb);
  add_cache_change(*verb, status);
}

}  // namespace lossc::cli
