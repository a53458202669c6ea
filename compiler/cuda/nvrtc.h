// NVRTC, NVIDIA's run-time compiler: CUDA source to machine code. The library is found and opened when it is
// first needed; nothing links to it. docs/cuda.md says where it is looked for.
#pragma once

#include <string>
#include <vector>

namespace lossc::cuda {

/// The NVRTC that this process uses.
struct NvrtcBuild {
  int major = 0, minor = 0;
  std::string path;           ///< The file of libnvrtc.
  std::string build_id;       ///< What tells patch builds of one version apart; belongs in every cache key.
  std::string builtins_path;  ///< The file of libnvrtc-builtins; empty when none was found.
  std::string builtins_build_id;  ///< Like build_id; empty when no builtins library was found.
  std::vector<int> archs;         ///< The architectures it compiles for, ascending: 75, 80, ...
};

/// Opens NVRTC on the first call. Throws Error(unsupported) that names everything that was tried.
const NvrtcBuild& nvrtc_build();

/// One line for a person: version and file, or why there is none. Never throws.
std::string nvrtc_status();

/// What the search for NVRTC did, in order: one line an attempt, the last one the one that worked, if any
/// did.
std::vector<std::string> nvrtc_tried();

/// The environment variables that change what NVRTC generates, as NAME=value, those alone that are set. They
/// belong in a cache key.
std::vector<std::string> nvrtc_environment();

/// What a source is compiled for: `target` is `arch` itself ("sm_90a") where the toolkit knows it. Where it
/// does not, it is the newest architecture that the toolkit knows and that is not newer than `arch`, as
/// portable PTX
/// ("compute_90"), which the driver translates when it is loaded.
struct NvrtcTarget {
  std::string target;
  bool ptx_only = false;
};

/// Throws Error(unsupported) for an architecture older than all that the toolkit knows,
/// Error(invalid_argument) for a name that is none. `arch` is "sm_90", "sm_90a" or "sm_100f".
NvrtcTarget nvrtc_target(const std::string& arch);

/// The options that every compilation for `arch` gets, in order, with the target's among them. Nothing
/// outside the source text reaches a compilation: no include paths, no cache of NVRTC's own.
std::vector<std::string> nvrtc_options(const std::string& arch);

struct NvrtcRequest {
  std::string source;
  std::string name;  ///< What messages call the source; no slash. It ends up in symbols, so equal sources
                     ///< need equal names.
  std::string arch;  ///< "sm_90a"
  std::vector<std::string> options;  ///< After those of nvrtc_options(arch).
};

/// What ptxas says of one kernel.
struct KernelFigures {
  std::string name;
  int registers = 0;
  int spill_store_bytes = 0, spill_load_bytes = 0;
  int stack_bytes = 0;
  int static_shared_bytes = 0;
};

struct NvrtcResult {
  std::string target;  ///< "sm_90a", or "compute_90" where only PTX was made.
  std::string cubin;   ///< Empty where only PTX was made.
  std::string ptx;     ///< Without its NUL; c_str() has one.
  std::string log;     ///< Warnings and what ptxas says; empty if neither spoke.
  double milliseconds = 0;
  std::vector<KernelFigures> kernels;  ///< In the order of the log; empty where only PTX was made.
};

/// Compiles. Any number of threads may do so at once. Starts no threads, does not touch the driver, and works
/// in a forked child. Throws Error(compile_failed) with the log and the numbered lines of the source that it
/// speaks of.
NvrtcResult nvrtc_compile(const NvrtcRequest& request);

/// The kernels' figures in a log of --ptxas-options=-v.
std::vector<KernelFigures> parse_kernel_figures(const std::string& log);

}  // namespace lossc::cuda
