// lossc compile: kernels ahead of time, into a kernel cache.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <filesystem>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>

#include "compiler/plan.h"
#include "lossc/error.h"
#include "lossc/program.h"
#include "runtime/ahead.h"
#include "tools/arguments.h"
#include "tools/cache.h"
#include "tools/console.h"
#include "tools/verbs.h"

namespace lossc::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::vector<std::string> specs, archs;
  std::string out;
  bool json = false;
};

struct Planned {
  std::string name;
  Spec spec;
  Plan plan;
  Layout layout;
};

/// One entry of the cache.
struct Job {
  const Planned* planned = nullptr;  // null: the kernels that plans share
  std::string target;
  AheadKernels kernels;
  std::exception_ptr failure;
};

/// What the cache warns of, from any thread.
struct Trouble {
  std::mutex mutex;
  std::string text;
};

CacheOptions cache_options(const std::string& out, Trouble& trouble) {
  CacheOptions options = CacheOptions::from_environment();
  if (!out.empty()) {
    options.folder = std::filesystem::absolute(out).lexically_normal().string();
    if (options.folder.ends_with('/')) options.folder.pop_back();
    options.from = "--out";
    options.readonly_folder.clear();  // the folder is to hold everything
    options.max_bytes = std::numeric_limits<std::int64_t>::max();
  }
  if (options.folder.empty()) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("there is no cache folder: {}; name one by --out DIR or LOSSC_CACHE_DIR", options.from));
  }
  // What is a warning elsewhere is a failure here: nothing would be kept.
  options.warn = [&trouble](const std::string& text) {
    const std::lock_guard lock(trouble.mutex);
    trouble.text += (trouble.text.empty() ? "" : "\n") + text;
  };
  return options;
}

std::vector<Planned> plan_all(const std::vector<std::string>& paths) {
  std::vector<Planned> all;
  for (const std::string& path : paths) {
    Planned planned{path, load_spec(path), {}, {}};
    if (!planned.spec.parallel.empty()) {
      throw Error(
          ErrorCode::unsupported,
          fmt::format("{}: parallel: collectives are not available; leave \"parallel\" out to compile",
                      path));
    }
    planned.plan = plan_spec(planned.spec, LossRegistry::builtin());
    planned.layout = make_layout(planned.plan, planned.spec);
    all.push_back(std::move(planned));
  }
  return all;
}

std::vector<Job> list_jobs(const std::vector<Planned>& specs, const std::vector<std::string>& targets) {
  std::vector<Job> jobs;
  for (const std::string& target : targets) {
    bool shared = false;
    for (const Planned& planned : specs) {
      jobs.push_back({&planned, target, {}, nullptr});
      shared = shared || needs_shared_kernels(planned.layout, target);
    }
    if (shared) jobs.push_back({nullptr, target, {}, nullptr});
  }
  return jobs;
}

// Compilers run side by side; a failure does not keep the others from being done.
void compile_all(std::vector<Job>& jobs, KernelCache& cache) {
  std::atomic<std::size_t> next{0}, done{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < jobs.size(); i = next++) {
      Job& job = jobs[i];
      try {
        job.kernels = job.planned == nullptr ? compile_shared_ahead(cache, job.target)
                                             : compile_ahead(cache, job.planned->plan, job.planned->layout,
                                                             job.planned->spec, job.target);
      } catch (...) {
        job.failure = std::current_exception();
      }
      ++done;
      done.notify_all();
    }
  };
  std::vector<std::jthread> threads;
  const auto count = std::min<std::size_t>(jobs.size(), static_cast<std::size_t>(std::max(num_threads(), 1)));
  for (std::size_t i = 0; i < count; ++i) threads.emplace_back(work);
  Progress progress("compiling");
  for (std::size_t seen = 0; seen < jobs.size(); seen = done) {
    progress.update(seen, jobs.size());
    done.wait(seen);
  }
}

Json figures_of(const KernelImage& image) {
  const auto kernels = image.info.find("kernels");
  return kernels == image.info.end() ? Json::array() : Json::parse(kernels->dump());
}

Json to_json(const std::vector<Job>& jobs, const std::string& folder) {
  Json entries = Json::array();
  for (const Job& job : jobs) {
    Json entry = {{"spec", job.planned == nullptr ? Json(nullptr) : Json(job.planned->name)},
                  {"arch", job.target}};
    if (job.failure) {
      try {
        std::rethrow_exception(job.failure);
      } catch (const std::exception& error) {
        entry["error"] = error.what();
      }
    } else {
      const KernelImage& image = *job.kernels.image;
      entry["key"] = job.kernels.key;
      entry["title"] = image.info.value("title", "");
      entry["kind"] = image.kind;
      entry["target"] = image.info.value("target", "");
      entry["compiled"] = job.kernels.compiled;
      entry["compile_ms"] = image.info.value("compile_ms", 0.0);
      entry["kernels"] = figures_of(image);
    }
    entries.push_back(std::move(entry));
  }
  return {{"folder", folder}, {"entries", std::move(entries)}};
}

std::string to_text(const std::vector<Job>& jobs, std::size_t specs, const std::string& folder) {
  using Align = Table::Align;
  const bool named = specs > 1;
  std::vector<Align> columns = {Align::left,  Align::left,  Align::right, Align::right,
                                Align::right, Align::right, Align::right, Align::left};
  std::vector<std::string> heading = {"ARCH",   "KERNEL", "REGISTERS", "SHARED",
                                      "SPILLS", "STACK",  "MS",        "ENTRY"};
  if (named) {
    columns.insert(columns.begin(), Align::left);
    heading.insert(heading.begin(), "SPEC");
  }
  Table table(columns);
  table.add(heading);
  std::size_t compiled = 0, failed = 0;
  for (const Job& job : jobs) {
    failed += job.failure ? 1 : 0;
    if (job.failure) continue;
    const KernelImage& image = *job.kernels.image;
    compiled += job.kernels.compiled ? 1 : 0;
    Json kernels = figures_of(image);
    // Object files and PTX have no figures.
    if (kernels.empty()) kernels.push_back({{"name", image.kind == "ptx" ? "PTX" : "object files"}});
    bool first = true;
    for (const Json& kernel : kernels) {
      const auto figure = [&](const char* name) {
        return kernel.contains(name) ? kernel[name].dump() : std::string("-");
      };
      std::vector<std::string> row = {job.target,
                                      kernel["name"].get<std::string>(),
                                      figure("registers"),
                                      figure("shared_bytes"),
                                      figure("spill_bytes"),
                                      figure("stack_bytes"),
                                      "",
                                      ""};
      if (first) {
        row[6] = fmt::format("{:.0f}", image.info.value("compile_ms", 0.0));
        row[7] = short_key(job.kernels.key) + (job.kernels.compiled ? "" : " (was there)");
      }
      if (named) {
        const std::string name = job.planned == nullptr
                                     ? "(segments)"
                                     : std::filesystem::path(job.planned->name).filename().string();
        row.insert(row.begin(), first ? name : "");
      }
      table.add(row);
      first = false;
    }
  }
  std::string text = failed < jobs.size() ? table.text() + "\n" : "";
  return text + fmt::format("{} compiled, {} were there{}, in {}", compiled, jobs.size() - compiled - failed,
                            failed > 0 ? fmt::format(", {} failed", failed) : "", folder);
}

int run(const Options& options) {
  std::vector<std::string> targets;
  for (const std::string& name : options.archs) {
    const std::string target = ahead_target(name);
    if (std::find(targets.begin(), targets.end(), target) == targets.end()) targets.push_back(target);
  }
  const std::vector<Planned> specs = plan_all(options.specs);
  std::vector<Job> jobs = list_jobs(specs, targets);
  Trouble trouble;
  KernelCache cache(cache_options(options.out, trouble));
  compile_all(jobs, cache);
  const std::string& folder = cache.options().folder;
  if (options.json) {
    print_json(to_json(jobs, folder));
  } else {
    print(to_text(jobs, specs.size(), folder));
  }
  bool failed = false;
  for (const Job& job : jobs) {
    if (!job.failure) continue;
    failed = true;
    try {
      std::rethrow_exception(job.failure);
    } catch (const Error& error) {
      fmt::print(stderr, "lossc: {} for {}: {}\n", job.planned == nullptr ? "segments" : job.planned->name,
                 job.target, error.what());
    }
  }
  if (cache.counters().write_errors > 0) {
    throw Error(ErrorCode::io, trouble.text.empty() ? "not every kernel could be written" : trouble.text);
  }
  if (!trouble.text.empty()) warn(trouble.text);
  return failed ? 1 : 0;
}

}  // namespace

void add_compile(CLI::App& app, int& status) {
  CLI::App* verb =
      app.add_subcommand("compile", "Compile kernels ahead of time, into a kernel cache; needs no GPU");
  const auto options = std::make_shared<Options>();
  verb->add_option("SPEC", options->specs, "Files of specs; - is standard input")->required();
  verb->add_option("--arch", options->archs,
                   "What to compile for: GPU architectures, or cpu for this machine's CPU")
      ->option_text("ARCH,...")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->required();
  verb->add_option("--out", options->out, "The cache folder to fill; the default one when not named")
      ->option_text("DIR");
  verb->add_flag("--json", options->json, "Print JSON");
  verb->footer(
      "DIR serves as LOSSC_CACHE_DIR or LOSSC_CACHE_READONLY_DIR on the machines that it is copied to. From "
      "9.0 on\n"
      "cards ask for the exact architecture, so that sm_90 is sm_90a. SHARED, SPILLS and STACK are bytes a "
      "block or\n"
      "a thread. Exit status 1 when a kernel could not be compiled or kept.");
  verb->callback([options, &status] { status = run(*options); });
}

}  // namespace lossc::cli
