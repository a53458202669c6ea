// The kernel cache: keys, entry files, levels, what is damaged, size, archives.
#include <fmt/format.h>
#include <sys/stat.h>

#include <thread>

#include "runtime/cache/archive.h"
#include "tests/cache_support.h"
#include "tests/catch.h"

namespace lossc::test {
namespace {

TEST_CASE("key fields are framed: what differs has another digest") {
  const auto digest = [](std::vector<std::pair<std::string, std::string>> fields) {
    KeyFields key;
    for (auto& [name, value] : fields) key.add(name, value);
    return key.digest();
  };
  CHECK(digest({{"a", "b"}}).size() == 64);
  CHECK(digest({{"a", "bc"}}) != digest({{"ab", "c"}}));
  CHECK(digest({{"a", "x|b=y"}}) != digest({{"a", "x"}, {"b", "y"}}));
  CHECK(digest({{"a", "1"}, {"b", "2"}}) != digest({{"b", "2"}, {"a", "1"}}));
  CHECK(digest({{"a", ""}}) != digest({}));
  const KeyFields key = KeyFields().add("plan", std::string("x\0y", 3)).add("target", "znver3");
  CHECK(KeyFields::parse(key.bytes()).digest() == key.digest());
  CHECK_THROWS_AS(KeyFields().add("a", "1").add("a", "2"), Error);
  CHECK_THROWS_AS(KeyFields().add_unknown("cpu").digest(), Error);
  for (std::size_t size = 1; size < key.bytes().size(); ++size) {
    if (size == 12 + 4 + 3) continue;  // the end of the first field
    CHECK_THROWS_AS(KeyFields::parse(key.bytes().substr(0, size)), Error);
  }
}

TEST_CASE("an entry holds all of an image, and every damage is seen") {
  KernelImage image = image_of("a", 40);
  image.log = "2 registers";
  image.blobs["empty"] = "";
  const std::string file = encode_entry(key_of("a"), image);
  const CacheEntry entry = decode_entry(file);
  CHECK(entry.head.key == key_of("a").digest());
  CHECK(entry.image.blobs == image.blobs);
  CHECK(entry.image.source == image.source);
  CHECK(entry.image.log == image.log);
  CHECK(entry.image.info == image.info);
  CHECK(entry.image.kind == "test");
  for (std::size_t size = 0; size < file.size(); ++size) {
    CHECK_THROWS_AS(decode_entry(file.substr(0, size)), Error);
  }
  for (std::size_t bit = 0; bit < 8 * file.size(); ++bit) {
    std::string flipped = file;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << (bit % 8)));
    CHECK_THROWS_AS(decode_entry(flipped), Error);
  }
  CHECK_THROWS_AS(decode_entry(file + "x"), Error);
  image.blobs["source"] = "";
  CHECK_THROWS_AS(encode_entry(key_of("a"), image), Error);
}

TEST_CASE("memory, then disk, then the compiler") {
  const TemporaryFolder folder;
  {
    Counted first(folder.path());
    CHECK(first.get("a") == first.get("a"));
    CHECK(first.cache.counters().compilations == 1);
    CHECK(first.cache.counters().memory_hits == 1);
    CHECK(first.cache.counters().writes == 1);
    CHECK(first.warnings.empty());
  }
  Counted second(folder.path());
  CHECK(second.get("a")->blobs == image_of("a").blobs);
  CHECK(second.get("b")->source == "source of b");
  CHECK(second.compiled == 1);
  CHECK(second.cache.counters().disk_hits == 1);
  struct stat status = {};
  REQUIRE(::stat(folder.path().c_str(), &status) == 0);
  CHECK((status.st_mode & 0777U) == 0700);
  REQUIRE(::stat(entry_path(folder.path(), "a").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777U) == 0600);
}

TEST_CASE("threads that want one key wait for one compiler, and get its exception") {
  const TemporaryFolder folder;
  Counted counted(folder.path());
  std::vector<std::thread> threads;
  std::atomic<int> right{0}, failed{0}, calls{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      const auto image = counted.cache.get(key_of("slow"), [&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        ++counted.compiled;
        return image_of("slow");
      });
      if (image->info["title"] == "slow") ++right;
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(right == 8);
  CHECK(counted.compiled == 1);
  threads.clear();
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      try {
        counted.cache.get(key_of("bad"), [&]() -> KernelImage {
          ++calls;
          std::this_thread::sleep_for(std::chrono::milliseconds(30));
          throw Error(ErrorCode::compile_failed, "no");
        });
      } catch (const Error&) {
        ++failed;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(failed == 4);
  CHECK(calls >= 1);
  CHECK(counted.get("bad")->info["title"] == "bad");  // a failure is not kept
}

TEST_CASE("K2: a damaged, swapped or renamed entry is removed and compiled once more") {
  const TemporaryFolder folder;
  Counted(folder.path()).get("a");
  Counted(folder.path()).get("b");
  const std::string path = entry_path(folder.path(), "a"), other = entry_path(folder.path(), "b");
  const std::string good = read_file(path);
  const std::vector<std::pair<std::string, std::function<void()>>> damages = {
      {"truncated", [&] { fs::resize_file(path, good.size() / 2); }},
      {"empty", [&] { fs::resize_file(path, 0); }},
      {"bit flip",
       [&] {
         std::string bytes = good;
         bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 4);
         write_file(path, bytes);
       }},
      {"longer", [&] { write_file(path, good + "x"); }},
      {"another key's", [&] { write_file(path, read_file(other)); }},
      {"a folder",
       [&] {
         fs::remove(path);
         fs::create_symlink(other, path);
       }},
      {"others may write", [&] { ::chmod(path.c_str(), 0666); }},
  };
  for (const auto& [name, damage] : damages) {
    INFO(name);
    damage();
    Counted counted(folder.path());
    CHECK(counted.get("a")->blobs == image_of("a").blobs);
    CHECK(counted.compiled == 1);
    CHECK(counted.warnings.size() == 1);
    CHECK(counted.cache.counters().damaged == 1);
    Counted again(folder.path());
    CHECK(again.get("a")->blobs == image_of("a").blobs);
    CHECK(again.compiled == 0);
    CHECK(again.warnings.empty());
  }
  CHECK(Counted(folder.path()).get("b")->info["title"] == "b");
}

TEST_CASE("an image that a loader refuses is compiled once more") {
  const TemporaryFolder folder, shared;
  Counted(shared.path()).get("a");
  Counted counted(CacheOptions{.folder = folder.path(), .readonly_folder = shared.path()});
  counted.get("a");
  CHECK(counted.compiled == 0);  // from the read-only folder
  counted.cache.discard(key_of("a"));
  counted.get("a");
  CHECK(counted.compiled == 1);
  CHECK(counted.cache.counters().discarded == 1);
  CHECK(fs::exists(entry_path(shared.path(), "a")));
  Counted next(CacheOptions{.folder = folder.path(), .readonly_folder = shared.path()});
  next.get("a");
  CHECK(next.compiled == 0);
  CHECK(counted.warnings.empty());
}

TEST_CASE("no compiling: a miss is an error that says what to do") {
  const TemporaryFolder folder;
  Counted(folder.path()).get("a");
  Counted counted(CacheOptions{.folder = folder.path(), .no_compile = true});
  CHECK(counted.get("a")->info["title"] == "a");
  try {
    counted.get("b");
    FAIL("no error was thrown");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::compile_failed);
    CHECK(std::string(error.what()).find("LOSSC_NO_COMPILE") != std::string::npos);
    CHECK(std::string(error.what()).find(folder.path()) != std::string::npos);
  }
}

TEST_CASE("the size is bounded: what was used least recently goes first") {
  const TemporaryFolder folder;
  const auto set_age = [&](const std::string& name, int days) {
    fs::last_write_time(entry_path(folder.path(), name),
                        fs::file_time_type::clock::now() - std::chrono::hours(24 * days));
  };
  const CacheOptions options{.folder = folder.path(), .max_bytes = 60'000};
  for (const char* name : {"a", "b", "c", "d", "e"}) Counted(options).get(name, 10'000);
  set_age("a", 9);
  set_age("b", 8);
  set_age("c", 7);
  Counted(options).get("a", 10'000);  // used again: it stays
  Counted counted(options);
  counted.get("f", 15'000);
  CHECK(counted.cache.counters().evictions == 2);
  CHECK(fs::exists(entry_path(folder.path(), "a")));
  CHECK_FALSE(fs::exists(entry_path(folder.path(), "b")));
  CHECK_FALSE(fs::exists(entry_path(folder.path(), "c")));
  CHECK(fs::exists(entry_path(folder.path(), "f")));
}

TEST_CASE("left-over files of writers on any host: never listed, removed after an hour") {
  const TemporaryFolder folder;
  Counted(folder.path()).get("a");
  const std::string shard = fs::path(entry_path(folder.path(), "a")).parent_path();
  // Two hosts whose processes have one number.
  const std::string old_one = shard + "/.17-00112233445566aa", other = shard + "/.17-ffeeddccbbaa9988";
  write_file(old_one, "half an ent");
  write_file(other, "being written");
  fs::last_write_time(old_one, fs::file_time_type::clock::now() - std::chrono::hours(2));
  DiskCache disk(folder.path(), false);
  CHECK(disk.list().size() == 1);
  CHECK(disk.shrink(1 << 20) == 0);
  CHECK_FALSE(fs::exists(old_one));
  CHECK(fs::exists(other));
}

TEST_CASE("export and import: damaged entries stay out, whole ones arrive") {
  const TemporaryFolder folder;
  for (const char* name : {"a", "b", "c"}) Counted(folder.path()).get(name);
  write_file(entry_path(folder.path(), "b"), "nonsense");
  const DiskCache from(folder.path(), false);
  const std::string file = folder.path("kernels.tar");
  const ExportResult out = export_entries(from, from.list(), file);
  CHECK(out.entries == 2);
  CHECK(out.refused.size() == 1);

  DiskCache to(folder.path("other"), false);
  ImportResult in = import_entries(to, file);
  CHECK(in.added == 2);
  in = import_entries(to, file);
  CHECK(in.added == 0);
  CHECK(in.present == 2);
  Counted counted(folder.path("other"));
  counted.get("a");
  counted.get("c");
  CHECK(counted.compiled == 0);

  const std::string bytes = read_file(file);
  for (const std::size_t size : {std::size_t{0}, std::size_t{100}, std::size_t{512}, bytes.size() / 2}) {
    write_file(file, bytes.substr(0, size));
    DiskCache fresh(folder.path(fmt::format("cut{}", size)), false);
    CHECK_THROWS_AS(import_entries(fresh, file), Error);
  }
  std::string flipped = bytes;
  flipped[700] = static_cast<char>(flipped[700] ^ 1);
  write_file(file, flipped);
  DiskCache fresh(folder.path("flipped"), false);
  CHECK(import_entries(fresh, file).refused.size() == 1);
}

}  // namespace
}  // namespace lossc::test
