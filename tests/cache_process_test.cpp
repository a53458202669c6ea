// K1, K5: processes that share a folder, and processes that are killed.
#include <sys/wait.h>

#include <csignal>
#include <random>
#include <thread>

#include "tests/cache_support.h"
#include "tests/catch.h"

namespace lossc::test {
namespace {

using std::chrono::milliseconds;

// A byte in a file for each call: counts over processes.
void count_in(const std::string& path) {
  const int file = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
  const bool written = ::write(file, "x", 1) == 1;
  ::close(file);
  if (!written) ::_exit(3);
}

pid_t start(const std::function<bool()>& work) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    bool good = false;
    try {
      good = work();
    } catch (...) {  // reported by the status
    }
    ::_exit(good ? 0 : 1);
  }
  return child;
}

bool ended_well(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_CASE("K1: 16 processes on an empty folder compile once") {
  for (int round = 0; round < 5; ++round) {
    const TemporaryFolder folder;
    std::vector<pid_t> children;
    for (int i = 0; i < 16; ++i) {
      children.push_back(start([&] {
        Counted counted(folder.path());
        const auto image = counted.cache.get(key_of("shared"), [&] {
          count_in(folder.path("compiled"));
          std::this_thread::sleep_for(milliseconds(40));
          return image_of("shared");
        });
        return image->blobs == image_of("shared").blobs && counted.warnings.empty();
      }));
    }
    for (const pid_t child : children) CHECK(ended_well(child));
    CHECK(read_file(folder.path("compiled")) == "x");
    CHECK(DiskCache(folder.path(), false).list().size() == 1);
  }
}

TEST_CASE("K5: killed at any moment of writing, nobody reads half an entry or waits") {
  const TemporaryFolder folder;
  std::mt19937 random(7);
  DiskCache disk(folder.path(), false);
  int seen = 0;
  for (int round = 0; round < 60; ++round) {
    const pid_t child = start([&] {
      Counted counted(folder.path());
      for (int i = 0;; ++i) counted.get(std::to_string(round) + "." + std::to_string(i), 300'000);
      return true;
    });
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 12'000));
    ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, 0);
    const auto before = std::chrono::steady_clock::now();
    Counted next(folder.path());
    for (int i = 0; i < 3; ++i) {
      const std::string name = std::to_string(round) + "." + std::to_string(i);
      CHECK(next.get(name, 300'000)->blobs == image_of(name, 300'000).blobs);
    }
    CHECK(next.warnings.empty());
    CHECK(next.cache.counters().damaged == 0);
    CHECK(std::chrono::steady_clock::now() - before < std::chrono::seconds(5));
    for (const StoredEntry& entry : disk.list()) {
      CHECK(disk.load(entry.key).entry);
      CHECK(disk.remove(entry));
      ++seen;
    }
  }
  CHECK(seen >= 180);
}

TEST_CASE("a lock whose holder is stuck is not waited for without end") {
  const TemporaryFolder folder;
  const std::string key = key_of("a").digest();
  DiskCache disk(folder.path(), false);
  const CompileLock held = disk.lock(key, milliseconds(0));
  REQUIRE(held.state() == CompileLock::State::held);
  CHECK(disk.lock(key, milliseconds(5)).state() == CompileLock::State::timed_out);
  Counted counted(CacheOptions{.folder = folder.path(), .lock_wait = milliseconds(20)});
  counted.get("a");
  CHECK(counted.compiled == 1);
  CHECK(counted.cache.counters().lock_timeouts == 1);
  CHECK(counted.warnings.empty());
}

TEST_CASE("readers and a process that removes everything live side by side") {
  const TemporaryFolder folder;
  const pid_t remover = start([&] {
    DiskCache disk(folder.path(), false);
    for (int i = 0; i < 300; ++i) disk.shrink(0);
    return true;
  });
  std::vector<pid_t> readers;
  for (int i = 0; i < 3; ++i) {
    readers.push_back(start([&] {
      bool good = true;
      for (int round = 0; round < 100; ++round) {
        Counted counted(folder.path());
        for (const char* name : {"a", "b"}) good = good && counted.get(name)->blobs == image_of(name).blobs;
        good = good && counted.warnings.empty();
      }
      return good;
    }));
  }
  for (const pid_t reader : readers) CHECK(ended_well(reader));
  CHECK(ended_well(remover));
}

}  // namespace
}  // namespace lossc::test
