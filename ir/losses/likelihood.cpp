#include "ir/losses/losses.h"

namespace lossc::losses {

void add_likelihood(LossRegistry& registry) {
  registry.add({.name = "cross_entropy",
                .summary = "negative log-likelihood of the label, with label smoothing in PyTorch's form",
                .formula = "(1 - e) (lse(u) - u[label]) + e (lse(u) - mean_k u_k)",
                .inputs = {{.name = "labels"}},
                .parameters = {{.name = "label_smoothing",
                                .fallback = {},
                                .range = Range::probability,
                                .doc = "weight e of the uniform distribution over the vocabulary"}},
                .value = [](LossContext& c) {
                  Expr nll = -c.logprob();
                  if (!c.has_parameter("label_smoothing")) return nll;
                  Expr smoothing = c.parameter("label_smoothing");
                  Expr uniform = c.lse() - vocab_mean(c.logits(), c.vocab());
                  // Selected, not multiplied: with smoothing 0 a masked logit's infinite loss must not enter.
                  return select(equal(smoothing, 0.0), nll, (1.0 - smoothing) * nll + smoothing * uniform);
                }});
  registry.add({.name = "z_loss",
                .summary = "squared log-partition function: keeps logits from drifting",
                .formula = "lse(u)^2",
                .value = [](LossContext& c) { return square(c.lse()); }});
  registry.add({.name = "entropy",
                .summary = "entropy bonus (maximize) or penalty (minimize)",
                .formula = "-H(softmax(u)) to maximize, +H to minimize",
                .options = {{.name = "direction",
                             .allowed = {"maximize", "minimize"},
                             .doc = "whether minimizing the loss raises or lowers the entropy"}},
                .value = [](LossContext& c) {
                  Expr h = entropy(c.logits());
                  return c.option("direction") == "maximize" ? -h : h;
                }});
}

}  // namespace lossc::losses
