#include "compiler/cuda/nvrtc.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nvrtc.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <optional>
#include <utility>

#include "compiler/cuda/nvrtc_log.h"
#include "compiler/cuda/nvrtc_search.h"
#include "compiler/cuda/shared_library.h"
#include "lossc/error.h"

namespace lossc::cuda {
namespace {

// The functions that are called; all exist since 12.0.
#define LOSSC_NVRTC_FUNCTIONS(X) \
  X(nvrtcVersion)                \
  X(nvrtcGetErrorString)         \
  X(nvrtcGetNumSupportedArchs)   \
  X(nvrtcGetSupportedArchs)      \
  X(nvrtcCreateProgram)          \
  X(nvrtcDestroyProgram)         \
  X(nvrtcCompileProgram)         \
  X(nvrtcGetPTXSize)             \
  X(nvrtcGetPTX)                 \
  X(nvrtcGetCUBINSize)           \
  X(nvrtcGetCUBIN)               \
  X(nvrtcGetProgramLogSize)      \
  X(nvrtcGetProgramLog)

struct Nvrtc {
#define LOSSC_NVRTC_DECLARE(name) decltype(&::name) name = nullptr;
  LOSSC_NVRTC_FUNCTIONS(LOSSC_NVRTC_DECLARE)
#undef LOSSC_NVRTC_DECLARE
  NvrtcBuild build;
  std::string builtins_tried;  ///< Where the builtins library was looked for in vain.

  bool at_least(int major, int minor) const {
    return build.major != major ? build.major > major : build.minor >= minor;
  }
};

/// What the search found. Never destroyed.
struct State {
  std::mutex mutex;
  bool searched = false;
  std::atomic<const Nvrtc*> nvrtc = nullptr;
  std::vector<std::string> tried;
};

State& state() {
  static State* const only = [] {
    auto* made = new State;
    // A child must not inherit a lock whose owner it has no copy of.
    ::pthread_atfork([] { state().mutex.lock(); }, [] { state().mutex.unlock(); },
                     [] { state().mutex.unlock(); });
    return made;
  }();
  return *only;
}

// Fills the functions; returns the first that is missing.
std::optional<std::string> bind(const SharedLibrary& library, Nvrtc& nvrtc) {
#define LOSSC_NVRTC_BIND(name)                                                \
  nvrtc.name = reinterpret_cast<decltype(nvrtc.name)>(library.symbol(#name)); \
  if (nvrtc.name == nullptr) return #name;
  LOSSC_NVRTC_FUNCTIONS(LOSSC_NVRTC_BIND)
#undef LOSSC_NVRTC_BIND
  return std::nullopt;
}

// NVRTC opens its builtins library by its soname in the first compilation, and does not look next to itself.
// Opened here by its path, it is the one that NVRTC then gets.
void preload_builtins(Nvrtc& nvrtc) {
  namespace fs = std::filesystem;
  const fs::path path = nvrtc.build.path;
  const char* variant = path.filename().string().find(".alt.") == std::string::npos ? "" : ".alt";
  const std::string soname =
      fmt::format("libnvrtc-builtins{}.so.{}.{}", variant, nvrtc.build.major, nvrtc.build.minor);
  std::error_code ignored;
  std::vector<std::string> names = {(path.parent_path() / soname).string()};
  const fs::path real = fs::weakly_canonical(path, ignored);
  if (!real.empty() && real.parent_path() != path.parent_path()) {
    names.push_back((real.parent_path() / soname).string());
  }
  names.push_back(soname);
  for (const std::string& name : names) {
    if (const SharedLibrary library = open_library(name)) {
      nvrtc.build.builtins_path = library.path;
      nvrtc.build.builtins_build_id = build_id(library);
      return;
    }
  }
  nvrtc.builtins_tried = fmt::format("{}", fmt::join(names, ", "));
}

std::vector<int> supported_archs(const Nvrtc& nvrtc) {
  int count = 0;
  if (nvrtc.nvrtcGetNumSupportedArchs(&count) != NVRTC_SUCCESS || count <= 0) return {};
  std::vector<int> archs(static_cast<std::size_t>(count));
  if (nvrtc.nvrtcGetSupportedArchs(archs.data()) != NVRTC_SUCCESS) return {};
  std::sort(archs.begin(), archs.end());
  return archs;
}

// Opens one candidate; says in `note` why it will not do.
std::optional<Nvrtc> open_candidate(const NvrtcCandidate& candidate, std::string& note) {
  SharedLibrary library = open_library(candidate.name, candidate.only_loaded);
  if (!library) {
    note = library.failure;
    return std::nullopt;
  }
  Nvrtc nvrtc;
  if (const auto missing = bind(library, nvrtc)) {
    note = fmt::format("has no function {}: not NVRTC 12.0 or newer", *missing);
  } else if (nvrtc.nvrtcVersion(&nvrtc.build.major, &nvrtc.build.minor) != NVRTC_SUCCESS) {
    note = "does not tell its version";
  } else if (!nvrtc.at_least(12, 0)) {
    note = fmt::format("is NVRTC {}.{}; 12.0 or newer is needed", nvrtc.build.major, nvrtc.build.minor);
  } else if (nvrtc.build.archs = supported_archs(nvrtc); nvrtc.build.archs.empty()) {
    note = "does not tell what it compiles for";
  } else {
    nvrtc.build.path = library.path;
    nvrtc.build.build_id = build_id(library);
    preload_builtins(nvrtc);
    note = fmt::format("NVRTC {}.{} ({})", nvrtc.build.major, nvrtc.build.minor, library.path);
    return nvrtc;
  }
  close_library(library);
  return std::nullopt;
}

void search(State& found) {
  for (const NvrtcCandidate& candidate : nvrtc_candidates()) {
    std::string note;
    std::optional<Nvrtc> nvrtc = open_candidate(candidate, note);
    const char* how = candidate.required      ? " (from LOSSC_NVRTC)"
                      : candidate.only_loaded ? " (in this process already)"
                                              : "";
    // dlopen's own message begins with the name.
    found.tried.push_back(
        note.starts_with(candidate.name + ": ") ? note : fmt::format("{}{}: {}", candidate.name, how, note));
    if (nvrtc) {
      found.nvrtc.store(new Nvrtc(std::move(*nvrtc)), std::memory_order_release);
      return;
    }
  }
}

// Null where there is none; the search is done once.
const Nvrtc* find_nvrtc() {
  State& found = state();
  if (const Nvrtc* nvrtc = found.nvrtc.load(std::memory_order_acquire)) return nvrtc;
  const std::lock_guard lock(found.mutex);
  if (!std::exchange(found.searched, true)) search(found);
  return found.nvrtc.load(std::memory_order_relaxed);
}

const Nvrtc& nvrtc() {
  if (const Nvrtc* found = find_nvrtc()) return *found;
  throw Error(
      ErrorCode::unsupported,
      fmt::format("NVRTC was not found, and CUDA kernels cannot be compiled without it. Tried:\n  {}\n"
                  "What helps: {}",
                  fmt::join(nvrtc_tried(), "\n  "), kNvrtcRemedy));
}

/// "sm_90a" taken apart.
struct Arch {
  int number = 0;
  char suffix = '\0';
};

Arch parse_arch(const std::string& arch) {
  Arch parsed;
  if (arch.starts_with("sm_")) {
    const char* const end = arch.data() + arch.size();
    const auto [rest, code] = std::from_chars(arch.data() + 3, end, parsed.number);
    if (code == std::errc() && parsed.number > 0) {
      if (rest == end) return parsed;
      parsed.suffix = *rest;
      if (rest + 1 == end && (parsed.suffix == 'a' || parsed.suffix == 'f')) return parsed;
    }
  }
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format("\"{}\" is no GPU architecture; allowed are names such as sm_80, sm_90a, sm_100f", arch));
}

NvrtcTarget target_of(const Nvrtc& nvrtc, const std::string& arch) {
  const auto [number, suffix] = parse_arch(arch);
  const std::vector<int>& known = nvrtc.build.archs;
  // Family targets are younger than the architectures that they are of.
  const bool suffix_known = suffix != 'f' || nvrtc.at_least(12, 9);
  if (suffix_known && std::find(known.begin(), known.end(), number) != known.end()) return {arch, false};
  const auto above = std::upper_bound(known.begin(), known.end(), number);
  if (above == known.begin()) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("NVRTC {}.{} ({}) does not compile for {}: the oldest that it knows is sm_{}. What "
                    "helps: an older NVRTC, named by LOSSC_NVRTC",
                    nvrtc.build.major, nvrtc.build.minor, nvrtc.build.path, arch, known.front()));
  }
  return {fmt::format("compute_{}", *(above - 1)), true};
}

std::vector<std::string> options_of(const Nvrtc& nvrtc, const NvrtcTarget& target) {
  std::vector<std::string> options = {
      "--gpu-architecture=" + target.target, "--std=c++17",
      "--no-source-include",         // Else the current directory is on the include path.
      "--modify-stack-limit=false",  // Else the whole process's limit changes during a compilation.
  };
  // No --split-compile: its threads make a compilation in a forked child hang.
  // NVRTC's own cache initialises the driver, which spoils a later fork, and its hits have no log.
  if (nvrtc.at_least(12, 9)) options.emplace_back("--no-cache");
  if (!target.ptx_only) {
    options.emplace_back("--ptxas-options=-v");
  } else if (nvrtc.at_least(12, 4)) {
    // Makes PTX faster; a cubin comes out the same, and no sooner.
    options.emplace_back("--minimal");
  }
  return options;
}

/// A program, destroyed with the object.
class Program {
 public:
  Program(const Nvrtc& nvrtc, const NvrtcRequest& request) : nvrtc_(nvrtc) {
    check(nvrtc.nvrtcCreateProgram(&program_, request.source.c_str(), request.name.c_str(), 0, nullptr,
                                   nullptr),
          "creating a program");
  }
  ~Program() { nvrtc_.nvrtcDestroyProgram(&program_); }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  nvrtcResult compile(const std::vector<std::string>& options) {
    std::vector<const char*> texts;
    for (const std::string& option : options) texts.push_back(option.c_str());
    return nvrtc_.nvrtcCompileProgram(program_, static_cast<int>(texts.size()), texts.data());
  }
  // ptxas's errors stand behind a NUL after its figures.
  std::string log() const {
    std::string log = text(nvrtc_.nvrtcGetProgramLogSize, nvrtc_.nvrtcGetProgramLog, true, "reading the log");
    std::erase(log, '\0');
    return log;
  }
  std::string ptx() const {
    return text(nvrtc_.nvrtcGetPTXSize, nvrtc_.nvrtcGetPTX, true, "reading the PTX");
  }
  std::string cubin() const {
    return text(nvrtc_.nvrtcGetCUBINSize, nvrtc_.nvrtcGetCUBIN, false, "reading the cubin");
  }

 private:
  void check(nvrtcResult result, const char* what) const {
    if (result == NVRTC_SUCCESS) return;
    throw Error(ErrorCode::compile_failed,
                fmt::format("NVRTC failed {}: {}", what, nvrtc_.nvrtcGetErrorString(result)));
  }
  // The size of a text counts its NUL.
  std::string text(nvrtcResult (*ask)(nvrtcProgram, std::size_t*), nvrtcResult (*get)(nvrtcProgram, char*),
                   bool terminated, const char* what) const {
    std::size_t size = 0;
    check(ask(program_, &size), what);
    std::string content(size, '\0');
    if (size > 0) check(get(program_, content.data()), what);
    if (terminated && !content.empty()) content.pop_back();
    return content;
  }

  const Nvrtc& nvrtc_;
  nvrtcProgram program_ = nullptr;
};

[[noreturn]] void fail(const Nvrtc& nvrtc, const NvrtcRequest& request, const std::string& target,
                       const std::vector<std::string>& options, nvrtcResult result, const std::string& log) {
  const std::string which =
      fmt::format("NVRTC {}.{} ({})", nvrtc.build.major, nvrtc.build.minor, nvrtc.build.path);
  if (result == NVRTC_ERROR_BUILTIN_OPERATION_FAILURE) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format(
            "{} cannot compile: its library libnvrtc-builtins.so.{}.{} was not found{}{}. What helps: put "
            "that file next to libnvrtc.so, or {}\n{}",
            which, nvrtc.build.major, nvrtc.build.minor, nvrtc.builtins_tried.empty() ? "" : "; tried ",
            nvrtc.builtins_tried, kNvrtcRemedy, log));
  }
  std::string message = fmt::format("{} failed to compile \"{}\" for {}: {}\n{}", which, request.name, target,
                                    nvrtc.nvrtcGetErrorString(result), log);
  if (!message.ends_with('\n')) message += '\n';
  if (result == NVRTC_ERROR_INVALID_OPTION) message += fmt::format("options: {}\n", fmt::join(options, " "));
  message += source_excerpt(log, request.name, request.source);
  throw Error(ErrorCode::compile_failed, message);
}

}  // namespace

const NvrtcBuild& nvrtc_build() {
  return nvrtc().build;
}

std::string nvrtc_status() {
  const Nvrtc* found = find_nvrtc();
  if (found == nullptr) return fmt::format("not found; {}", kNvrtcRemedy);
  return fmt::format("{}.{} ({}){}", found->build.major, found->build.minor, found->build.path,
                     found->build.builtins_path.empty() ? ", but its builtins library was not found" : "");
}

std::vector<std::string> nvrtc_tried() {
  find_nvrtc();
  return state().tried;
}

std::vector<std::string> nvrtc_environment() {
  std::vector<std::string> set;
  for (const char* name : {"NVRTC_APPEND_FLAGS", "NV_NVVM_VERSION"}) {
    const char* value = std::getenv(name);
    if (value != nullptr) set.push_back(fmt::format("{}={}", name, value));
  }
  return set;
}

NvrtcTarget nvrtc_target(const std::string& arch) {
  return target_of(nvrtc(), arch);
}

std::vector<std::string> nvrtc_options(const std::string& arch) {
  return options_of(nvrtc(), target_of(nvrtc(), arch));
}

NvrtcResult nvrtc_compile(const NvrtcRequest& request) {
  if (request.name.empty() || request.name.find('/') != std::string::npos) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the program name \"{}\" is empty or has a slash in it", request.name));
  }
  const Nvrtc& compiler = nvrtc();
  const NvrtcTarget target = target_of(compiler, request.arch);
  std::vector<std::string> options = options_of(compiler, target);
  options.insert(options.end(), request.options.begin(), request.options.end());

  const auto start = std::chrono::steady_clock::now();
  Program program(compiler, request);
  const nvrtcResult result = program.compile(options);
  NvrtcResult made;
  made.log = program.log();
  if (result != NVRTC_SUCCESS) fail(compiler, request, target.target, options, result, made.log);
  made.target = target.target;
  made.ptx = program.ptx();
  if (!target.ptx_only) {
    made.cubin = program.cubin();
    made.kernels = parse_kernel_figures(made.log);
  }
  made.milliseconds =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
  return made;
}

}  // namespace lossc::cuda
