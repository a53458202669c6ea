#include "runtime/cache/totals.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <sstream>
#include <string>
#include <thread>

#include "runtime/file.h"

namespace lossc {
namespace {

constexpr const char* kName = "totals";
constexpr std::size_t kMaxSize = 4096;

std::size_t index_of(Total total) {
  return static_cast<std::size_t>(total);
}

TotalValues read_values(int file) {
  TotalValues values{};
  std::string text(kMaxSize, '\0');
  const ssize_t size = ::pread(file, text.data(), text.size(), 0);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  std::istringstream lines(text);
  std::string name;
  std::int64_t value = 0;
  while (lines >> name >> value) {
    const auto it = std::find(kTotalNames.begin(), kTotalNames.end(), name);
    if (it != kTotalNames.end()) values[static_cast<std::size_t>(it - kTotalNames.begin())] = value;
  }
  return values;
}

constexpr int kLockTries = 20;

// Other processes hold it for microseconds.
bool lock_soon(int file) {
  for (int i = 0; i < kLockTries; ++i) {
    if (::flock(file, LOCK_EX | LOCK_NB) == 0) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds{1});
  }
  return false;
}

// Changes the file's values; false when other processes hold it for too long, or it cannot be written.
bool change(int folder, const std::function<void(TotalValues&)>& edit) {
  const FileDescriptor file(
      ::openat(folder, kName, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, 0600));
  if (file.get() < 0 || !lock_soon(file.get())) return false;
  TotalValues values = read_values(file.get());
  edit(values);
  std::string text;
  for (std::size_t i = 0; i < values.size(); ++i) text += fmt::format("{} {}\n", kTotalNames[i], values[i]);
  // One write of a few bytes in place. A shorter text than before leaves no rest behind: it is padded.
  text.resize(std::max<std::size_t>(text.size(), 512), '\n');
  const bool written = ::pwrite(file.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size());
  ::flock(file.get(), LOCK_UN);
  return written;
}

}  // namespace

TotalValues read_totals(int folder) {
  const FileDescriptor file(::openat(folder, kName, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  return file.get() < 0 ? TotalValues{} : read_values(file.get());
}

void PendingTotals::add(Total total, std::int64_t count) {
  pending_[index_of(total)].fetch_add(count, std::memory_order_relaxed);
}

void PendingTotals::flush(int folder) {
  if (empty()) return;
  TotalValues taken;
  for (std::size_t i = 0; i < taken.size(); ++i)
    taken[i] = pending_[i].exchange(0, std::memory_order_relaxed);
  const bool done = change(folder, [&](TotalValues& values) {
    for (std::size_t i = 0; i < taken.size(); ++i) values[i] += taken[i];
  });
  if (done) return;
  for (std::size_t i = 0; i < taken.size(); ++i) pending_[i].fetch_add(taken[i], std::memory_order_relaxed);
}

void PendingTotals::set_bytes(int folder, std::int64_t bytes) {
  pending_[index_of(Total::bytes)].store(0, std::memory_order_relaxed);
  change(folder, [&](TotalValues& values) {
    values[index_of(Total::bytes)] = bytes;
    values[index_of(Total::scanned)] = 1;
  });
}

bool PendingTotals::empty() const {
  return std::all_of(pending_.begin(), pending_.end(),
                     [](const auto& value) { return value.load(std::memory_order_relaxed) == 0; });
}

void PendingTotals::forget() {
  for (auto& value : pending_) value.store(0, std::memory_order_relaxed);
}

}  // namespace lossc
