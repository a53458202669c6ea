// Metrics and outputs of the reference.
#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

#include "tests/reference_evaluator.h"

namespace lossc::test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

// "policy.ratio.sum@document" -> child, figure, summary, weighting.
struct MetricName {
  std::string child, figure, summary;
  bool per_document = false;

  explicit MetricName(std::string text) {
    if (const auto mark = text.find('@'); mark != std::string::npos) {
      per_document = true;
      text.erase(mark);
    }
    for (const char* suffix : {".sum", ".count"}) {
      if (!text.ends_with(suffix)) continue;
      summary = suffix + 1;
      text.erase(text.rfind('.'));
    }
    const auto dot = text.find('.');
    if (dot != std::string::npos) child = text.substr(0, dot);
    figure = dot == std::string::npos ? text : text.substr(dot + 1);
  }
};

}  // namespace

ChildState& Evaluator::state_named(const std::string& name) {
  if (name.empty()) return block_;
  for (ChildState& s : states_) {
    if (s.child->name == name) return s;
  }
  throw std::logic_error("no child " + name);
}

Bounded Evaluator::row_figure(ChildState& s, const std::string& name, std::int64_t r) {
  if (name == "entropy") return s.entropy[at(r)];
  if (name == "token_accuracy") return s.accurate[at(r)] ? 1 : 0;
  if (name == "logprob") return s.logprob[at(r)];
  if (name == "old_logprob") return s.old_logprob[at(r)];
  if (name == "ratio" || name == "ratio_sum") return s.ratio[at(r)];
  if (name == "ratio_sq_sum") return s.ratio[at(r)] * s.ratio[at(r)];
  if (name == "advantage_mean" || name == "advantage_min" || name == "advantage_max")
    return s.advantage[at(r)];
  if (name == "tokens") return 1;
  const Bounded d = s.logprob[at(r)] - s.old_logprob[at(r)];
  if (name == "kl_k1") return -d;
  // r - 1 - log r: expm1 keeps the digits of a small d, the difference cancels down to d^2 / 2.
  if (name == "kl_k3") {
    const double e = std::expm1(d.value);
    return {e - d.value, (std::abs(e) + std::abs(d.value)) * 8 * unit + std::abs(e) * d.error};
  }
  if (name == "clip_fraction")
    return binds(*s.child, s.effective_advantage[at(r)].value, s.ratio[at(r)]) ? 1 : 0;
  if (name == "clip_fraction_band") return side(*s.child, s.ratio[at(r)]) != 0 ? 1 : 0;
  throw std::logic_error("no figure " + name);
}

Bounded Evaluator::pair_figure(ChildState& s, const std::string& name) {
  const double beta = s.child->number("beta", 0.1);
  BoundedSum sum;
  const auto pairs = counting_pairs(s);
  for (const auto& [chosen, rejected] : pairs) {
    const Bounded a = Bounded(beta, unit * beta) * s.segment_value[at(chosen)];
    const Bounded b = Bounded(beta, unit * beta) * s.segment_value[at(rejected)];
    const Bounded margin = a - b;
    if (name == "reward_accuracy" && std::abs(margin.value) <= margin.error) result_.undecided = true;
    sum.add(name == "reward_chosen"     ? a
            : name == "reward_rejected" ? b
            : name == "reward_margin"   ? margin
                                        : Bounded(margin.value > 0 ? 1 : 0));
  }
  return sum.total() / std::max(static_cast<double>(pairs.size()), 1.0);
}

Bounded Evaluator::figure(const std::string& metric) {
  const MetricName name(metric);
  ChildState& s = state_named(name.child);
  if (name.figure.starts_with("reward_")) return pair_figure(s, name.figure);
  if (name.figure == "segments") {
    return static_cast<double>(
        std::count_if(s.segment_rows.begin(), s.segment_rows.end(), [](double n) { return n > 0; }));
  }
  if (name.figure.ends_with("_min") || name.figure.ends_with("_max")) {
    const bool is_min = name.figure.ends_with("_min");
    double best = is_min ? infinity : -infinity;
    for (std::int64_t r = 0; r < batch_.rows; ++r) {
      if (!s.counts[at(r)]) continue;
      const double value = row_figure(s, name.figure, r).value;
      best = is_min ? std::min(best, value) : std::max(best, value);
    }
    return best;
  }
  BoundedSum sum;
  for (std::int64_t r = 0; r < batch_.rows; ++r) {
    if (!s.counts[at(r)] || (name.per_document && segment_[at(r)] < 0)) continue;
    const double length = name.per_document ? s.length[at(segment_[at(r)])] : 1;
    sum.add(row_figure(s, name.figure, r) / length);
  }
  const double count = name.per_document ? s.sequence_count : s.row_count;
  if (name.summary == "count") return count;
  const bool is_sum = name.summary == "sum" || name.figure.ends_with("_sum") || name.figure == "tokens";
  return is_sum ? sum.total() : sum.total() / std::max(count, 1.0);
}

std::vector<Bounded> Evaluator::row_output(const std::string& name) {
  const bool of_child = name.ends_with(".loss");
  const ChildState& s = of_child ? state_named(name.substr(0, name.size() - 5)) : block_;
  const std::vector<Bounded>& source = of_child             ? s.row_loss
                                       : name == "logprobs" ? s.logprob
                                       : name == "entropy"  ? s.entropy
                                                            : s.lse;
  std::vector<Bounded> values(at(batch_.rows), 0.0);
  for (std::size_t r = 0; r < values.size(); ++r) {
    if (s.counts[r]) values[r] = source[r];
  }
  return values;
}

}  // namespace lossc::test
