// lossc doctor: what was found on this machine.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "lossc/program.h"
#include "runtime/cache/folder.h"
#include "runtime/cache/options.h"
#include "tools/console.h"
#include "tools/doctor_cuda.h"
#include "tools/verbs.h"

namespace lossc::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Json build() {
#ifdef __clang__
  const std::string compiler = __VERSION__;
#else
  const std::string compiler = "GCC " __VERSION__;
#endif
  Json json = {{"version", LOSSC_VERSION}, {"compiler", compiler}, {"type", LOSSC_BUILD_TYPE}};
#ifdef LOSSC_HAS_LLVM
  json["llvm"] = LOSSC_LLVM_VERSION;
#else
  json["llvm"] = nullptr;
#endif
#ifdef LOSSC_HAS_CUDA
  json["cuda_backend"] = true;
#else
  json["cuda_backend"] = false;
#endif
  return json;
}

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("model name") && line.find(": ") != std::string::npos) {
      return line.substr(line.find(": ") + 2);
    }
  }
  return "unknown";
}

Json cpu_features() {
  Json features = Json::object();
#if defined(__x86_64__) || defined(__i386__)
  __builtin_cpu_init();
  features["avx2"] = __builtin_cpu_supports("avx2") != 0;
  features["fma"] = __builtin_cpu_supports("fma") != 0;
  features["f16c"] = __builtin_cpu_supports("f16c") != 0;
  features["avx512f"] = __builtin_cpu_supports("avx512f") != 0;
  features["avx512_bf16"] = __builtin_cpu_supports("avx512bf16") != 0;
#endif
  return features;
}

Json threads() {
  const std::string limit = environment("LOSSC_NUM_THREADS");
  return {{"machine", std::thread::hardware_concurrency()},
          {"used", num_threads()},
          {"LOSSC_NUM_THREADS", limit.empty() ? Json(nullptr) : Json(limit)}};
}

// Where the kernel cache is kept, and what speaks against that place.
Json cache() {
  const CacheOptions options = CacheOptions::from_environment();
  if (options.folder.empty()) return {{"path", nullptr}, {"state", "none: " + options.from}};
  return {{"path", options.folder}, {"from", options.from}, {"state", folder_state(options.folder)}};
}

void print_text(const Json& found) {
  std::string text;
  const auto line = [&](std::string_view label, std::string_view what) {
    for (std::size_t begin = 0; begin <= what.size();) {
      const std::size_t end = std::min(what.find('\n', begin), what.size());
      text += fmt::format("{:<14} {}\n", begin == 0 ? label : "", what.substr(begin, end - begin));
      begin = end + 1;
    }
  };
  const Json& b = found["build"];
  line("lossc", fmt::format("{} ({}, built with {})", b["version"].get<std::string>(),
                            b["type"].get<std::string>(), b["compiler"].get<std::string>()));
  line("CPU backend", b["llvm"].is_null() ? "not in this build (it needs LLVM); the interpreter works"
                                          : "LLVM " + b["llvm"].get<std::string>());
  line("CPU", found["cpu"]["name"].get<std::string>());
  std::string features;
  for (const auto& [name, present] : found["cpu"]["features"].items()) {
    features += fmt::format("{}{}{}", features.empty() ? "" : ", ", present.get<bool>() ? "" : "no ", name);
  }
  line("CPU features", features.empty() ? "not looked for on this architecture" : features);
  const Json& t = found["threads"];
  line("threads",
       fmt::format("{} of {}{}", t["used"].get<int>(), t["machine"].get<unsigned>(),
                   t["LOSSC_NUM_THREADS"].is_null()
                       ? ""
                       : fmt::format(" (LOSSC_NUM_THREADS={})", t["LOSSC_NUM_THREADS"].get<std::string>())));
  const Json& c = found["cache"];
  line("kernel cache", c["path"].is_null()
                           ? c["state"].get<std::string>()
                           : fmt::format("{} ({}; from {})", c["path"].get<std::string>(),
                                         c["state"].get<std::string>(), c["from"].get<std::string>()));
  for (const auto& [label, what] : doctor_cuda_lines(found["nvidia"])) line(label, what);
  print(text);
}

}  // namespace

void add_doctor(CLI::App& app, int&) {
  CLI::App* verb = app.add_subcommand("doctor", "Tell what was found on this machine");
  const auto json = std::make_shared<bool>(false);
  verb->add_flag("--json", *json, "Print JSON");
  verb->callback([json] {
    const Json found = {{"build", build()},
                        {"cpu", {{"name", cpu_name()}, {"features", cpu_features()}}},
                        {"threads", threads()},
                        {"cache", cache()},
                        {"nvidia", doctor_cuda()}};
    if (*json) {
      print_json(found);
    } else {
      print_text(found);
    }
  });
}

}  // namespace lossc::cli
