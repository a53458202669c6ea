#include "compiler/cuda/nvrtc_search.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>

namespace lossc::cuda {
namespace {

namespace fs = std::filesystem;

// Newest first. A soname carries the major version alone.
constexpr const char* kNames[] = {"libnvrtc.so.13", "libnvrtc.so.12"};

std::string variable(const char* name) {
  const char* value = ::secure_getenv(name);
  return value == nullptr ? "" : value;
}

std::vector<std::string> parts(std::string_view list) {
  std::vector<std::string> found;
  while (!list.empty()) {
    const std::size_t end = std::min(list.find(':'), list.size());
    if (end > 0) found.emplace_back(list.substr(0, end));
    list.remove_prefix(std::min(end + 1, list.size()));
  }
  return found;
}

/// A list of folders without repetitions.
class Folders {
 public:
  void add(const fs::path& folder) {
    std::string text = folder.lexically_normal().string();
    if (std::find(list_.begin(), list_.end(), text) == list_.end()) list_.push_back(std::move(text));
  }
  void add_toolkit(const fs::path& root) {
    add(root / "lib64");
    add(root / "lib");
#if defined(__aarch64__)
    add(root / "targets" / "sbsa-linux" / "lib");
#else
    add(root / "targets" / "x86_64-linux" / "lib");
#endif
  }
  // The wheels of CUDA 13 share one folder, those of CUDA 12 have one each.
  void add_site_packages(const fs::path& packages) {
    add(packages / "nvidia" / "cu13" / "lib");
    add(packages / "nvidia" / "cuda_nvrtc" / "lib");
  }
  // The site-packages of every Python below lib/ of a prefix.
  void add_prefix(const fs::path& prefix) {
    std::error_code ignored;
    std::vector<fs::path> pythons;
    for (const auto& entry : fs::directory_iterator(prefix / "lib", ignored)) {
      if (entry.path().filename().string().starts_with("python3")) pythons.push_back(entry.path());
    }
    std::sort(pythons.rbegin(), pythons.rend());
    for (const fs::path& python : pythons) {
      for (const char* name : {"site-packages", "dist-packages"}) {
        if (fs::is_directory(python / name, ignored)) add_site_packages(python / name);
      }
    }
  }
  std::vector<std::string> take() { return std::move(list_); }

 private:
  std::vector<std::string> list_;
};

// The folder of the file that this code is in: a Python extension's lies below its site-packages.
fs::path own_folder() {
  Dl_info info = {};
  if (::dladdr(reinterpret_cast<void*>(&nvrtc_folders), &info) == 0 || info.dli_fname == nullptr) return {};
  std::error_code ignored;
  return fs::weakly_canonical(info.dli_fname, ignored).parent_path();
}

}  // namespace

std::vector<std::string> nvrtc_folders() {
  Folders folders;
  for (const char* name : {"CUDA_HOME", "CUDA_PATH"}) {
    if (const std::string root = variable(name); !root.empty()) folders.add_toolkit(root);
  }
  folders.add_toolkit("/usr/local/cuda");
  folders.add_toolkit("/opt/cuda");
  for (const std::string& folder : parts(LOSSC_NVRTC_HINTS)) folders.add(folder);

  for (fs::path folder = own_folder(); folder.has_relative_path(); folder = folder.parent_path()) {
    const std::string name = folder.filename().string();
    if (name == "site-packages" || name == "dist-packages") folders.add_site_packages(folder);
  }
  for (const std::string& entry : parts(variable("PYTHONPATH"))) folders.add_site_packages(entry);
  for (const char* name : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const fs::path prefix = variable(name);
    if (prefix.empty()) continue;
    folders.add(prefix / "lib");
    folders.add_prefix(prefix);
  }
  if (const std::string home = variable("HOME"); !home.empty()) folders.add_prefix(fs::path(home) / ".local");
  folders.add_prefix("/usr/local");
  folders.add_prefix("/usr");
  return folders.take();
}

std::vector<NvrtcCandidate> nvrtc_candidates() {
  if (std::string chosen = variable("LOSSC_NVRTC"); !chosen.empty())
    return {{std::move(chosen), false, true}};
  std::vector<NvrtcCandidate> candidates;
  for (const char* name : kNames) candidates.push_back({name, true, false});
  for (const std::string& folder : nvrtc_folders()) {
    for (const char* name : kNames) {
      const fs::path file = fs::path(folder) / name;
      std::error_code ignored;
      if (fs::exists(file, ignored)) candidates.push_back({file.string(), false, false});
    }
  }
  for (const char* name : kNames) candidates.push_back({name, false, false});
  return candidates;
}

}  // namespace lossc::cuda
