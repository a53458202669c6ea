#include "runtime/cache/disk_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <memory>
#include <random>
#include <thread>

#include "lossc/error.h"

namespace lossc {
namespace {

constexpr std::size_t kShardDigits = 2;
constexpr std::size_t kKeyDigits = 64;
constexpr std::string_view kSuffix = ".lossc";
constexpr const char* kLocks = "locks";
constexpr std::time_t kTouchAfter = 24 * 3600;  // the stamp of last use is exact to a day: few writes on hits
constexpr std::time_t kSweepAfter = 3600;       // no writer takes that long

[[noreturn]] void fail(const std::string& what) {
  throw Error(ErrorCode::io, fmt::format("{}: {}", what, std::strerror(errno)));
}

std::string relative_path(const std::string& key) {
  return fmt::format("{}/{}{}", key.substr(0, kShardDigits), key.substr(kShardDigits), kSuffix);
}

bool is_hex(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// Visits the names in a folder; none where it cannot be read.
void for_each_name(int parent, const char* name,
                   const std::function<void(int folder, const std::string&)>& visit) {
  const int descriptor = ::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (descriptor < 0) return;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::fdopendir(descriptor), ::closedir);
  if (!folder) {
    ::close(descriptor);
    return;
  }
  while (const dirent* entry = ::readdir(folder.get())) {
    const std::string child = entry->d_name;
    if (child != "." && child != "..") visit(descriptor, child);
  }
}

void for_each_shard(int layout, const std::function<void(const std::string&)>& visit) {
  for_each_name(layout, ".", [&](int, const std::string& name) {
    if (name.size() == kShardDigits && is_hex(name)) visit(name);
  });
}

bool unlink_if_same(int layout, const std::string& path, const FileIdentity& identity) {
  struct stat status = {};
  return ::fstatat(layout, path.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
         FileIdentity::of(status) == identity && ::unlinkat(layout, path.c_str(), 0) == 0;
}

void touch(int file, const struct stat& status) {
  if (std::time(nullptr) - status.st_mtim.tv_sec < kTouchAfter) return;
  const timespec times[2] = {{0, UTIME_OMIT}, {0, UTIME_NOW}};
  ::futimens(file, times);  // a read-only disk keeps its old stamps
}

void write_all(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(file, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("cannot write");
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

// A name that no other process on any host of a shared folder uses.
std::string temporary_name() {
  std::random_device random;
  return fmt::format(".{}-{:08x}{:08x}", ::getpid(), random(), random());
}

}  // namespace

std::string read_entry_file(int file, const CacheFolder* trusted, FileIdentity* identity) {
  struct stat status = {};
  if (::fstat(file, &status) != 0) fail("it cannot be looked at");
  if (identity != nullptr) *identity = FileIdentity::of(status);
  if (trusted != nullptr) trusted->check_file(status);
  if (status.st_size > kMaxEntryBytes) throw Error(ErrorCode::io, "it is larger than any kernel");
  // Read, not mapped: a file that is cut while it is mapped kills the process.
  std::string bytes(static_cast<std::size_t>(status.st_size), '\0');
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::read(file, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("it cannot be read");
    if (count == 0) throw Error(ErrorCode::io, "it is truncated");
    done += static_cast<std::size_t>(count);
  }
  if (trusted != nullptr && !trusted->readonly()) touch(file, status);
  return bytes;
}

CompileLock::~CompileLock() {
  // Unlocked by hand: a child that was forked meanwhile holds the same open file.
  if (file_.get() >= 0) ::flock(file_.get(), LOCK_UN);
}

DiskCache::Loaded DiskCache::load(const std::string& key) {
  const std::optional<FileDescriptor> layout = folder_.open();
  if (!layout) return {};
  const std::string path = relative_path(key);
  const FileDescriptor file(
      ::openat(layout->get(), path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  FileIdentity identity;
  std::string refused;
  if (file.get() < 0) {
    if (errno == ENOENT) return {};
    if (errno != ELOOP) return {std::nullopt, fmt::format("it cannot be opened: {}", std::strerror(errno))};
    struct stat status = {};
    ::fstatat(layout->get(), path.c_str(), &status, AT_SYMLINK_NOFOLLOW);
    identity = FileIdentity::of(status);
    refused = "it is a symbolic link";
  } else {
    try {
      CacheEntry entry = decode_entry(read_entry_file(file.get(), &folder_, &identity));
      if (entry.head.key == key) return {std::move(entry), ""};
      refused = "it is the entry of another key";
    } catch (const Error& error) {
      refused = error.what();
    }
  }
  pending_.add(Total::damaged);
  if (!folder_.readonly() && unlink_if_same(layout->get(), path, identity)) {
    pending_.add(Total::bytes, -identity.size);
  }
  return {std::nullopt, refused};
}

void DiskCache::store(const KeyFields& fields, const KernelImage& image) {
  store_bytes(fields.digest(), encode_entry(fields, image));
}

void DiskCache::store_bytes(const std::string& key, std::string_view bytes) {
  const FileDescriptor layout = folder_.make();
  const std::string shard = key.substr(0, kShardDigits);
  const std::string temporary = shard + "/" + temporary_name();
  if (::mkdirat(layout.get(), shard.c_str(), 0700) != 0 && errno != EEXIST) {
    fail(folder_.path() + " cannot be written to");
  }
  FileDescriptor file(
      ::openat(layout.get(), temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (file.get() < 0) fail(folder_.path() + " cannot be written to");
  try {
    write_all(file.get(), bytes);
    // Some file systems know no fsync; what a crash leaves of their files, the digest finds.
    if (::fsync(file.get()) != 0 && errno != EINVAL) fail("cannot write");
    if (!file.close()) fail("cannot write");
    if (::renameat(layout.get(), temporary.c_str(), layout.get(), relative_path(key).c_str()) != 0) {
      fail("cannot name a file");
    }
  } catch (const Error& error) {
    ::unlinkat(layout.get(), temporary.c_str(), 0);
    throw Error(ErrorCode::io, fmt::format("{}: {}", folder_.path(), error.what()));
  }
  pending_.add(Total::writes);
  pending_.add(Total::bytes, static_cast<std::int64_t>(bytes.size()));
  pending_.flush(layout.get());
}

bool DiskCache::remove(const std::string& key) {
  const std::optional<FileDescriptor> layout = folder_.open();
  if (!layout) return false;
  const std::string path = relative_path(key);
  struct stat status = {};
  if (::fstatat(layout->get(), path.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 ||
      ::unlinkat(layout->get(), path.c_str(), 0) != 0) {
    return false;
  }
  pending_.add(Total::bytes, -status.st_size);
  return true;
}

bool DiskCache::remove(const StoredEntry& entry) {
  const std::optional<FileDescriptor> layout = folder_.open();
  if (!layout || !unlink_if_same(layout->get(), relative_path(entry.key), entry.identity)) return false;
  pending_.add(Total::bytes, -entry.bytes);
  return true;
}

CompileLock DiskCache::lock(const std::string& key, std::chrono::milliseconds wait) {
  using State = CompileLock::State;
  try {
    const FileDescriptor layout = folder_.make();
    ::mkdirat(layout.get(), kLocks, 0700);
    const std::string name = fmt::format("{}/{}", kLocks, key.substr(0, kShardDigits));
    FileDescriptor file(
        ::openat(layout.get(), name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (file.get() < 0) return {State::unavailable, FileDescriptor(-1)};
    const auto deadline = std::chrono::steady_clock::now() + wait;
    std::chrono::milliseconds pause{1};
    while (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno != EWOULDBLOCK && errno != EINTR) return {State::unavailable, FileDescriptor(-1)};
      if (std::chrono::steady_clock::now() >= deadline) return {State::timed_out, FileDescriptor(-1)};
      std::this_thread::sleep_for(pause);
      pause = std::min(pause * 2, std::chrono::milliseconds{16});
    }
    return {State::held, std::move(file)};
  } catch (const std::exception&) {
    return {State::unavailable, FileDescriptor(-1)};  // what is wrong with the folder, store() says
  }
}

std::vector<StoredEntry> DiskCache::list() const {
  std::vector<StoredEntry> entries;
  const std::optional<FileDescriptor> layout = folder_.open();
  if (!layout) return entries;
  for_each_shard(layout->get(), [&](const std::string& shard) {
    for_each_name(layout->get(), shard.c_str(), [&](int folder, const std::string& name) {
      struct stat status = {};
      const std::string key = shard + name.substr(0, name.size() - std::min(name.size(), kSuffix.size()));
      if (!name.ends_with(kSuffix) || key.size() != kKeyDigits || !is_hex(key) ||
          ::fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0) {
        return;
      }
      entries.push_back({key, fmt::format("{}/{}/{}", folder_.path(), kLayoutFolder, relative_path(key)),
                         status.st_size, status.st_mtim.tv_sec, FileIdentity::of(status)});
    });
  });
  std::sort(entries.begin(), entries.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
  return entries;
}

std::pair<EntryHead, KeyFields> DiskCache::peek(const StoredEntry& entry) const {
  const FileDescriptor file(::open(entry.path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) fail("it cannot be opened");
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) fail("it cannot be looked at");
  folder_.check_file(status);
  const auto size = static_cast<std::uint64_t>(status.st_size);
  const auto read = [&](std::size_t count, std::size_t offset) {
    std::string bytes(count, '\0');
    const ssize_t got = ::pread(file.get(), bytes.data(), count, static_cast<off_t>(offset));
    bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    return bytes;
  };
  const std::size_t header = header_size(read(kEntryPrefix, 0), size);
  EntryHead head = decode_head(read(header, kEntryPrefix), size);
  if (size > static_cast<std::uint64_t>(kMaxEntryBytes))
    throw Error(ErrorCode::io, "it is larger than any kernel");
  KeyFields fields = KeyFields::parse(read(head.sections.front().second, kEntryPrefix + header));
  return {std::move(head), std::move(fields)};
}

std::int64_t DiskCache::shrink(std::int64_t bytes) {
  const std::optional<FileDescriptor> layout = folder_.open();
  if (!layout) return 0;
  const std::time_t now = std::time(nullptr);
  for_each_shard(layout->get(), [&](const std::string& shard) {
    for_each_name(layout->get(), shard.c_str(), [&](int folder, const std::string& name) {
      struct stat status = {};
      if (name.starts_with('.') && ::fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
          now - status.st_mtim.tv_sec > kSweepAfter) {
        ::unlinkat(folder, name.c_str(), 0);
      }
    });
  });
  std::vector<StoredEntry> entries = list();
  std::stable_sort(entries.begin(), entries.end(), [](const StoredEntry& a, const StoredEntry& b) {
    const timespec x = a.identity.modified, y = b.identity.modified;
    return x.tv_sec != y.tv_sec ? x.tv_sec < y.tv_sec : x.tv_nsec < y.tv_nsec;
  });
  std::int64_t total = 0, removed = 0;
  for (const StoredEntry& entry : entries) total += entry.bytes;
  for (const StoredEntry& entry : entries) {
    if (total <= bytes) break;
    // Gone or used by now: another process sees to it, or had better keep it.
    if (unlink_if_same(layout->get(), relative_path(entry.key), entry.identity)) ++removed;
    total -= entry.bytes;
  }
  pending_.add(Total::evictions, removed);
  pending_.set_bytes(layout->get(), total);
  pending_.flush(layout->get());
  return removed;
}

std::int64_t DiskCache::shrink_if_over(std::int64_t max_bytes) {
  const TotalValues values = totals();
  const bool scanned = values[static_cast<std::size_t>(Total::scanned)] > 0;
  if (scanned && values[static_cast<std::size_t>(Total::bytes)] <= max_bytes) return 0;
  const std::vector<StoredEntry> entries = list();
  std::int64_t total = 0, newest = 0, newest_time = 0;
  for (const StoredEntry& entry : entries) {
    total += entry.bytes;
    if (entry.last_used >= newest_time) {
      newest_time = entry.last_used;
      newest = entry.bytes;
    }
  }
  if (total <= max_bytes) {
    if (const std::optional<FileDescriptor> layout = folder_.open()) pending_.set_bytes(layout->get(), total);
    return 0;
  }
  // What was just written stays if it fits at all.
  return shrink(std::max(max_bytes / 5 * 4, newest <= max_bytes ? newest : 0));
}

TotalValues DiskCache::totals() const {
  const std::optional<FileDescriptor> layout = folder_.open();
  return layout ? read_totals(layout->get()) : TotalValues{};
}

void DiskCache::flush_totals() {
  if (pending_.empty() || folder_.readonly()) return;
  if (const std::optional<FileDescriptor> layout = folder_.open()) pending_.flush(layout->get());
}

}  // namespace lossc
