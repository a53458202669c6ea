#include "bench/parts.h"

#include <fmt/format.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>

#include "compiler/cpu/cpu_compiler.h"
#include "runtime/program_impl.h"

namespace lossc::bench {
namespace {

using nlohmann::json;

constexpr double compile_target_ms = 150, second_compile_target_ms = 40;
constexpr double promised_bytes_a_row = 64, promised_bytes = 64e6;

/// The argument as one word of the shell.
std::string shell_word(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

/// Runs a command and reads the JSON that it prints. Throws Error(io) where it fails.
json run_for_json(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) throw Error(ErrorCode::io, fmt::format("cannot start: {}", command));
  std::string text;
  std::array<char, 4096> chunk;
  while (const std::size_t n = std::fread(chunk.data(), 1, chunk.size(), pipe)) text.append(chunk.data(), n);
  if (pclose(pipe) != 0) throw Error(ErrorCode::io, fmt::format("this failed: {}", command));
  return json::parse(text);
}

std::string self() {
  return shell_word(std::filesystem::read_symlink("/proc/self/exe").string());
}

std::string common_arguments(const Options& options) {
  return fmt::format(" --json --mb {} --sigma {} --rounds {}", options.mb, options.sigma, options.rounds);
}

std::string case_arguments(const std::string& name, const std::string& dtype, std::int64_t vocab) {
  return fmt::format(" --losses {} --dtype {} --vocab {}", shell_word(name), shell_word(dtype), vocab);
}

double seconds_of(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// A folder that is removed again.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string path = (std::filesystem::temp_directory_path() / "lossc-bench-XXXXXX").string();
    if (!mkdtemp(path.data())) throw Error(ErrorCode::io, fmt::format("cannot make a folder {}", path));
    path_ = path;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

/// A field of /proc/self/status in bytes: VmRSS, or VmHWM, its maximum.
double status_bytes(const std::string& field) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(field + ":", 0) == 0) return std::stod(line.substr(field.size() + 1)) * 1024;
  }
  throw Error(ErrorCode::unsupported, fmt::format("/proc/self/status has no {}", field));
}

const char* verdict(bool met) {
  return met ? "met" : "over";
}

}  // namespace

json scaling(const Options& options) {
  constexpr int repetitions = 3;
  const std::set<int> counts{1, 2, num_threads()};
  json results = json::array();
  if (!options.json)
    fmt::print("{:<5} {:>7} {:>9} {:>9} {:>9} {:>9} {:>9}\n", "dtype", "threads", "copy ms", "x", "ce+z ms",
               "x", "ce+z/copy");
  for (const std::string& dtype : options.dtypes) {
    std::map<int, std::vector<double>> copy, loss;
    for (int repetition = 0; repetition < repetitions; ++repetition) {
      for (const int threads : counts) {
        const json run =
            run_for_json(fmt::format("LOSSC_NUM_THREADS={} ", threads) + self() + common_arguments(options) +
                         case_arguments("ce+z", dtype, options.vocabs.front()));
        copy[threads].push_back(run["results"][0]["copy"]["seconds"]);
        loss[threads].push_back(run["results"][0]["seconds"]);
      }
    }
    for (const int threads : counts) {
      // Ratios of runs that follow each other, not of medians: the machine's speed drifts.
      std::vector<double> copy_gain, loss_gain;
      for (int i = 0; i < repetitions; ++i) {
        const auto r = static_cast<std::size_t>(i);
        copy_gain.push_back(copy[1][r] / copy[threads][r]);
        loss_gain.push_back(loss[1][r] / loss[threads][r]);
      }
      const json result{{"dtype", dtype},
                        {"threads", threads},
                        {"copy_seconds", summarize(copy[threads]).median},
                        {"copy_speedup", summarize(copy_gain).median},
                        {"seconds", summarize(loss[threads]).median},
                        {"speedup", summarize(loss_gain).median}};
      if (!options.json) {
        const double copy_ms = result["copy_seconds"].get<double>() * 1e3;
        const double loss_ms = result["seconds"].get<double>() * 1e3;
        fmt::print("{:<5} {:>7} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f} {:>9.2f}\n", dtype, threads, copy_ms,
                   result["copy_speedup"].get<double>(), loss_ms, result["speedup"].get<double>(),
                   loss_ms / copy_ms);
      }
      results.push_back(result);
    }
  }
  return results;
}

json compile_once(const Options& options) {
  const DType dtype = parse_dtype(options.dtypes.front());
  const Spec first = make_spec(find_case("ce+z"), dtype, options.vocabs.front());
  const Spec second = make_spec(find_case("gspo+z+ce"), dtype, options.vocabs.front());
  json result;
  result["first_seconds"] = seconds_of([&] { Program::compile(first); });
  result["second_seconds"] = seconds_of([&] { Program::compile(second); });
  result["compilations"] = statistics().compilations;
  return result;
}

json compile_time(const Options& options) {
  constexpr int processes = 7;
  json results = json::array();
  for (const std::string& dtype : options.dtypes) {
    std::vector<double> first, second;
    for (int i = 0; i < processes; ++i) {
      const TemporaryFolder cache;
      const json run = run_for_json(
          fmt::format("LOSSC_CACHE_DIR={} {} --compile-once --json --dtype {} --vocab {}",
                      shell_word(cache.path()), self(), shell_word(dtype), options.vocabs.front()));
      if (run["compilations"] != 2) {
        throw Error(ErrorCode::internal,
                    fmt::format("2 programs made {} compilations", run["compilations"].dump()));
      }
      first.push_back(run["first_seconds"].get<double>() * 1e3);
      second.push_back(run["second_seconds"].get<double>() * 1e3);
    }
    const Summary a = summarize(first), b = summarize(second);
    if (!options.json) {
      fmt::print(
          "{} first compile in a process (ce+z):        {:6.1f} ms ({:.1f}..{:.1f}), target {:.0f} {}\n",
          dtype, a.median, a.min, a.max, compile_target_ms, verdict(a.median <= compile_target_ms));
      fmt::print(
          "{} second structure after it (gspo+z+ce):    {:6.1f} ms ({:.1f}..{:.1f}), target {:.0f} {}\n",
          dtype, b.median, b.min, b.max, second_compile_target_ms,
          verdict(b.median <= second_compile_target_ms));
    }
    results.push_back({{"dtype", dtype},
                       {"first_ms", a.median},
                       {"second_ms", b.median},
                       {"first_target_ms", compile_target_ms},
                       {"second_target_ms", second_compile_target_ms}});
  }
  return results;
}

json memory_once(const Options& options) {
  const Case& measured = find_case(options.names.front());
  Team team(1);
  const DType dtype = parse_dtype(options.dtypes.front());
  Batch batch(team, dtype, static_cast<std::size_t>(options.mb) << 20, options.sigma,
              measured.reads_teacher());
  batch.set_vocab(team, options.vocabs.front());
  const Program program = Program::compile(make_spec(measured, dtype, options.vocabs.front()));

  const double before = status_bytes("VmRSS");
  std::ofstream("/proc/self/clear_refs") << "5\n" << std::flush;  // Forgets the maximum so far.
  Execution execution(program);
  batch.bind(execution, program);
  execution.run();
  execution.run();
  return {{"rows", batch.rows()},
          {"segments", batch.segments()},
          {"growth_bytes", std::max(0.0, status_bytes("VmHWM") - before)}};
}

json memory(const Options& options) {
  // The smallest vocabulary makes many rows: what is kept for each shows there.
  const std::set<std::int64_t> vocabs{128, options.vocabs.back()};
  json results = json::array();
  if (!options.json)
    fmt::print("{:<17} {:<5} {:>7} {:>8} {:>8} {:>10} {:>12}\n", "losses", "dtype", "vocab", "rows",
               "segments", "growth MB", "promised MB");
  for (const std::string& dtype : options.dtypes) {
    for (const std::int64_t vocab : vocabs) {
      for (const std::string& name : options.names) {
        json run = run_for_json(self() + " --memory-once" + common_arguments(options) +
                                case_arguments(name, dtype, vocab));
        const double promised = promised_bytes + promised_bytes_a_row * (run["rows"].get<double>() +
                                                                         run["segments"].get<double>());
        run["promised_bytes"] = promised;
        run["case"] = name;
        run["dtype"] = dtype;
        run["vocab"] = vocab;
        if (!options.json) {
          const double growth = run["growth_bytes"];
          fmt::print("{:<17} {:<5} {:>7} {:>8} {:>8} {:>10.1f} {:>12.1f} {}\n", name, dtype, vocab,
                     run["rows"].get<std::int64_t>(), run["segments"].get<std::int64_t>(), growth * 1e-6,
                     promised * 1e-6, verdict(growth <= promised));
        }
        results.push_back(std::move(run));
      }
    }
  }
  return results;
}

json torch(const Options& options) {
  std::string python;
  for (const std::string& candidate : {options.python, std::string("/usr/bin/python3")}) {
    const std::string probe = shell_word(candidate) + " -c 'import torch' 2>/dev/null";
    if (python.empty() && std::system(probe.c_str()) == 0) python = candidate;
  }
  if (python.empty()) {
    throw Error(
        ErrorCode::unsupported,
        fmt::format("neither {} nor /usr/bin/python3 has PyTorch: install python3-torch or name another "
                    "interpreter with --python",
                    options.python));
  }
  json results = json::array();
  if (!options.json)
    fmt::print("{:<17} {:<5} {:>7} {:>6} {:>10} {:>10} {:>8}\n", "PyTorch eager", "dtype", "vocab", "rows",
               "ms", "copy_ ms", "/ copy_");
  for (const std::string& dtype : options.dtypes) {
    for (const std::int64_t vocab : options.vocabs) {
      for (const std::string& name : options.names) {
        const auto row_bytes = dtype_size(parse_dtype(dtype)) * static_cast<std::size_t>(vocab);
        const std::size_t rows = (static_cast<std::size_t>(options.mb) << 20) / row_bytes;
        json run = run_for_json(
            fmt::format("{} {} --losses {} --dtype {} --vocab {} --rows {} --threads {} --sigma {}",
                        shell_word(python), shell_word(LOSSC_BENCH_FOLDER "/torch_baseline.py"),
                        shell_word(name), shell_word(dtype), vocab, rows, num_threads(), options.sigma));
        if (!options.json) {
          fmt::print("{:<17} {:<5} {:>7} {:>6} {:>10.2f} {:>10.2f} {:>8.1f}\n", name, dtype, vocab, rows,
                     run["seconds"].get<double>() * 1e3, run["copy_seconds"].get<double>() * 1e3,
                     run["ratio"].get<double>());
          std::fflush(stdout);
        }
        results.push_back(std::move(run));
      }
    }
  }
  return results;
}

std::string assembly(const Options& options, const std::string& cpu) {
  const Spec spec = make_spec(find_case(options.names.front()), parse_dtype(options.dtypes.front()),
                              options.vocabs.front());
  const auto program = Program::compile(spec, {.device = "cpu"});
  return cpu::cpu_assembly(program.impl()->plan, program.impl()->layout, spec, cpu);
}

}  // namespace lossc::bench
