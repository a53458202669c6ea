// Part one: the model learns the text with cross-entropy and z-loss.
#pragma once

#include <cstddef>
#include <random>
#include <vector>

#include "corpus.h"
#include "lossc/program.h"
#include "model.h"
#include "progress.h"

namespace demo {

struct PretrainingOptions {
  int steps = 900, warmup = 100, evaluate_every = 75;
  std::size_t rows = 1024;  ///< Bytes predicted in a step.
  double learning_rate = 4e-3, weight_decay = 1.0;
};

struct PretrainingResult {
  std::vector<double> train;  ///< Loss of each step, nats per byte.
  std::vector<int> held_out_steps;
  std::vector<double> held_out;
  double held_out_accuracy = 0;  ///< Share of held-out bytes that the model guesses right, at the end.
  /// The mean over the last steps: one step's batch is small.
  double final_train() const;
};

PretrainingResult pretrain(Model& model, const Corpus& corpus, const lossc::Program& training,
                           const lossc::Program& evaluation, const PretrainingOptions& options,
                           std::mt19937_64& random, const Console& console);

}  // namespace demo
