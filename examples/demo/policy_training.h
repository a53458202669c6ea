// Part two: the same model as a policy, improved with GSPO and z-loss on a reward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "lossc/program.h"
#include "model.h"
#include "progress.h"
#include "rollout.h"

namespace demo {

struct PolicyOptions {
  int batches = 32, epochs = 4;
  std::size_t fewest_prompts = 12, most_prompts = 20, group = 8;
  std::size_t shortest = 24, longest = 72;
  double learning_rate = 3e-4;
  double epsilon_low = 0.03, epsilon_high = 0.04;
};

/// The tensors of one batch, as lossc takes them: sequences of different lengths one after the other.
struct PolicyBatch {
  Activations activations;
  std::vector<std::int32_t> labels, cu_seqlens;
  std::vector<float> old_logprobs, advantages;

  std::int64_t rows() const { return static_cast<std::int64_t>(labels.size()); }
  std::int64_t segments() const { return static_cast<std::int64_t>(advantages.size()); }
  /// From the samples with an advantage; the others would teach nothing. Fills in all but old_logprobs.
  void assemble(const ModelShape& shape, const std::vector<Sample>& samples);
};

struct PolicyResult {
  std::vector<double> reward;  ///< Mean of each batch.
  PolicyBatch last;            ///< With the logits and gradient of the last step.
  float last_loss = 0;
  double last_epsilon_low = 0, last_epsilon_high = 0;
  /// Mean over the first and over the last tenth of the batches.
  double first_reward() const, final_reward() const;
};

PolicyResult improve(Model& model, const std::string& text, const PhraseReward& reward,
                     const lossc::Program& logprobs, const lossc::Program& policy,
                     const PolicyOptions& options, std::mt19937_64& random, const Console& console);

}  // namespace demo
