// lossc bench: how fast a spec runs, beside a copy of the same bytes.
#include "tools/bench.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <filesystem>
#include <limits>

#include "lossc/error.h"
#include "runtime/ahead.h"
#include "runtime/program_impl.h"
#include "tools/arguments.h"
#include "tools/console.h"
#include "tools/verbs.h"
#ifdef LOSSC_HAS_CUDA
#include "runtime/cuda/cuda_kernels.h"
#endif

namespace lossc::cli {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

struct Options {
  std::string spec, device = "cpu";
  std::int64_t rows = 0;
  std::optional<std::int64_t> segments;
  int repeats = 20;
  std::uint64_t seed = 1;
  std::vector<std::string> set;
  bool json = false;
};

/// A folder that goes with the object.
class ScratchFolder {
 public:
  ScratchFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "lossc-bench-XXXXXX").string();
    if (::mkdtemp(name.data()) == nullptr) {
      throw Error(ErrorCode::io, fmt::format("no folder can be made in {}; TMPDIR names another",
                                             std::filesystem::temp_directory_path().string()));
    }
    path_ = name;
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

struct JitTimes {
  double compile = 0, disk = 0;
};

bool is_gpu(const std::string& device) {
  return device == "cuda" || device.starts_with("cuda:");
}

std::string target_of(const Program& program, const std::string& device) {
#ifdef LOSSC_HAS_CUDA
  if (is_gpu(device)) return program.impl()->cuda_kernels->device->arch();
#else
  (void)program;
#endif
  return device;
}

// With a cache of its own, so that what earlier runs kept changes nothing.
JitTimes jit_times(const Program& program, const std::string& target) {
  const ScratchFolder folder;
  const auto timed = [&] {
    CacheOptions options;
    options.folder = folder.path();
    options.from = "lossc bench";
    KernelCache cache(options);
    const Program::Impl& impl = *program.impl();
    const Clock::time_point start = Clock::now();
    compile_ahead(cache, impl.plan, impl.layout, impl.spec, target);
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  };
  JitTimes times;
  times.compile = timed();
  times.disk = timed();
  return times;
}

Json summary(const std::vector<double>& values) {
  if (values.empty()) return nullptr;
  return {{"median", median(values)},
          {"min", *std::min_element(values.begin(), values.end())},
          {"max", *std::max_element(values.begin(), values.end())}};
}

double rate(double bytes, double milliseconds) {
  return milliseconds > 0 ? bytes / milliseconds * 1e-6 : 0;
}

Json measure(const Options& options) {
  const Spec spec = load_spec(options.spec);
  if (options.device == "interpreter") {
    throw Error(ErrorCode::invalid_argument,
                "device \"interpreter\" is for checks and not measured; allowed are cpu and cuda:N");
  }
  const std::int64_t segments = options.segments.value_or(std::max<std::int64_t>(2, options.rows / 64));
  const auto assignments = parse_assignments(options.set);
  const Program program = Program::compile(spec, {.device = options.device});
  parameter_values(program.parameters(), assignments);
  const JitTimes jit = jit_times(program, target_of(program, options.device));
  const BenchBatch batch = bench_batch(program, options.rows, segments, options.seed);
  const auto prepare = [&](Execution& execution) {
    for (const auto& [name, value] : assignments) execution.set(name, value);
  };
  const BenchTimes times = is_gpu(options.device) ? bench_cuda(program, batch, prepare, options.repeats)
                                                  : bench_cpu(program, batch, prepare, options.repeats);

  const Plan& plan = program.impl()->plan;
  const BenchTraffic traffic = bench_traffic(plan, spec);
  const double rows = static_cast<double>(options.rows), bytes = traffic.all() * rows;
  const double copy = median(times.copy), read = median(times.read), run = median(times.run);
  const double yardstick =
      traffic.read_only * rows * read / times.bytes + traffic.mixed * rows * copy / (2 * times.bytes);
  Json json = {{"spec", options.spec},
               {"device", options.device},
               {"device_name", times.device},
               {"target", target_of(program, options.device)},
               {"rows", options.rows},
               {"vocab", spec.vocab},
               {"dtype", dtype_name(spec.logits_dtype)},
               {"segments", segments},
               {"repeats", options.repeats},
               {"passes", plan.passes},
               {"milliseconds", summary(times.run)},
               {"bytes", bytes},
               {"gb_per_s", rate(bytes, run)},
               {"copy",
                {{"kernel", times.copy_kernel},
                 {"milliseconds", summary(times.copy)},
                 {"gb_per_s", rate(2 * times.bytes, copy)}}},
               {"read", {{"milliseconds", summary(times.read)}, {"gb_per_s", rate(times.bytes, read)}}},
               {"yardstick_milliseconds", yardstick},
               {"fraction_of_copy", run > 0 ? yardstick / run : 0},
               {"host_microseconds", summary(times.host)},
               {"host_microseconds_bound_anew", summary(times.host_anew)},
               {"disturbed", times.disturbed},
               {"jit", {{"compile_ms", jit.compile}, {"disk_ms", jit.disk}, {"load_ms", times.load}}},
               {"compilations_while_running", times.compilations}};
  return json;
}

std::string to_text(const Json& json) {
  using Align = Table::Align;
  const auto real = [](const Json& value, int digits) {
    return fmt::format("{:.{}f}", value.get<double>(), digits);
  };
  Table table({Align::left, Align::right, Align::right, Align::right});
  table.add({"", "median ms", "min ms", "GB/s"});
  const auto line = [&](const std::string& name, const Json& times, const Json& gb_per_s) {
    table.add({name, real(times["median"], 3), real(times["min"], 3), real(gb_per_s, 0)});
  };
  line("losses", json["milliseconds"], json["gb_per_s"]);
  line("copy of the logits (" + json["copy"]["kernel"].get<std::string>() + ")", json["copy"]["milliseconds"],
       json["copy"]["gb_per_s"]);
  line("read of the logits", json["read"]["milliseconds"], json["read"]["gb_per_s"]);
  std::string text = fmt::format("{}, {} rows x {} {}, {} segments, {} repeats\n{}\n",
                                 json["device_name"].get<std::string>(), json["rows"].dump(),
                                 json["vocab"].dump(), json["dtype"].get<std::string>(),
                                 json["segments"].dump(), json["repeats"].dump(), table.text());
  text += fmt::format("{} passes, {} moved; a copy of the same bytes takes {} ms: {} % of its speed\n",
                      json["passes"].dump(), byte_count(json["bytes"].get<double>()),
                      real(json["yardstick_milliseconds"], 3),
                      fmt::format("{:.1f}", 100 * json["fraction_of_copy"].get<double>()));
  const Json& jit = json["jit"];
  text += fmt::format("compiled in {} ms, from disk in {} ms, loaded in {} ms; {} compiled while it ran\n",
                      real(jit["compile_ms"], 1), real(jit["disk_ms"], 1), real(jit["load_ms"], 1),
                      json["compilations_while_running"].dump());
  if (!json["host_microseconds"].is_null()) {
    text += fmt::format("run() returns after {} microseconds, {} where a tensor was bound anew\n",
                        real(json["host_microseconds"]["median"], 1),
                        real(json["host_microseconds_bound_anew"]["median"], 1));
  }
  if (json["disturbed"].get<int>() > 0) {
    text +=
        fmt::format("{} repeats were disturbed: other processes took the cores\n", json["disturbed"].dump());
  }
  return text;
}

}  // namespace

void add_bench(CLI::App& app, int&) {
  CLI::App* verb = app.add_subcommand("bench", "Measure a spec's kernels beside a copy of the same bytes");
  const auto options = std::make_shared<Options>();
  verb->add_option("SPEC", options->spec, "A spec's file, or - for standard input")->required();
  verb->add_option("--rows", options->rows, "Rows of the random batch")
      ->option_text("N")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 40))
      ->required();
  verb->add_option("--segments", options->segments, "Segments of the batch (a 64th of the rows)")
      ->option_text("N")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30));
  verb->add_option("--device", options->device,
                   fmt::format("Where to run; this build has: {}", fmt::join(available_devices(), ", ")))
      ->option_text("cpu|cuda:N")
      ->capture_default_str();
  verb->add_option("--set", options->set, "Set a run-time parameter; may be given again")
      ->option_text("NAME=VALUE")
      ->allow_extra_args(false);
  verb->add_option("--repeats", options->repeats, "How often it is measured")
      ->option_text("N")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  verb->add_option("--seed", options->seed, "Of the random batch")->option_text("N")->capture_default_str();
  verb->add_flag("--json", options->json, "Print JSON");
  verb->footer(
      "All rows count. Runs, copies and reads of the logits alternate, on a GPU each with cold caches. The "
      "yardstick\n"
      "of a plan: what its regions read alone, at the speed of the read; what is read and written by the "
      "region of\n"
      "the gradient, at the speed of the fastest copy.");
  verb->callback([options] {
    const Json json = measure(*options);
    if (options->json) {
      print_json(json);
    } else {
      print(to_text(json));
    }
  });
}

}  // namespace lossc::cli
