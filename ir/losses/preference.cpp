#include "ir/losses/losses.h"

namespace lossc::losses {

namespace {

// The implicit reward of each segment, without beta: sum of logprob - ref_logprob over its rows.
Expr log_ratio(LossContext& c) {
  return c.segment_sum(c.logprob() - c.input("ref_logprobs"));
}

Expr margin(LossContext& c) {
  Expr ratio = log_ratio(c);
  return c.parameter("beta") * (c.chosen(ratio) - c.rejected(ratio));
}

}  // namespace

void add_preference(LossRegistry& registry) {
  constexpr auto mean = MetricDefinition::Summary::mean;
  registry.add(
      {.name = "dpo",
       .summary = "direct preference optimisation over pairs of segments",
       .formula = "-log sigmoid(beta ((L_c - L_c_ref) - (L_r - L_r_ref))), L = sum of logprob over a segment",
       .domain = LossDomain::pairs,
       .inputs = {{.name = "labels"}, {.name = "ref_logprobs"}},
       .parameters = {{"beta", 0.1, Range::positive, "strength of the tie to the reference"}},
       .value = [](LossContext& c) { return -log_sigmoid(margin(c)); },
       .metrics = {
           {"reward_chosen", "beta (L_c - L_c_ref)",
            [](LossContext& c) { return c.parameter("beta") * c.chosen(log_ratio(c)); }, mean, true},
           {"reward_rejected", "beta (L_r - L_r_ref)",
            [](LossContext& c) { return c.parameter("beta") * c.rejected(log_ratio(c)); }, mean, true},
           {"reward_margin", "reward_chosen - reward_rejected", margin, mean, true},
           {"reward_accuracy", "pairs whose chosen reward is higher",
            [](LossContext& c) { return indicator(margin(c) > 0.0); }, mean, true},
       }});
}

}  // namespace lossc::losses
