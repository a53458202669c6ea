// The gradient of the reference: for each loss the formula of its derivative with respect to the transformed
// logits, summed over the children, then the chain to the raw logits.
#include <cmath>
#include <limits>

#include "tests/reference_evaluator.h"

namespace lossc::test {
namespace {

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

Bounded log_p(const Softmax& p, std::int64_t k) {
  return p.logprob(k);
}

}  // namespace

void Evaluator::gradient() {
  const std::size_t vocab = at(batch_.vocab);
  result_.gradient.assign(at(batch_.rows) * vocab, 0.0);
  std::vector<Bounded> row(vocab);
  for (std::int64_t r = 0; r < batch_.rows; ++r) {
    if (!result_.live[at(r)]) continue;
    const double upstream = batch_.grad_scale.empty()       ? 1
                            : batch_.grad_scale.size() == 1 ? batch_.grad_scale[0]
                                                            : batch_.grad_scale[at(r)];
    for (const ChildState& s : states_) {
      const double weight = s.child->weight.value_or(1);
      if (!s.counts[at(r)] || weight == 0) continue;
      row.assign(vocab, 0.0);
      add_row_gradient(s, r, Bounded(weight, unit * weight) * Bounded(upstream), row);
      for (std::size_t k = 0; k < vocab; ++k) {
        const double z = batch_.logits[at(r) * vocab + k];
        Bounded& sum = result_.gradient[at(r) * vocab + k];
        sum = sum + (std::isnan(row[k].value) ? Bounded(nan_value)
                                              : row[k] * transform_logit(s.transform, z).slope);
      }
    }
  }
}

void Evaluator::add_row_gradient(const ChildState& s, std::int64_t r, Bounded scale,
                                 std::vector<Bounded>& out) {
  const Child& child = *s.child;
  const Softmax& p = softmax(r, "logits", s.transform);
  const std::int64_t y = label(r, s), vocab = batch_.vocab;
  const auto fill_nan = [&] { out.assign(out.size(), nan_value); };
  if (p.nan) return fill_nan();

  if (child.type == "grpo" || child.type == "gspo" || child.type == "dpo") {
    // d logprob / d u = onehot - p
    const Bounded g = scale * s.gain[at(r)];
    if (std::isnan(g.value)) return fill_nan();
    for (std::int64_t k = 0; k < vocab; ++k) out[at(k)] = g * (Bounded(k == y ? 1 : 0) - p.p(k));
    return;
  }
  const Bounded w = scale * s.row_weight[at(r)];
  if (child.type == "cross_entropy") {
    // p - (1 - e) onehot - e / V
    const double smoothing = child.number("label_smoothing", 0);
    const Bounded uniform(smoothing / double(vocab), 2 * unit * smoothing / double(vocab));
    for (std::int64_t k = 0; k < vocab; ++k) {
      out[at(k)] = w * (p.p(k) - Bounded(k == y ? 1 - smoothing : 0, unit) - uniform);
    }
  } else if (child.type == "z_loss") {
    // 2 L p
    const Bounded coefficient = Bounded(2) * w * p.lse();
    for (std::int64_t k = 0; k < vocab; ++k) out[at(k)] = coefficient * p.p(k);
  } else if (child.type == "entropy") {
    // d H / d u = -p (log p + H)
    const double sign = child.option("direction", "maximize") == "maximize" ? 1 : -1;
    const Bounded h = p.entropy();
    for (std::int64_t k = 0; k < vocab; ++k) {
      const Bounded p_k = p.p(k);
      if (p_k.value == 0) continue;
      Bounded slope = log_p(p, k) + h;
      // The logarithm and H may each be formed from anchored parts, which cancel.
      slope.error += unit * (4 * (std::abs(p.x(k)) + p.gap) + std::abs(h.value) + std::abs(p.log_sum));
      out[at(k)] = Bounded(sign) * w * p_k * slope;
    }
  } else {
    const Softmax& q = teacher(r, s);
    if (q.nan) return fill_nan();
    Bounded coefficient = w;
    if (child.flag("temperature_squared")) {
      const double tau = s.transform.temperature.value_or(1);
      coefficient = coefficient * Bounded(tau * tau, 3 * unit * tau * tau);
    }
    if (child.option("divergence", "cross_entropy") != "reverse_kl") {
      for (std::int64_t k = 0; k < vocab; ++k) out[at(k)] = coefficient * (p.p(k) - q.p(k));
      return;
    }
    // p (log p - log q - R)
    const Bounded total = divergence(p, q);
    if (!std::isfinite(total.value)) return fill_nan();
    for (std::int64_t k = 0; k < vocab; ++k) {
      const Bounded p_k = p.p(k);
      if (p_k.value == 0) continue;
      Bounded slope = log_p(p, k) - log_p(q, k) - total;
      slope.error +=
          unit * 4 * (std::abs(p.x(k)) + std::abs(q.x(k)) + p.gap + q.gap + std::abs(p.max - q.max));
      out[at(k)] = coefficient * p_k * slope;
    }
  }
}

}  // namespace lossc::test
