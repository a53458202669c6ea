// lossc-bench: how near the CPU backend comes to a copy of the logits. bench/README.md says how to read it.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "bench/measure.h"
#include "bench/parts.h"

namespace {

using lossc::bench::Options;
using nlohmann::json;

std::string load_average() {
  std::ifstream file("/proc/loadavg");
  std::string one, five;
  file >> one >> five;
  return one + " " + five;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  bool copy_only = false, with_scaling = false, with_compile = false, with_torch = false, with_memory = false;
  bool compile_once = false, memory_once = false;
  for (const lossc::bench::Case& one : lossc::bench::cases()) options.names.push_back(one.name);

  CLI::App app{
      "Times value and gradient of losses on the CPU backend against the fastest copy of the logits by as "
      "many "
      "threads, in the same round. Quiet machines give steady numbers: stop builds first."};
  app.add_option("--losses", options.names, "What to time (default: all)")
      ->check(CLI::IsMember(options.names));
  app.add_option("--dtype", options.dtypes, "Of logits, teacher and gradient: fp32, bf16 (default: both)")
      ->check(CLI::IsMember(options.dtypes));
  app.add_option("--vocab", options.vocabs, "Vocabulary sizes (default: 32768 50257 131072)")
      ->check(CLI::Range(std::int64_t{2}, std::int64_t{1} << 30));
  app.add_option("--mb", options.mb, "MiB of a tensor of the logits' shape; choose it well past the caches")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--rounds", options.rounds, "Rounds that are timed, after one that is not")
      ->capture_default_str()
      ->check(CLI::Range(1, 10000));
  app.add_option("--sigma", options.sigma, "Standard deviation of the normal logits")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 20.0));
  app.add_flag("--json", options.json, "Print one JSON object instead of tables");
  app.add_flag("--copy-only", copy_only, "Time the copies alone");
  app.add_flag("--scaling", with_scaling, "1 thread against 2 (and all), for a copy and for ce+z");
  app.add_flag("--compile", with_compile,
               "Time of a process's first compilation and of another structure after it");
  app.add_flag("--memory", with_memory, "Growth of the resident memory during runs against what is promised");
  app.add_flag(
      "--torch", with_torch,
      "The same losses in PyTorch beside PyTorch's own copy. It is eager autograd: no compiler, and a copy "
      "that is slower than the fastest, which flatters the ratio");
  app.add_option("--python", options.python, "Interpreter for --torch; /usr/bin/python3 is tried next")
      ->capture_default_str();
  std::string assembly_for;
  app.add_option(
      "--assembly", assembly_for,
      "Print the sweeps' machine code for a processor of LLVM's names (sapphirerapids, znver4, ...), "
      "which need not be here: first loss, dtype and vocabulary");
  app.add_flag("--compile-once", compile_once)->group("");
  app.add_flag("--memory-once", memory_once)->group("");
  CLI11_PARSE(app, argc, argv);

  try {
    json out;
    if (!assembly_for.empty()) {
      fmt::print("{}", lossc::bench::assembly(options, assembly_for));
      return 0;
    }
    if (compile_once) {
      out = lossc::bench::compile_once(options);
    } else if (memory_once) {
      out = lossc::bench::memory_once(options);
    } else if (!with_scaling && !with_compile && !with_torch && !with_memory) {
      const std::string before = load_average();
      out = lossc::bench::measure(options, copy_only);
      out["load_before"] = before;
      out["load_after"] = load_average();
      if (!options.json)
        fmt::print("load average before and after (1 and 5 minutes): {}, {}\n", before, load_average());
    } else {
      if (with_scaling) out["scaling"] = lossc::bench::scaling(options);
      if (with_compile) out["compile"] = lossc::bench::compile_time(options);
      if (with_memory) out["memory"] = lossc::bench::memory(options);
      if (with_torch) out["torch"] = lossc::bench::torch(options);
    }
    if (options.json) fmt::print("{}\n", out.dump(2));
    return 0;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    fmt::print(stderr, "lossc-bench: {}\n", error.what());
    return 1;
  }
}
