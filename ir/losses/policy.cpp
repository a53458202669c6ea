#include <functional>

#include "ir/losses/losses.h"

namespace lossc::losses {

namespace {

using Summary = MetricDefinition::Summary;

// The clipped surrogate of PPO: max(-A r, -A clip(r, 1 - low, 1 + high)).
Expr clipped_surrogate(LossContext& c, Expr advantage, Expr ratio) {
  Expr clipped = clip(ratio, 1.0 - c.parameter("epsilon_low"), 1.0 + c.parameter("epsilon_high"));
  return max(-zero_mul(advantage, ratio), -zero_mul(advantage, clipped));
}

Expr log_ratio(LossContext& c) {
  return c.logprob() - c.input("old_logprobs");
}

Expr token_ratio(LossContext& c) {
  return exp(log_ratio(c));
}

// GSPO's ratio: the geometric mean of the tokens' ratios, one a segment.
Expr segment_ratio(LossContext& c) {
  return exp(c.segment_mean(log_ratio(c)));
}

std::vector<MetricDefinition> policy_metrics(std::function<Expr(LossContext&)> ratio,
                                             std::function<Expr(LossContext&)> advantage) {
  auto above = [ratio](LossContext& c) { return ratio(c) > 1.0 + c.parameter("epsilon_high"); };
  auto below = [ratio](LossContext& c) { return ratio(c) < 1.0 - c.parameter("epsilon_low"); };
  return {
      {"logprob", "log-probability of the label", [](LossContext& c) { return c.logprob(); }},
      {"old_logprob", "log-probability under the policy that sampled",
       [](LossContext& c) { return c.input("old_logprobs"); }},
      {"ratio", "importance ratio", ratio},
      {"ratio_sum", "sum of the ratios", ratio, Summary::sum},
      {"ratio_sq_sum", "sum of the squared ratios", [ratio](LossContext& c) { return square(ratio(c)); },
       Summary::sum},
      {"kl_k1", "mean of old_logprob - logprob", [](LossContext& c) { return -log_ratio(c); }},
      {"kl_k3", "mean of r - 1 - log r over tokens",
       [](LossContext& c) { return expm1(log_ratio(c)) - log_ratio(c); }},
      {"clip_fraction",
       "where the clip binds: the ratio is outside on the side that the advantage's sign limits",
       [above, below, advantage](LossContext& c) {
         Expr a = advantage(c);
         return indicator((a > 0.0 && above(c)) || (a < 0.0 && below(c)));
       }},
      {"clip_fraction_band", "where the ratio is outside the band, whatever the advantage",
       [above, below](LossContext& c) { return indicator(above(c) || below(c)); }},
      {"advantage_mean", "", [](LossContext& c) { return c.advantages(); }},
      {"advantage_min", "", [](LossContext& c) { return c.advantages(); }, Summary::min},
      {"advantage_max", "", [](LossContext& c) { return c.advantages(); }, Summary::max},
      {"tokens", "rows that count", [](LossContext& c) { return indicator(c.counts()); }, Summary::sum},
      {"segments", "segments with a row that counts",
       [](LossContext& c) { return indicator(c.segment_count() > 0.0); }, Summary::total},
  };
}

std::vector<ParameterDefinition> clip_parameters(double low, double high) {
  return {{"epsilon_low", low, Range::non_negative, "the ratio is clipped below at 1 - epsilon_low"},
          {"epsilon_high", high, Range::non_negative, "the ratio is clipped above at 1 + epsilon_high"}};
}

}  // namespace

void add_policy(LossRegistry& registry) {
  const std::vector<InputDefinition> inputs = {
      {.name = "labels"}, {.name = "old_logprobs"}, {.name = "advantages"}};

  registry.add({.name = "grpo",
                .summary = "clipped policy gradient with one ratio a token (PPO, GRPO)",
                .formula = "max(-A r, -A clip(r, 1 - e_low, 1 + e_high)), r = exp(logprob - old_logprob)",
                .inputs = inputs,
                .parameters = clip_parameters(0.2, 0.2),
                .value = [](LossContext& c) { return clipped_surrogate(c, c.advantages(), token_ratio(c)); },
                .metrics = policy_metrics(token_ratio, [](LossContext& c) { return c.advantages(); })});

  auto segment_advantage = [](LossContext& c) { return c.segment_mean(c.advantages()); };
  registry.add(
      {.name = "gspo",
       .summary = "clipped policy gradient with one ratio a sequence (GSPO)",
       .formula = "per segment: max(-A R, -A clip(R, 1 - e_low, 1 + e_high)), R = exp(mean(logprob - "
                  "old_logprob)), A = mean(advantages); a segment weighs its tokens",
       .domain = LossDomain::segments,
       .inputs = inputs,
       .parameters = clip_parameters(3e-4, 4e-4),
       .value = [segment_advantage](
                    LossContext& c) { return clipped_surrogate(c, segment_advantage(c), segment_ratio(c)); },
       .metrics = policy_metrics(segment_ratio, segment_advantage)});
}

}  // namespace lossc::losses
