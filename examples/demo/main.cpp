// lossc at its job, on real text and a CPU: a byte-level language model is trained with cross-entropy and
// z-loss, then improved as a policy with GSPO and z-loss. Each loss is compiled once; batches of any size
// reuse it.
#include <fmt/format.h>
#include <tbb/global_control.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <numbers>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "corpus.h"
#include "lossc/program.h"
#include "model.h"
#include "plot.h"
#include "policy_training.h"
#include "pretraining.h"
#include "progress.h"
#include "replay.h"
#include "rollout.h"
#include "specs.h"

namespace demo {
namespace {

struct Options {
  std::vector<std::string> text = {"/usr/share/common-licenses"};
  std::string out = "build/demo";
  std::uint64_t seed = 1;
  bool quick = false;
};

/// The programs of the demo, and how many compilations they took.
struct Programs {
  lossc::Program pretraining = compile(pretraining_spec), evaluation = compile(evaluation_spec),
                 logprobs = compile(logprobs_spec), policy = compile(policy_spec);
  static constexpr int count = 4;

 private:
  static lossc::Program compile(const char* spec) {
    return lossc::Program::compile(lossc::Spec::parse(spec));
  }
};

/// Prints continuations of a few fixed prompts, with their rewards.
void show_samples(const Model& model, const Corpus& corpus, const PhraseReward& reward, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  auto samples = sample(model, draw_prompts(corpus.train, 4, 32, random), 1, 72, 72, random);
  for (Sample& one : samples) {
    for (char& c : one.text) {
      if (static_cast<unsigned char>(c) < 32 || static_cast<unsigned char>(c) > 126) c = ' ';
    }
    fmt::print("  {:.2f}  {} | {}\n", reward(one.text, one.prompt_bytes),
               one.text.substr(0, one.prompt_bytes), one.continuation());
  }
}

std::vector<double> counted(std::size_t count) {
  std::vector<double> numbers;
  for (std::size_t i = 1; i <= count; ++i) numbers.push_back(static_cast<double>(i));
  return numbers;
}

std::vector<Chart> draw_charts(const Corpus& corpus, const PretrainingResult& learned,
                               const PolicyResult& improved) {
  Chart loss{.title = "Learning the text: cross-entropy + z-loss",
             .x_label = "step",
             .y_label = "nats per byte",
             .level = Level{"byte frequencies alone", corpus.entropy_nats},
             .y_min = 0,
             .y_max = 6};
  loss.series.push_back({"training", counted(learned.train.size()), smoothed(learned.train, 10)});
  loss.series.push_back(
      {"held out", {learned.held_out_steps.begin(), learned.held_out_steps.end()}, learned.held_out, true});
  Chart reward{.title = "Improving the policy: GSPO + z-loss", .x_label = "batch", .y_label = "mean reward"};
  reward.series.push_back({"reward", counted(improved.reward.size()), improved.reward});
  return {loss, reward};
}

int run(const Options& options) {
  const auto start = std::chrono::steady_clock::now();
  const Console console = Console::detect();
  const tbb::global_control threads(tbb::global_control::max_allowed_parallelism,
                                    static_cast<std::size_t>(lossc::num_threads()));
  std::filesystem::create_directories(options.out);

  const Corpus corpus = Corpus::read(options.text);
  fmt::print("text: {} bytes of {} files, {} more held out\n", corpus.train.size(), corpus.files,
             corpus.held_out.size());
  fmt::print("baseline: the entropy of its bytes is {:.3f} nats, {:.3f} bits per byte\n", corpus.entropy_nats,
             corpus.entropy_bits());

  const Programs programs;
  const std::int64_t compilations = lossc::statistics().compilations;
  fmt::print("losses: {} specs compiled in {:.0f} ms\n", Programs::count,
             1e3 * lossc::statistics().compile_seconds);

  std::mt19937_64 random(options.seed);
  Model model(ModelShape{}, random);
  fmt::print("model: {} parameters, sees the last {} bytes; threads: {}\n\n", model.parameters().size(),
             model.shape().context, lossc::num_threads());

  PretrainingOptions pretraining;
  PolicyOptions policy;
  if (options.quick) {
    pretraining.steps = 150;
    pretraining.warmup = 50;
    pretraining.evaluate_every = 20;
    policy.batches = 4;
    policy.learning_rate = 1e-3;
  }
  const PretrainingResult learned =
      pretrain(model, corpus, programs.pretraining, programs.evaluation, pretraining, random, console);
  fmt::print(
      "  {:.3f} nats per byte ({:.2f} bits); held out {:.3f} ({:.2f} bits), {:.0f} % of its bytes "
      "guessed\n\n",
      learned.final_train(), learned.final_train() / std::numbers::ln2, learned.held_out.back(),
      learned.held_out.back() / std::numbers::ln2, 100 * learned.held_out_accuracy);

  const PhraseReward reward(corpus.train);
  fmt::print(
      "reward: the share of a continuation whose words follow each other like that in the text ({} pairs of\n"
      "words), each pair counted once; before:\n",
      reward.known_pairs());
  show_samples(model, corpus, reward, options.seed);
  PolicyResult improved =
      improve(model, corpus.train, reward, programs.logprobs, programs.policy, policy, random, console);
  fmt::print("after:\n");
  show_samples(model, corpus, reward, options.seed);

  fmt::print("\nthe last batch again, from files, by the lossc command:\n");
  const ReplayResult replayed =
      replay(lossc_command(), options.out, programs.policy.spec().to_json(), improved);

  const std::vector<Chart> charts = draw_charts(corpus, learned, improved);
  fmt::print("\n");
  for (const Chart& chart : charts) fmt::print("{}\n", terminal_plot(chart, console));
  const auto picture = std::filesystem::path(options.out) / "curves.svg";
  std::ofstream svg(picture);
  svg << svg_plot("lossc demo: one model, two losses", charts);
  if (!svg.flush()) throw std::runtime_error(fmt::format("cannot write {}", picture.string()));

  const double share = learned.final_train() / corpus.entropy_nats;
  const std::int64_t compiled_since = lossc::statistics().compilations - compilations;
  const bool learned_well = share < 1;
  const bool improved_well = improved.final_reward() > improved.first_reward();
  const bool compiled_once = compilations <= Programs::count && compiled_since == 0;
  fmt::print("the curves: {}\n", picture.string());
  fmt::print("the loss {} {:.3f} nats per byte, {:.0f} % of the baseline {:.3f}\n",
             learned_well ? "fell below the baseline:" : "did not fall below the baseline:",
             learned.final_train(), 100 * share, corpus.entropy_nats);
  fmt::print("the reward {} from {:.3f} to {:.3f}\n",
             improved_well ? "rose" : "did not rise:", improved.first_reward(), improved.final_reward());
  fmt::print("compilations: {} for {} specs, {} after the first batch\n", compilations, Programs::count,
             compiled_since);
  fmt::print("the lossc command {}\n", replayed == ReplayResult::same ? "gave the same bits"
                                       : replayed == ReplayResult::different
                                           ? "gave another result"
                                           : "was not there to compare with");
  fmt::print("{:.0f} s in all\n",
             std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  return learned_well && improved_well && compiled_once && replayed != ReplayResult::different ? 0 : 1;
}

}  // namespace
}  // namespace demo

int main(int argc, char** argv) {
  demo::Options options;
  CLI::App app(
      "Trains a small language model on text, then improves it on a reward, with losses compiled by lossc.");
  app.add_option("text", options.text, "Files or folders of text")->capture_default_str();
  app.add_option("--out", options.out, "Folder for curves.svg and the last batch")->capture_default_str();
  app.add_option("--seed", options.seed, "Of all random numbers: the same seed gives the same result")
      ->capture_default_str();
  app.add_flag("--quick", options.quick, "A few seconds instead of a minute or two");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  try {
    return demo::run(options);
  } catch (const std::exception& error) {
    std::fflush(stdout);
    fmt::print(stderr, "demo: {}\n", error.what());
    return 1;
  }
}
