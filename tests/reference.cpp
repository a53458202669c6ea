#include "tests/reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/reference_evaluator.h"

namespace lossc::test {
namespace {

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

bool by_segment(const Child& child) {
  return child.type == "gspo" || child.type == "dpo" || child.reduction.starts_with("sequence");
}

Bounded temperature_squared(const ChildState& s) {
  const double tau = s.transform.temperature.value_or(1);
  return Bounded(tau * tau, 3 * unit * tau * tau);
}

double low_bound(const Child& child) {
  return 1 - child.number("epsilon_low", child.type == "gspo" ? 3e-4 : 0.2);
}
double high_bound(const Child& child) {
  return 1 + child.number("epsilon_high", child.type == "gspo" ? 4e-4 : 0.2);
}

// Divides the sum of the parts by what the reduction says; `count` is N or the number of pairs.
Bounded divide(const ChildState& s, Bounded sum, double count) {
  const std::string reduction = s.child->reduction_or_default();
  if (reduction == "sum" || reduction == "none") return sum;
  if (reduction == "divisor") return sum / Bounded(*s.child->divisor, unit * *s.child->divisor);
  if (reduction.starts_with("sequence")) return sum / std::max(s.sequence_count, 1.0);
  return sum / std::max(count, 1.0);
}

}  // namespace

Evaluator::Evaluator(const LossCase& spec, const Batch& batch) : spec_(spec), batch_(batch) {
  for (std::int64_t r = 0; r < batch.rows; ++r) segment_.push_back(batch.segment_of(r));
  for (const Child& child : spec.children) states_.push_back(prepare(child));
  block_ = prepare(block_child_);
  block_.transform = spec.logits;
}

Reference Evaluator::run(bool with_gradient) {
  const bool block_figures = !spec_.metrics.empty() || !spec_.outputs.empty();
  for (std::int64_t r = 0; r < batch_.rows; ++r) {
    for (ChildState& s : states_) {
      if (s.counts[at(r)]) read_child_row(s, r);
    }
    if (block_figures && block_.counts[at(r)]) read_child_row(block_, r);
  }
  Bounded total = 0;
  for (ChildState& state : states_) {
    combine(state);
    result_.scalars["loss." + state.child->name] = state.loss;
    const double weight = state.child->weight.value_or(1);
    if (weight != 0) total = total + Bounded(weight, unit * weight) * state.loss;
  }
  result_.scalars["loss"] = total;
  for (const std::string& metric : spec_.metrics) result_.scalars["metric." + metric] = figure(metric);
  for (const std::string& output : spec_.outputs) result_.rows["output." + output] = row_output(output);
  result_.live.assign(at(batch_.rows), false);
  for (std::int64_t r = 0; r < batch_.rows; ++r) {
    for (const ChildState& s : states_) {
      if (s.counts[at(r)] && s.child->weight.value_or(1) != 0) result_.live[at(r)] = true;
    }
  }
  if (with_gradient && spec_.gradient_mode != "none") gradient();
  return std::move(result_);
}

ChildState Evaluator::prepare(const Child& child) {
  ChildState s;
  s.child = &child;
  s.transform = spec_.effective(child);
  const std::size_t rows = at(batch_.rows), segments = at(batch_.segments);
  s.counts.resize(rows);
  s.accurate.resize(rows);
  for (auto* v : {&s.logprob, &s.entropy, &s.lse, &s.row_loss, &s.ratio, &s.effective_advantage, &s.gain,
                  &s.row_weight}) {
    v->resize(rows);
  }
  s.old_logprob.resize(rows);
  s.advantage.resize(rows);
  s.segment_rows.resize(segments);
  s.length.resize(segments);
  s.segment_value.resize(segments);
  const auto counts = batch_.row_values.find("label_counts");
  for (std::int64_t r = 0; r < batch_.rows; ++r) {
    s.counts[at(r)] = row_counts(spec_, batch_, child, r);
    if (!s.counts[at(r)]) continue;
    s.row_count += 1;
    const std::int64_t segment = segment_[at(r)];
    if (segment < 0) continue;
    s.segment_rows[at(segment)] += 1;
    if (counts != batch_.row_values.end()) s.length[at(segment)] = counts->second[at(r)];
  }
  for (std::size_t i = 0; i < segments; ++i) {
    if (s.length[i] <= 0) s.length[i] = std::max(s.segment_rows[i], 1.0);
    if (s.segment_rows[i] > 0 || child.flag("count_empty")) s.sequence_count += 1;
  }
  return s;
}

const Softmax& Evaluator::softmax(std::int64_t row, const std::string& tensor, const TransformKeys& keys) {
  if (row != cached_row_) cache_.clear();
  cached_row_ = row;
  for (const auto& [name, k, value] : cache_) {
    if (name == tensor && k.scale == keys.scale && k.softcap == keys.softcap &&
        k.temperature == keys.temperature && k.cap_first == keys.cap_first) {
      return *value;
    }
  }
  const std::vector<double>& data = tensor == "logits" ? batch_.logits : batch_.elements.at(tensor);
  cache_.push_back(
      {tensor, keys, std::make_unique<Softmax>(&data[at(row * batch_.vocab)], batch_.vocab, keys)});
  return *cache_.back().value;
}

const Softmax& Evaluator::teacher(std::int64_t row, const ChildState& s) {
  TransformKeys keys;
  const auto named = [&](const char* key) {
    const auto it = s.child->numbers.find(key);
    return it == s.child->numbers.end() ? std::optional<double>() : it->second;
  };
  keys.scale = named("teacher_scale");
  keys.softcap = named("teacher_softcap");
  keys.temperature = s.transform.temperature;
  if (const auto own = named("teacher_temperature")) keys.temperature = keys.temperature.value_or(1) * *own;
  return softmax(row, s.child->input("teacher_logits"), keys);
}

std::int64_t Evaluator::label(std::int64_t row, const ChildState& s) const {
  const std::vector<std::int64_t>* labels = batch_.find_labels(s.child->input("labels"));
  return labels == nullptr ? -1 : (*labels)[at(row)];
}

void Evaluator::read_child_row(ChildState& s, std::int64_t r) {
  const Softmax& p = softmax(r, "logits", s.transform);
  const std::int64_t y = label(r, s);
  s.entropy[at(r)] = p.entropy();
  s.lse[at(r)] = p.lse();
  if (y >= 0) {
    s.logprob[at(r)] = p.logprob(y);
    s.accurate[at(r)] = is_accurate(p, r, y, s.transform.any());
  }
  const Child& child = *s.child;
  if (child.type == "grpo" || child.type == "gspo") {
    s.old_logprob[at(r)] = batch_.row_values.at(child.input("old_logprobs"))[at(r)];
    s.advantage[at(r)] = advantage(child, r);
  }
  Bounded& loss = s.row_loss[at(r)];
  if (child.type == "cross_entropy") {
    loss = smoothed(child.number("label_smoothing", 0), p, y);
  } else if (child.type == "z_loss") {
    loss = p.lse() * p.lse();
  } else if (child.type == "entropy") {
    loss = child.option("direction", "maximize") == "maximize" ? -p.entropy() : p.entropy();
  } else if (child.type == "distillation") {
    const Softmax& q = teacher(r, s);
    const std::string kind = child.option("divergence", "cross_entropy");
    loss = kind == "cross_entropy" ? soft_cross_entropy(p, q)
           : kind == "forward_kl"  ? divergence(q, p)
                                   : divergence(p, q);
    if (child.flag("temperature_squared")) loss = loss * temperature_squared(s);
  } else if (child.type == "grpo") {
    s.ratio[at(r)] = bounded_exp(s.logprob[at(r)] - s.old_logprob[at(r)]);
    s.effective_advantage[at(r)] = s.advantage[at(r)];
    loss = clipped(child, s.advantage[at(r)], s.ratio[at(r)]);
  }
}

// The first index of the maximum is the label. Exact: unless a transform brings rounding in between.
bool Evaluator::is_accurate(const Softmax& p, std::int64_t r, std::int64_t y, bool transformed) {
  if (p.nan) return false;
  const double* z = &batch_.logits[at(r * batch_.vocab)];
  bool best = true;
  for (std::int64_t k = 0; k < batch_.vocab; ++k) {
    if (k == y) continue;
    if (z[k] > z[y] || (z[k] == z[y] && k < y)) best = false;
    const double margin = transform_error(p.u[at(k)]) + transform_error(p.u[at(y)]);
    if (transformed && z[k] != z[y] && p.x(k) > -2 * margin && std::abs(p.u[at(k)] - p.u[at(y)]) <= margin) {
      result_.undecided = true;
    }
  }
  return best;
}

double Evaluator::advantage(const Child& child, std::int64_t r) const {
  const auto rows = batch_.row_values.find(child.input("advantages"));
  if (rows != batch_.row_values.end()) return rows->second[at(r)];
  const std::int64_t segment = segment_[at(r)];
  return segment < 0 ? 0 : batch_.segment_values.at(child.input("advantages"))[at(segment)];
}

Bounded Evaluator::smoothed(double smoothing, const Softmax& p, std::int64_t y) const {
  const Bounded nll = -p.logprob(y);
  if (smoothing == 0 || p.nan) return nll;
  BoundedSum uniform;
  for (std::int64_t k = 0; k < batch_.vocab; ++k) uniform.add(-p.logprob(k));
  return Bounded(1 - smoothing, unit) * nll +
         Bounded(smoothing, unit) * uniform.total() / double(batch_.vocab);
}

int Evaluator::side(const Child& child, Bounded ratio) {
  const double low = low_bound(child), high = high_bound(child);
  for (double bound : {low, high}) {
    // A ratio that is exact (1, from a difference of 0) is decided however near.
    if (ratio.error > 0 && std::abs(ratio.value - bound) <= ratio.error + 2 * unit) result_.undecided = true;
  }
  return ratio.value > high ? 1 : ratio.value < low ? -1 : 0;
}

bool Evaluator::binds(const Child& child, double advantage, Bounded ratio) {
  const int s = side(child, ratio);
  return (advantage > 0 && s > 0) || (advantage < 0 && s < 0);
}

Bounded Evaluator::clipped(const Child& child, Bounded advantage, Bounded ratio) {
  if (advantage.value == 0) return 0;
  if (std::isnan(ratio.value) || std::isnan(advantage.value)) return nan_value;
  if (!binds(child, advantage.value, ratio)) return -(advantage * ratio);
  const double bound = advantage.value > 0 ? high_bound(child) : low_bound(child);
  return -(advantage * Bounded(bound, unit));
}

Bounded Evaluator::clipped_gain(const Child& child, Bounded advantage, Bounded ratio) {
  if (advantage.value == 0) return 0;
  if (std::isnan(ratio.value) || std::isnan(advantage.value)) return nan_value;
  return binds(child, advantage.value, ratio) ? Bounded(0) : -(advantage * ratio);
}

void Evaluator::combine(ChildState& s) {
  if (s.child->type == "gspo") return combine_gspo(s);
  if (s.child->type == "dpo") return combine_dpo(s);
  const bool mean_in_sequence = s.child->reduction_or_default() == "sequence_mean";
  BoundedSum sum;
  for (std::int64_t r = 0; r < batch_.rows; ++r) {
    if (!s.counts[at(r)]) continue;
    const double length = mean_in_sequence ? s.length[at(segment_[at(r)])] : 1;
    sum.add(s.row_loss[at(r)] / length);
    s.row_weight[at(r)] = divide(s, Bounded(1) / length, s.row_count);
    if (s.child->type != "grpo") continue;
    s.gain[at(r)] = clipped_gain(*s.child, s.advantage[at(r)], s.ratio[at(r)]) * s.row_weight[at(r)];
  }
  s.loss = divide(s, sum.total(), s.row_count);
}

void Evaluator::combine_gspo(ChildState& s) {
  std::vector<BoundedSum> log_ratio(at(batch_.segments)), advantages(at(batch_.segments));
  for (std::int64_t r = 0; r < batch_.rows; ++r) {
    if (!s.counts[at(r)]) continue;
    log_ratio[at(segment_[at(r)])].add(s.logprob[at(r)] - s.old_logprob[at(r)]);
    advantages[at(segment_[at(r)])].add(s.advantage[at(r)]);
  }
  const bool per_sequence = s.child->reduction_or_default() == "sequence_mean";
  BoundedSum sum;
  std::vector<Bounded> gain(at(batch_.segments)), ratio(at(batch_.segments)), mean(at(batch_.segments));
  for (std::size_t i = 0; i < at(batch_.segments); ++i) {
    if (s.segment_rows[i] == 0) continue;
    ratio[i] = bounded_exp(log_ratio[i].total() / s.length[i]);
    mean[i] = advantages[i].total() / s.length[i];
    s.segment_value[i] = clipped(*s.child, mean[i], ratio[i]);
    const double weight = per_sequence ? 1 : s.segment_rows[i];
    sum.add(s.segment_value[i] * weight);
    gain[i] = divide(s, clipped_gain(*s.child, mean[i], ratio[i]) * weight / s.length[i], s.row_count);
  }
  s.loss = divide(s, sum.total(), s.row_count);
  for (std::int64_t r = 0; r < batch_.rows; ++r) {
    if (!s.counts[at(r)]) continue;
    const std::size_t i = at(segment_[at(r)]);
    s.gain[at(r)] = gain[i];
    s.ratio[at(r)] = ratio[i];
    s.effective_advantage[at(r)] = mean[i];
    s.row_loss[at(r)] = s.segment_value[i];
  }
}

void Evaluator::combine_dpo(ChildState& s) {
  std::vector<BoundedSum> sums(at(batch_.segments));
  const std::vector<double>& ref = batch_.row_values.at(s.child->input("ref_logprobs"));
  for (std::int64_t r = 0; r < batch_.rows; ++r) {
    if (s.counts[at(r)]) sums[at(segment_[at(r)])].add(s.logprob[at(r)] - ref[at(r)]);
  }
  for (std::size_t i = 0; i < sums.size(); ++i) s.segment_value[i] = sums[i].total();
  const double beta = s.child->number("beta", 0.1);
  BoundedSum sum;
  std::vector<Bounded> gain(sums.size());
  const double pairs = static_cast<double>(counting_pairs(s).size());
  for (const auto& [chosen, rejected] : counting_pairs(s)) {
    const Bounded margin =
        Bounded(beta, unit * beta) * (s.segment_value[at(chosen)] - s.segment_value[at(rejected)]);
    sum.add(bounded_softplus(-margin));
    const Bounded slope = divide(s, -(Bounded(beta, unit * beta) * bounded_sigmoid(-margin)), pairs);
    gain[at(chosen)] = gain[at(chosen)] + slope;
    gain[at(rejected)] = gain[at(rejected)] - slope;
  }
  s.loss = divide(s, sum.total(), pairs);
  for (std::int64_t r = 0; r < batch_.rows; ++r) {
    if (s.counts[at(r)]) s.gain[at(r)] = gain[at(segment_[at(r)])];
  }
}

std::vector<std::array<std::int64_t, 2>> Evaluator::counting_pairs(const ChildState& s) const {
  std::vector<std::array<std::int64_t, 2>> all;
  for (const auto& pair : batch_.pairs) {
    if (pair[0] < 0 || pair[1] < 0) continue;
    const bool both = s.segment_rows[at(pair[0])] > 0 && s.segment_rows[at(pair[1])] > 0;
    if (both || s.child->flag("count_empty")) all.push_back(pair);
  }
  return all;
}

bool row_counts(const LossCase&, const Batch& batch, const Child& child, std::int64_t row) {
  if (!batch.mask.empty() && batch.mask[at(row)] == 0) return false;
  const std::vector<std::int64_t>* labels = batch.find_labels(child.input("labels"));
  if (labels != nullptr && (*labels)[at(row)] < 0) return false;
  return !by_segment(child) || batch.segment_of(row) >= 0;
}

Reference reference(const LossCase& spec, const Batch& batch, bool with_gradient) {
  return Evaluator(spec, batch).run(with_gradient);
}

double total_loss(const LossCase& spec, const Batch& batch) {
  return reference(spec, batch, false).scalars.at("loss").value;
}

std::vector<double> numeric_gradient(const LossCase& spec, Batch batch, double step) {
  std::vector<double> gradient(batch.logits.size());
  for (std::size_t i = 0; i < gradient.size(); ++i) {
    const double z = batch.logits[i];
    batch.logits[i] = z + step;
    const double above = total_loss(spec, batch);
    batch.logits[i] = z - step;
    const double below = total_loss(spec, batch);
    batch.logits[i] = z;
    const std::size_t row = i / at(batch.vocab);
    const double scale = batch.grad_scale.empty()       ? 1
                         : batch.grad_scale.size() == 1 ? batch.grad_scale[0]
                                                        : batch.grad_scale[row];
    gradient[i] = scale * (above - below) / (2 * step);
  }
  return gradient;
}

}  // namespace lossc::test
