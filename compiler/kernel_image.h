// What a JIT compiler made, as plain data: what the kernel cache keeps and a loader takes.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>

namespace lossc {

struct KernelImage {
  std::string kind;  ///< "llvm-object", "cubin", "ptx"
  std::map<std::string, std::string>
      blobs;           ///< Code and what loads it, by name: "object0", "cubin", "ptx", ...
  std::string source;  ///< The generated source; empty where it is not kept.
  std::string log;     ///< What the compiler said.
  /// Figures for people and programs: "title" (one line that says what the kernels compute), "target",
  /// "compile_ms", registers, sizes. Text must be UTF-8. Loaders may rely on what they put here themselves.
  nlohmann::json info = nlohmann::json::object();
};

}  // namespace lossc
