// The loss specs that values and gradients are tested on: every built-in loss alone with each of its options
// and reductions, and combinations.
#pragma once

#include <string>
#include <vector>

#include "tests/batch.h"
#include "tests/loss_case.h"

namespace lossc::test {

struct NamedCase {
  std::string name;
  LossCase spec;
  BatchOptions options;
};

std::vector<NamedCase> likelihood_cases();  // cross_entropy, z_loss, entropy
std::vector<NamedCase> distillation_cases();
std::vector<NamedCase> policy_cases();      // grpo, gspo
std::vector<NamedCase> preference_cases();  // dpo
std::vector<NamedCase> combination_cases();
std::vector<NamedCase> all_cases();

/// The same losses over another vocabulary and other types.
NamedCase resized(NamedCase named, std::int64_t vocab, std::int64_t rows, std::int64_t segments);

// Children of the combinations that several tests use.
Child cross_entropy(std::string name = "ce");
Child z_loss(double weight = 0.01, std::string name = "z");
Child gspo(std::string name = "policy");
Child grpo(std::string name = "policy");
Child dpo(std::string name = "pref");
Child distillation(std::string divergence, std::string name = "distill");
LossCase losses(std::vector<Child> children, std::int64_t vocab = 7);

}  // namespace lossc::test
