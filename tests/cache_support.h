// What tests of the kernel cache have in common.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "lossc/error.h"
#include "runtime/cache/disk_cache.h"
#include "runtime/cache/kernel_cache.h"

namespace lossc::test {

namespace fs = std::filesystem;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string path = (fs::temp_directory_path() / "lossc-cache-XXXXXX").string();
    if (::mkdtemp(path.data()) == nullptr) throw Error(ErrorCode::io, "no temporary folder");
    path_ = path;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  /// A path inside, where nothing is yet.
  std::string path(const std::string& name = "cache") const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline KeyFields key_of(const std::string& name) {
  return KeyFields().add("backend", "test").add("plan", name);
}

inline KernelImage image_of(const std::string& name, std::size_t size = 1000) {
  KernelImage image;
  image.kind = "test";
  image.blobs["code"] = name + std::string(size, 'x');
  image.source = "source of " + name;
  image.info["title"] = name;
  return image;
}

/// A cache with its warnings and the number of compilations asked of it.
struct Counted {
  explicit Counted(CacheOptions options)
      : cache([&] {
          options.warn = [this](const std::string& text) { warnings.push_back(text); };
          return std::move(options);
        }()) {}
  explicit Counted(const std::string& folder) : Counted(CacheOptions{.folder = folder, .from = "a test"}) {}

  std::shared_ptr<const KernelImage> get(const std::string& name, std::size_t size = 1000) {
    return cache.get(key_of(name), [&] {
      ++compiled;
      return image_of(name, size);
    });
  }

  std::vector<std::string> warnings;
  std::atomic<int> compiled{0};
  KernelCache cache;
};

inline std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

inline std::string entry_path(const std::string& folder, const std::string& name) {
  const std::string key = key_of(name).digest();
  return folder + "/v1/" + key.substr(0, 2) + "/" + key.substr(2) + ".lossc";
}

}  // namespace lossc::test
