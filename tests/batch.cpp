#include "tests/batch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <stdexcept>

#include "tests/reference.h"
#include "tests/reference_rows.h"

namespace lossc::test {
namespace {

constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

using Random = std::mt19937_64;

// The standard's distributions differ between libraries; these give the same batch everywhere.
double uniform(Random& random) {
  return static_cast<double>(random() >> 11) * 0x1p-53;
}
double normal(Random& random) {
  const double radius = std::sqrt(-2 * std::log(1 - uniform(random)));
  return radius * std::cos(6.283185307179586 * uniform(random));
}
std::int64_t below(Random& random, std::int64_t n) {
  return static_cast<std::int64_t>(uniform(random) * double(n));
}

class Generator {
 public:
  Generator(const LossCase& spec, const BatchOptions& options, Random& random)
      : spec_(spec), options_(options), random_(random) {
    batch_.rows = options.rows;
    batch_.vocab = spec.vocab;
  }

  Batch make() {
    make_labels();
    make_segments();
    make_logits();
    make_rows();
    for (const auto& [name, values] : batch_.elements) hide_elements(name);
    hide_logits();
    return std::move(batch_);
  }

 private:
  void make_labels() {
    std::set<std::string> names;
    for (const Child& child : spec_.children) {
      const bool needs = child.type == "cross_entropy" || !inputs_of(child.type).empty();
      const bool optional = child.type == "z_loss" || child.type == "entropy" || child.type == "distillation";
      const std::string name = child.input("labels");
      if (!name.empty() && (options_.labels || (needs && !optional))) names.insert(name);
    }
    const auto of_block = [](const std::string& name) { return name.find('.') == name.npos; };
    const auto of_batch = [](const std::string& name) {
      return name.starts_with("entropy") || name.starts_with("token_accuracy");
    };
    const bool block = std::any_of(spec_.outputs.begin(), spec_.outputs.end(), of_block) ||
                       std::any_of(spec_.metrics.begin(), spec_.metrics.end(), of_batch);
    if (block && options_.labels) names.insert("labels");
    for (const std::string& name : names) {
      auto& labels = batch_.labels[name];
      for (std::int64_t r = 0; r < batch_.rows; ++r) {
        const bool ignored = uniform(random_) < options_.ignored_fraction;
        labels.push_back(ignored ? (random_() % 2 ? -100 : -1) : below(random_, batch_.vocab));
      }
    }
    if (!options_.mask) return;
    for (std::int64_t r = 0; r < batch_.rows; ++r) {
      // Any value but 0 lets a row count.
      const bool masked = uniform(random_) < options_.masked_fraction;
      batch_.mask.push_back(masked ? 0 : random_() % 4 == 0 ? 255 : 1);
    }
  }

  void make_segments() {
    auto form = options_.segment_form;
    const bool document = std::any_of(spec_.metrics.begin(), spec_.metrics.end(), [](const auto& m) {
      return m.find("@") != m.npos || m.ends_with("segments");
    });
    const bool needed = spec_.needs_segments() || document || options_.segment_advantages;
    if (!needed || form == BatchOptions::Segments::none) return;
    if (form == BatchOptions::Segments::automatic) {
      form = random_() % 2 ? BatchOptions::Segments::ids : BatchOptions::Segments::cu_seqlens;
    }
    batch_.segmented = true;
    batch_.segments = options_.segments;
    if (form == BatchOptions::Segments::cu_seqlens) {
      batch_.cu_seqlens.push_back(0);
      for (std::int64_t s = 1; s < batch_.segments; ++s)
        batch_.cu_seqlens.push_back(below(random_, batch_.rows + 1));
      batch_.cu_seqlens.push_back(batch_.rows);
      std::sort(batch_.cu_seqlens.begin(), batch_.cu_seqlens.end());
    } else {
      for (std::int64_t r = 0; r < batch_.rows; ++r) {
        const bool outside = uniform(random_) < options_.outside_fraction;
        batch_.segment_ids.push_back(outside ? -1 - below(random_, 3) : below(random_, batch_.segments));
      }
    }
    const bool paired = std::any_of(spec_.children.begin(), spec_.children.end(),
                                    [](const Child& child) { return child.type == "dpo"; });
    if (!paired || batch_.segments == 0) return;
    for (std::int64_t i = 0; i < std::max<std::int64_t>(batch_.segments / 2, 1); ++i) {
      const std::int64_t chosen = below(random_, batch_.segments);
      batch_.pairs.push_back(
          {chosen,
           (chosen + 1 + below(random_, std::max<std::int64_t>(batch_.segments - 1, 1))) % batch_.segments});
    }
  }

  bool is_label(std::int64_t r, std::int64_t k) const {
    return std::any_of(batch_.labels.begin(), batch_.labels.end(),
                       [&](const auto& entry) { return entry.second[at(r)] == k; });
  }

  void make_logits() {
    std::set<std::string> teachers;
    for (const Child& child : spec_.children) {
      if (child.type == "distillation") teachers.insert(child.input("teacher_logits"));
    }
    for (std::int64_t r = 0; r < batch_.rows; ++r) {
      for (std::int64_t k = 0; k < batch_.vocab; ++k) {
        double z = rounded(spec_.logits_dtype, options_.spread * normal(random_));
        // The row keeps one finite logit: its last.
        if (uniform(random_) < options_.minus_inf_fraction && !is_label(r, k) && k + 1 < batch_.vocab)
          z = -infinity;
        batch_.logits.push_back(z);
        for (const std::string& teacher : teachers) {
          double t = (std::isfinite(z) ? 0.6 * z : 0) + 0.8 * options_.spread * normal(random_);
          if (options_.teacher_minus_inf && !std::isfinite(z)) t = -infinity;
          batch_.elements[teacher].push_back(rounded(spec_.element_dtype(teacher), t));
        }
      }
    }
  }

  double logprob(const Child& child, std::int64_t r) {
    const std::int64_t y = (*batch_.find_labels(child.input("labels")))[at(r)];
    if (y < 0) return -1;
    return Softmax(batch_.logits_row(r), batch_.vocab, spec_.effective(child)).logprob(y).value;
  }

  void make_rows() {
    for (const Child& child : spec_.children) {
      for (const std::string& input : inputs_of(child.type)) {
        const std::string name = child.input(input);
        if (input == "teacher_logits" || batch_.row_values.count(name) != 0) continue;
        if (input == "advantages" && options_.segment_advantages) {
          auto& values = batch_.segment_values[name];
          values.clear();
          for (std::int64_t s = 0; s < batch_.segments; ++s) values.push_back(advantage());
          continue;
        }
        auto& values = batch_.row_values[name];
        std::vector<double> offset(at(batch_.segments) + 1);
        for (double& o : offset) o = normal(random_);
        for (std::int64_t r = 0; r < batch_.rows; ++r) {
          double value = 0;
          if (input == "advantages") value = advantage();
          if (input == "ref_logprobs") value = logprob(child, r) - 0.7 * normal(random_);
          if (input == "old_logprobs") {
            // Half of a log-ratio is the segment's own, so that geometric means do not all fall to 1.
            const double own =
                batch_.segments > 0 ? offset[at(std::max<std::int64_t>(batch_.segment_of(r), -1) + 1)] : 0;
            value = logprob(child, r) - options_.log_ratio_spread * (0.7 * own + 0.7 * normal(random_));
          }
          values.push_back(rounded(DType::fp32, value));
        }
      }
    }
    if (options_.label_counts) {
      std::vector<double> counts(at(batch_.segments) + 1);
      for (double& c : counts) c = double(1 + below(random_, batch_.rows + 4));
      auto& values = batch_.row_values["label_counts"];
      for (std::int64_t r = 0; r < batch_.rows; ++r)
        values.push_back(counts[at(std::max<std::int64_t>(batch_.segment_of(r), -1) + 1)]);
    }
    if (options_.grad_scale == BatchOptions::GradScale::scalar)
      batch_.grad_scale = {rounded(DType::fp32, 0.7)};
    if (options_.grad_scale == BatchOptions::GradScale::rows) {
      for (std::int64_t r = 0; r < batch_.rows; ++r)
        batch_.grad_scale.push_back(rounded(DType::fp32, normal(random_)));
    }
    if (spec_.gradient_mode != "accumulate") return;
    for (std::size_t i = 0; i < batch_.logits.size(); ++i) {
      batch_.previous_gradient.push_back(rounded(spec_.grad_dtype(), 0.1 * normal(random_)));
    }
  }

  double advantage() { return uniform(random_) < 0.15 ? 0 : rounded(DType::fp32, normal(random_)); }

  // Rows that no child of this teacher counts.
  void hide_elements(const std::string& name) {
    for (std::int64_t r = 0; r < batch_.rows; ++r) {
      const bool used = std::any_of(spec_.children.begin(), spec_.children.end(), [&](const Child& child) {
        return child.type == "distillation" && child.input("teacher_logits") == name &&
               row_counts(spec_, batch_, child, r);
      });
      if (!used) std::fill_n(&batch_.elements[name][at(r * batch_.vocab)], batch_.vocab, nan_value);
    }
  }

  void hide_logits() {
    const bool block = !spec_.metrics.empty() || !spec_.outputs.empty();
    for (std::int64_t r = 0; r < batch_.rows; ++r) {
      bool used = block && row_counts(spec_, batch_, Child{}, r);
      for (const Child& child : spec_.children) used = used || row_counts(spec_, batch_, child, r);
      if (!used) std::fill_n(batch_.logits_row(r), batch_.vocab, nan_value);
    }
  }

  const LossCase& spec_;
  const BatchOptions& options_;
  Random& random_;
  Batch batch_;
};

}  // namespace

const std::vector<std::int64_t>* Batch::find_labels(const std::string& name) const {
  const auto it = labels.find(name);
  return it == labels.end() ? nullptr : &it->second;
}

std::int64_t Batch::segment_of(std::int64_t row) const {
  if (!segment_ids.empty()) return segment_ids[at(row)];
  if (cu_seqlens.empty()) return -1;
  return std::upper_bound(cu_seqlens.begin(), cu_seqlens.end(), row) - cu_seqlens.begin() - 1;
}

Batch random_batch(const LossCase& spec, const BatchOptions& options, Random& random) {
  return Generator(spec, options, random).make();
}

Batch decided_batch(const LossCase& spec, const BatchOptions& options, Random& random) {
  for (int attempt = 0; attempt < 100; ++attempt) {
    Batch batch = random_batch(spec, options, random);
    if (!reference(spec, batch, false).undecided) return batch;
  }
  throw std::logic_error("100 batches in a row have a comparison too near to its tie");
}

}  // namespace lossc::test
