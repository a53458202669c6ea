// K4: folders that cannot or must not be used cost one warning; where the folder is looked for.
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>

#include "tests/cache_support.h"
#include "tests/catch.h"

namespace lossc::test {
namespace {

// The work goes on from memory, with one warning that says `why`.
void goes_on_without(const std::string& folder, const std::string& why) {
  INFO(folder << " " << why);
  Counted counted(folder);
  for (const char* name : {"x", "y", "x", "y"}) CHECK(counted.get(name)->info["title"] == name);
  CHECK(counted.compiled == 2);
  REQUIRE(counted.warnings.size() == 1);
  CHECK(counted.warnings[0].find(why) != std::string::npos);
}

// Runs `work` in a child with other rights; its exit status says whether it went well.
bool in_child(const std::function<bool()>& work) {
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
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_CASE("K4: a folder that is a link, writable for others, or no folder is not used") {
  const TemporaryFolder folder;
  Counted(folder.path("real")).get("x");
  fs::create_directory_symlink(folder.path("real"), folder.path("link"));
  goes_on_without(folder.path("link"), "symbolic link");
  ::chmod(folder.path("real").c_str(), 0777);
  goes_on_without(folder.path("real"), "written to by others");
  ::chmod(folder.path("real").c_str(), 0720);
  goes_on_without(folder.path("real"), "written to by others");
  ::chmod(folder.path("real").c_str(), 0700);
  ::chmod((folder.path("real") + "/v1").c_str(), 0777);
  goes_on_without(folder.path("real"), "written to by others");
  write_file(folder.path("file"), "");
  goes_on_without(folder.path("file"), "no folder");
  goes_on_without(folder.path("file") + "/below", "");
}

TEST_CASE("K4: a missing folder is made, with the folders above it") {
  const TemporaryFolder folder;
  Counted counted(folder.path("a/b/c"));
  counted.get("x");
  CHECK(counted.warnings.empty());
  fs::remove_all(folder.path("a"));
  counted.get("y");  // removed while the process runs
  CHECK(counted.warnings.empty());
  CHECK(fs::exists(entry_path(folder.path("a/b/c"), "y")));
}

TEST_CASE("K4: another user's folder is not used; the administrator's may be read") {
  if (::geteuid() != 0) return;  // only root makes folders of another user
  const TemporaryFolder folder;
  Counted(folder.path("mine")).get("x");
  REQUIRE(::chown(folder.path("mine").c_str(), 65534, 65534) == 0);
  goes_on_without(folder.path("mine"), "another user");
  REQUIRE(::chown(folder.path("mine").c_str(), 0, 0) == 0);
  REQUIRE(::chown(entry_path(folder.path("mine"), "x").c_str(), 65534, 65534) == 0);
  Counted counted(folder.path("mine"));
  counted.get("x");
  CHECK(counted.compiled == 1);
  CHECK(counted.warnings.size() == 1);

  // Another user reads what root has prepared.
  ::chmod(fs::path(folder.path()).parent_path().c_str(), 0755);
  for (const auto& entry : fs::recursive_directory_iterator(folder.path("mine"))) {
    ::chmod(entry.path().c_str(), entry.is_directory() ? 0755 : 0644);
  }
  ::chmod(folder.path("mine").c_str(), 0755);
  CHECK(in_child([&] {
    if (::setgid(65534) != 0 || ::setuid(65534) != 0) return false;
    Counted user(CacheOptions{.readonly_folder = folder.path("mine")});
    user.get("x");
    return user.compiled == 0 && user.warnings.empty();
  }));
}

TEST_CASE("K4: a folder that cannot be written to") {
  const TemporaryFolder folder;
  Counted(folder.path()).get("x");
  ::chmod(fs::path(folder.path()).parent_path().c_str(), 0755);
  const bool root = ::geteuid() == 0;
  if (root) {
    for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
      REQUIRE(::chown(entry.path().c_str(), 65534, 65534) == 0);
    }
    REQUIRE(::chown(folder.path().c_str(), 65534, 65534) == 0);
  }
  for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
    if (entry.is_directory()) ::chmod(entry.path().c_str(), 0500);
  }
  ::chmod(folder.path().c_str(), 0500);
  CHECK(in_child([&] {
    if (root && (::setgid(65534) != 0 || ::setuid(65534) != 0)) return false;
    Counted counted(folder.path());
    counted.get("x");                                       // what is there is used
    for (const char* name : {"y", "z"}) counted.get(name);  // what is not is kept in memory
    counted.get("y");
    return counted.compiled == 2 && counted.warnings.size() == 1 &&
           counted.warnings[0].find("cannot be written to") != std::string::npos;
  }));
  for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
    if (entry.is_directory()) ::chmod(entry.path().c_str(), 0700);
  }
  ::chmod(folder.path().c_str(), 0700);
}

TEST_CASE("K4: a write that fails half-way leaves nothing behind") {
  const TemporaryFolder folder;
  CHECK(in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit = {5000, 5000};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return false;
    Counted counted(folder.path());
    counted.get("large", 100'000);
    counted.get("larger", 200'000);
    counted.get("small", 100);
    return counted.warnings.size() == 1 && counted.cache.counters().write_errors == 2 &&
           counted.cache.counters().writes == 1;
  }));
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
    const std::string name = entry.path().filename();
    CHECK_FALSE(name.starts_with('.'));
    files += name.ends_with(".lossc") ? 1 : 0;
  }
  CHECK(files == 1);
}

TEST_CASE("K4: no folder at all costs one warning, unless that was asked for") {
  Counted counted(CacheOptions{.from = "HOME is unset"});
  for (const char* name : {"x", "y", "x"}) counted.get(name);
  CHECK(counted.compiled == 2);
  REQUIRE(counted.warnings.size() == 1);
  CHECK(counted.warnings[0].find("HOME is unset") != std::string::npos);
  Counted silent(CacheOptions{.from = "LOSSC_NO_CACHE is set", .no_cache = true});
  silent.get("x");
  CHECK(silent.warnings.empty());
}

TEST_CASE("where the folder is looked for") {
  CHECK(in_child([] {
    const auto folder = [] { return CacheOptions::from_environment().folder; };
    for (const char* name : {"LOSSC_CACHE_DIR", "LOSSC_NO_CACHE", "LOSSC_CACHE_READONLY_DIR",
                             "LOSSC_NO_COMPILE", "LOSSC_CACHE_MAX_SIZE", "XDG_CACHE_HOME"}) {
      ::unsetenv(name);
    }
    bool good = true;
    ::setenv("HOME", "/h", 1);
    good = good && folder() == "/h/.cache/lossc";
    ::setenv("XDG_CACHE_HOME", "/x/", 1);
    good = good && folder() == "/x/lossc";
    ::setenv("XDG_CACHE_HOME", "relative", 1);
    good = good && folder() == "/h/.cache/lossc";
    ::setenv("LOSSC_CACHE_DIR", "/own//", 1);
    good = good && folder() == "/own";
    ::setenv("LOSSC_CACHE_DIR", "here", 1);
    good = good && folder() == (fs::current_path() / "here").string();
    ::setenv("LOSSC_CACHE_DIR", "", 1);
    ::unsetenv("HOME");
    ::unsetenv("XDG_CACHE_HOME");
    good = good && (folder().empty() || folder().ends_with("/.cache/lossc"));  // passwd's
    ::setenv("LOSSC_NO_CACHE", "1", 1);
    good = good && folder().empty();
    ::setenv("LOSSC_CACHE_MAX_SIZE", "64M", 1);
    return good && CacheOptions::from_environment().max_bytes == 64 << 20;
  }));
  CHECK(parse_byte_count("1.5K", "x") == 1536);
  CHECK(parse_byte_count("2GB", "x") == 2'000'000'000);
  for (const char* wrong : {"", "x", "1X", "-1", "1KK", "nan"})
    CHECK_THROWS_AS(parse_byte_count(wrong, "x"), Error);
}

}  // namespace
}  // namespace lossc::test
