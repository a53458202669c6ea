#include "bench/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>

#include "bench/copy.h"

namespace lossc::bench {
namespace {

using nlohmann::json;

// How often a preempted measurement is repeated before it is taken as it is, and its round put aside.
constexpr int attempts = 5;

struct Round {
  std::vector<double> copies;  ///< Seconds of each copy kernel.
  double seconds = 0;          ///< Of the losses; without any, of the fastest copy.
  bool disturbed = false;

  double best_copy() const { return *std::min_element(copies.begin(), copies.end()); }
};

std::size_t cut(std::size_t bytes, int part, int parts) {
  const auto at = bytes * static_cast<std::size_t>(part) / static_cast<std::size_t>(parts);
  return part == parts ? bytes : at / 64 * 64;
}

Timing time_copy(Team& team, const CopyKernel& kernel, char* to, const char* from, std::size_t bytes) {
  return undisturbed(attempts, [&] {
    return team.run([&](int thread) {
      const std::size_t begin = cut(bytes, thread, team.size());
      kernel.copy(to + begin, from + begin, cut(bytes, thread + 1, team.size()) - begin);
    });
  });
}

void check_copies(Team& team, const Batch& batch) {
  for (const CopyKernel& kernel : copy_kernels()) {
    std::memset(batch.gradient(), 0xff, batch.bytes());
    time_copy(team, kernel, batch.gradient(), batch.logits(), batch.bytes());
    if (std::memcmp(batch.gradient(), batch.logits(), batch.bytes()) != 0) {
      throw Error(ErrorCode::internal, fmt::format("the copy '{}' does not copy", kernel.name));
    }
  }
}

std::vector<double> collect(const std::vector<Round>& rounds, const std::function<double(const Round&)>& of) {
  std::vector<double> values;
  for (const Round& round : rounds) values.push_back(of(round));
  return values;
}

/// The seconds that `of` picks from each round, as a rate of reading and writing `bytes`.
json copy_json(std::string_view kernel, const std::vector<Round>& rounds, std::size_t bytes,
               const std::function<double(const Round&)>& of) {
  const Summary summary = summarize(collect(rounds, of));
  return {{"kernel", kernel},
          {"seconds", summary.median},
          {"gb_per_s", 2 * static_cast<double>(bytes) / summary.median * 1e-9},
          {"gb_per_s_best", 2 * static_cast<double>(bytes) / summary.min * 1e-9}};
}

/// Rounds of all copies, then `call`, after one round that warms up. Those in which a measurement stayed
/// disturbed are left out, unless all are.
std::vector<Round> run_rounds(Team& team, const Batch& batch, int count, const std::function<void()>& call) {
  std::vector<Round> rounds;
  for (int i = -1; i < count; ++i) {
    Round round;
    for (const CopyKernel& kernel : copy_kernels()) {
      const Timing timing = time_copy(team, kernel, batch.gradient(), batch.logits(), batch.bytes());
      round.disturbed |= timing.disturbed;
      round.copies.push_back(timing.seconds);
    }
    round.seconds = round.best_copy();
    if (call) {
      const Timing timing = undisturbed(attempts, [&] { return time_call(call); });
      round.disturbed |= timing.disturbed;
      round.seconds = timing.seconds;
    }
    if (i >= 0) rounds.push_back(std::move(round));
  }
  const auto disturbed = [](const Round& round) { return round.disturbed; };
  if (!std::all_of(rounds.begin(), rounds.end(), disturbed)) std::erase_if(rounds, disturbed);
  return rounds;
}

json describe(const Batch& batch, const std::vector<Round>& rounds, int passes) {
  json copies = json::array();
  std::size_t kernel = 0;
  for (const CopyKernel& one : copy_kernels()) {
    copies.push_back(
        copy_json(one.name, rounds, batch.bytes(), [&](const Round& round) { return round.copies[kernel]; }));
    ++kernel;
  }
  const Summary seconds = summarize(collect(rounds, [](const Round& round) { return round.seconds; }));
  const Summary best_copy = summarize(collect(rounds, std::mem_fn(&Round::best_copy)));
  const Summary ratio =
      summarize(collect(rounds, [](const Round& round) { return round.seconds / round.best_copy(); }));
  return {{"dtype", dtype_name(batch.dtype())},
          {"vocab", batch.vocab()},
          {"rows", batch.rows()},
          {"rounds", rounds.size()},
          {"disturbed", rounds.front().disturbed},
          {"seconds", seconds.median},
          {"gb_per_s", passes * static_cast<double>(batch.bytes()) / seconds.median * 1e-9},
          {"ratio", {{"median", ratio.median}, {"min", ratio.min}, {"max", ratio.max}}},
          {"ratio_of_best", seconds.min / best_copy.min},
          {"copy", copy_json("fastest of each round", rounds, batch.bytes(), std::mem_fn(&Round::best_copy))},
          {"copies", copies}};
}

const char* note(const json& result) {
  return result["disturbed"].get<bool>() ? " disturbed" : "";
}

void print_case(const json& result) {
  const json& ratio = result["ratio"];
  std::string goal = "-";
  if (!result["target"].is_null()) {
    goal = fmt::format("{:.2f} {}", result["target"].get<double>(),
                       ratio["median"] <= result["target"] ? "met" : "over");
  }
  fmt::print("{:<17} {:<5} {:>7} {:>6} {:>8.2f} {:>6.1f} {:>6.1f} {:>7.2f} {:>14} {:>6.2f} {:>10} {:>6}{}\n",
             result["case"].get<std::string>(), result["dtype"].get<std::string>(),
             result["vocab"].get<int>(), result["rows"].get<int>(), result["seconds"].get<double>() * 1e3,
             result["gb_per_s"].get<double>(), result["copy"]["gb_per_s"].get<double>(),
             ratio["median"].get<double>(),
             fmt::format("({:.2f}..{:.2f})", ratio["min"].get<double>(), ratio["max"].get<double>()),
             result["ratio_of_best"].get<double>(), goal, result["rounds"].get<int>(), note(result));
  std::fflush(stdout);
}

void print_copies(const json& result) {
  for (const json& copy : result["copies"]) {
    fmt::print("{:<17} {:<5} {:>7} {:>6} {:>8.2f} {:>6.1f} {:>9.1f} {:>6}{}\n",
               copy["kernel"].get<std::string>(), result["dtype"].get<std::string>(),
               result["vocab"].get<int>(), result["rows"].get<int>(), copy["seconds"].get<double>() * 1e3,
               copy["gb_per_s"].get<double>(), copy["gb_per_s_best"].get<double>(),
               result["rounds"].get<int>(), note(result));
  }
  std::fflush(stdout);
}

void print_head(int threads, const Options& options, bool copy_only) {
  fmt::print("{} threads, {}-byte vectors, {} MiB a tensor, sigma {}\n", threads, has_avx512() ? 64 : 32,
             options.mb, options.sigma);
  if (copy_only) {
    fmt::print("{:<17} {:<5} {:>7} {:>6} {:>8} {:>6} {:>9} {:>6}\n", "copy", "dtype", "vocab", "rows", "ms",
               "GB/s", "best GB/s", "rounds");
  } else {
    fmt::print("{:<17} {:<5} {:>7} {:>6} {:>8} {:>6} {:>6} {:>7} {:>14} {:>6} {:>10} {:>6}\n", "losses",
               "dtype", "vocab", "rows", "ms", "GB/s", "copy", "/ copy", "(min..max)", "best", "target",
               "rounds");
  }
}

}  // namespace

json measure(const Options& options, bool copy_only) {
  Team team(num_threads());
  if (!options.json) print_head(team.size(), options, copy_only);
  const bool teacher =
      !copy_only && std::any_of(options.names.begin(), options.names.end(),
                                [](const auto& name) { return find_case(name).reads_teacher(); });

  json results = json::array();
  for (const std::string& type : options.dtypes) {
    const DType dtype = parse_dtype(type);
    Batch batch(team, dtype, static_cast<std::size_t>(options.mb) << 20, options.sigma, teacher);
    for (const std::int64_t vocab : options.vocabs) {
      batch.set_vocab(team, vocab);
      check_copies(team, batch);
      if (copy_only) {
        results.push_back(describe(batch, run_rounds(team, batch, options.rounds, nullptr), 2));
        if (!options.json) print_copies(results.back());
        continue;
      }
      for (const std::string& name : options.names) {
        const Case& measured = find_case(name);
        const Program program = Program::compile(make_spec(measured, dtype, vocab));
        Execution execution(program);
        batch.bind(execution, program);
        batch.check(execution, measured);
        const auto rounds = run_rounds(team, batch, options.rounds, [&] { execution.run(); });
        json result = describe(batch, rounds, measured.passes());
        result["case"] = name;
        const double goal = target(measured, dtype);
        result["target"] = goal > 0 ? json(goal) : json();
        if (!options.json) print_case(result);
        results.push_back(std::move(result));
      }
    }
  }
  return {{"threads", team.size()},
          {"avx512", has_avx512()},
          {"mb", options.mb},
          {"sigma", options.sigma},
          {"results", std::move(results)}};
}

}  // namespace lossc::bench
