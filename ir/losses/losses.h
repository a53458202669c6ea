// The built-in losses, by family. Each function adds its definitions to the registry.
#pragma once

#include "lossc/loss.h"

namespace lossc::losses {

void add_likelihood(LossRegistry& registry);    // cross_entropy, z_loss, entropy
void add_distillation(LossRegistry& registry);  // distillation
void add_policy(LossRegistry& registry);        // grpo, gspo
void add_preference(LossRegistry& registry);    // dpo

}  // namespace lossc::losses
