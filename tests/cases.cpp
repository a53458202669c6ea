#include "tests/cases.h"

#include <utility>

namespace lossc::test {
namespace {

NamedCase named(std::string name, std::vector<Child> children, BatchOptions options = {}) {
  return {std::move(name), losses(std::move(children)), options};
}

// One case per reduction that a loss of rows may have.
void add_row_reductions(std::vector<NamedCase>& cases, const std::string& name, const Child& base) {
  for (const char* reduction :
       {"token_mean", "sum", "none", "divisor", "sequence_mean", "sequence_sum_mean"}) {
    Child child = base;
    child.reduction = reduction;
    if (child.reduction == "divisor") child.divisor = 3.25;
    cases.push_back(named(name + " " + reduction, {child}));
    if (!child.reduction.starts_with("sequence")) continue;
    child.flags["count_empty"] = true;
    cases.push_back(named(name + " " + reduction + " count_empty", {child}));
    child.flags.clear();
    if (child.reduction != "sequence_mean") continue;
    BatchOptions options;
    options.label_counts = true;
    cases.push_back(named(name + " " + reduction + " label_counts", {child}, options));
  }
}

void add_transforms(std::vector<NamedCase>& cases, const std::string& name, const Child& base) {
  const std::pair<const char*, TransformKeys> transforms[] = {
      {"scale", {.scale = 0.5}},
      {"softcap", {.softcap = 4}},
      {"temperature", {.temperature = 2.5}},
      {"scale softcap temperature", {.scale = 1.5, .softcap = 5, .temperature = 0.8}},
      {"cap_first", {.scale = 1.5, .softcap = 5, .temperature = 0.8, .cap_first = true}},
  };
  for (const auto& [label, keys] : transforms) {
    NamedCase in_block = named(name + " block " + label, {base});
    in_block.spec.logits = keys;
    cases.push_back(in_block);
    Child own = base;
    own.transform = keys;
    cases.push_back(named(name + " own " + label, {own}));
  }
  // A child's keys stand in place of the block's, key by key.
  NamedCase both = named(name + " block and own", {base});
  both.spec.logits = {.scale = 0.7, .softcap = 6};
  both.spec.children[0].transform = {.softcap = 3, .temperature = 1.5};
  cases.push_back(both);
}

BatchOptions grad_scaled(BatchOptions::GradScale kind) {
  BatchOptions options;
  options.grad_scale = kind;
  return options;
}

}  // namespace

LossCase losses(std::vector<Child> children, std::int64_t vocab) {
  LossCase spec;
  spec.vocab = vocab;
  spec.children = std::move(children);
  return spec;
}

Child cross_entropy(std::string name) {
  return {.name = std::move(name), .type = "cross_entropy"};
}
Child z_loss(double weight, std::string name) {
  return {.name = std::move(name), .type = "z_loss", .weight = weight};
}
// Bounds wide enough for a few dozen random tokens to fall on both sides of them.
Child gspo(std::string name) {
  return {.name = std::move(name), .type = "gspo", .numbers = {{"epsilon_low", 0.15}, {"epsilon_high", 0.2}}};
}
Child grpo(std::string name) {
  return {.name = std::move(name), .type = "grpo"};
}
Child dpo(std::string name) {
  return {.name = std::move(name), .type = "dpo"};
}
Child distillation(std::string divergence, std::string name) {
  Child child{.name = std::move(name), .type = "distillation"};
  if (!divergence.empty()) child.options["divergence"] = std::move(divergence);
  return child;
}

std::vector<NamedCase> likelihood_cases() {
  std::vector<NamedCase> cases;
  const Child smooth{.name = "ce", .type = "cross_entropy", .numbers = {{"label_smoothing", 0.1}}};
  const Child weighted{.name = "ce", .type = "cross_entropy", .weight = 0.3};
  add_row_reductions(cases, "cross_entropy", cross_entropy());
  add_transforms(cases, "cross_entropy", cross_entropy());
  cases.push_back(named("cross_entropy weight", {weighted}));
  cases.push_back(
      named("cross_entropy scalar grad_scale", {weighted}, grad_scaled(BatchOptions::GradScale::scalar)));
  cases.push_back(
      named("cross_entropy row grad_scale", {weighted}, grad_scaled(BatchOptions::GradScale::rows)));
  cases.push_back(named("label_smoothing", {smooth}));
  add_transforms(cases, "label_smoothing", smooth);
  add_row_reductions(cases, "z_loss", z_loss());
  add_transforms(cases, "z_loss", z_loss());
  Child opted_out = z_loss();
  opted_out.inputs["labels"] = std::nullopt;
  // The labels belong to the other child; this one counts ignored rows too.
  cases.push_back(named("z_loss without labels", {opted_out, cross_entropy()}));
  BatchOptions no_labels;
  no_labels.labels = false;
  cases.push_back(named("z_loss, batch without labels", {z_loss()}, no_labels));
  no_labels.mask = false;
  cases.push_back(named("z_loss, every row", {z_loss()}, no_labels));
  for (const char* direction : {"maximize", "minimize"}) {
    const Child entropy{.name = "h", .type = "entropy", .weight = 0.2, .options = {{"direction", direction}}};
    add_row_reductions(cases, std::string("entropy ") + direction, entropy);
    if (std::string(direction) == "maximize") add_transforms(cases, "entropy", entropy);
  }
  return cases;
}

std::vector<NamedCase> distillation_cases() {
  std::vector<NamedCase> cases;
  cases.push_back(named("distillation default", {distillation("")}));
  for (const char* divergence : {"cross_entropy", "forward_kl", "reverse_kl"}) {
    const std::string name = divergence;
    add_row_reductions(cases, name, distillation(divergence));
    add_transforms(cases, name, distillation(divergence));
    Child child = distillation(divergence);
    child.numbers = {{"teacher_temperature", 1.7}};
    cases.push_back(named(name + " teacher_temperature", {child}));
    child.transform.temperature = 2.0;
    cases.push_back(named(name + " temperature, teacher_temperature", {child}));
    child.numbers = {{"teacher_scale", 0.6}, {"teacher_softcap", 5}};
    cases.push_back(named(name + " teacher_scale, teacher_softcap", {child}));
    child.numbers.clear();
    child.flags["temperature_squared"] = true;
    cases.push_back(named(name + " temperature_squared", {child}));
  }
  return cases;
}

std::vector<NamedCase> policy_cases() {
  std::vector<NamedCase> cases;
  add_row_reductions(cases, "grpo", grpo());
  add_transforms(cases, "grpo", grpo());
  Child narrow = grpo();
  narrow.numbers = {{"epsilon_low", 0.1}, {"epsilon_high", 0.28}};
  cases.push_back(named("grpo epsilons", {narrow}));
  BatchOptions per_segment;
  per_segment.segment_advantages = true;
  NamedCase advantages = named("grpo segment advantages", {grpo()}, per_segment);
  advantages.spec.tensor_spaces["advantages"] = "segments";
  cases.push_back(advantages);

  Child plain = gspo();
  plain.numbers.clear();
  BatchOptions tight;
  tight.log_ratio_spread = 1e-3;
  tight.rows = 16;
  cases.push_back(named("gspo default epsilons", {plain}, tight));
  BatchOptions options;
  options.rows = 16;
  options.segments = 5;
  for (const char* reduction : {"token_mean", "sum", "divisor", "sequence_mean", "sequence_sum_mean"}) {
    for (const bool counts : {false, true}) {
      Child child = gspo();
      child.reduction = reduction;
      if (child.reduction == "divisor") child.divisor = 0.8;
      options.label_counts = counts;
      cases.push_back(
          named(std::string("gspo ") + reduction + (counts ? " label_counts" : ""), {child}, options));
    }
  }
  Child empty = gspo();
  empty.reduction = "sequence_mean";
  empty.flags["count_empty"] = true;
  options.label_counts = false;
  cases.push_back(named("gspo count_empty", {empty}, options));
  for (const auto form : {BatchOptions::Segments::ids, BatchOptions::Segments::cu_seqlens}) {
    options.segment_form = form;
    cases.push_back(named(form == BatchOptions::Segments::ids ? "gspo segment_ids" : "gspo cu_seqlens",
                          {gspo()}, options));
  }
  options.segment_advantages = true;
  NamedCase segment = named("gspo segment advantages", {gspo()}, options);
  segment.spec.tensor_spaces["advantages"] = "segments";
  cases.push_back(segment);
  add_transforms(cases, "gspo", gspo());
  return cases;
}

std::vector<NamedCase> preference_cases() {
  std::vector<NamedCase> cases;
  BatchOptions options;
  options.rows = 18;
  options.segments = 6;
  for (const char* reduction : {"pair_mean", "sum", "divisor"}) {
    Child child = dpo();
    child.reduction = reduction;
    if (child.reduction == "divisor") child.divisor = 5;
    cases.push_back(named(std::string("dpo ") + reduction, {child}, options));
  }
  Child strong = dpo();
  strong.numbers["beta"] = 0.7;
  strong.weight = 1.5;
  cases.push_back(named("dpo beta", {strong}, options));
  add_transforms(cases, "dpo", dpo());
  return cases;
}

std::vector<NamedCase> combination_cases() {
  std::vector<NamedCase> cases;
  BatchOptions options;
  options.rows = 16;
  options.segments = 4;
  const Child entropy{.name = "h", .type = "entropy", .weight = 0.05};
  const auto weigh = [](Child child, double weight) {
    child.weight = weight;
    return child;
  };
  const auto add = [&](std::string name, std::vector<Child> children) -> NamedCase& {
    cases.push_back(named(std::move(name), std::move(children), options));
    return cases.back();
  };
  add("ce + z", {cross_entropy(), z_loss()});
  add("ce + z + entropy", {cross_entropy(), z_loss(), entropy});
  add("gspo + z + ce", {gspo(), z_loss(), weigh(cross_entropy(), 0.5)});
  add("gspo + distillation", {gspo(), weigh(distillation("reverse_kl"), 0.5)});
  add("gspo + z + ce + distillation",
      {gspo(), z_loss(), weigh(cross_entropy(), 0.5), weigh(distillation("forward_kl"), 0.3)});
  add("grpo + entropy + distillation", {grpo(), entropy, weigh(distillation("reverse_kl"), 0.25)});
  add("grpo + gspo", {grpo("token"), gspo("sequence")});
  add("dpo + ce", {dpo(), weigh(cross_entropy(), 0.2)});
  add("everything", {cross_entropy(), z_loss(), entropy, distillation("cross_entropy"), grpo("token"),
                     gspo("sequence"), dpo()});

  // Two softmaxes of the same read: hard labels at temperature 1, soft ones at 2.
  Child soft = distillation("forward_kl");
  soft.transform.temperature = 2;
  soft.flags["temperature_squared"] = true;
  add("two temperatures", {cross_entropy(), soft});
  Child sharp = cross_entropy("sharp");
  sharp.transform.temperature = 0.5;
  add("two cross entropies", {cross_entropy(), weigh(sharp, 0.7)});

  // Children of one type with tensors of their own.
  Child teacher_b = distillation("reverse_kl", "second");
  teacher_b.inputs["teacher_logits"] = "teacher_b";
  teacher_b.weight = 0.4;
  add("two teachers", {distillation("forward_kl", "first"), teacher_b});
  Child policy_b = gspo("second");
  policy_b.inputs = {{"old_logprobs", "old_b"}, {"advantages", "advantages_b"}};
  policy_b.numbers = {{"epsilon_low", 0.3}, {"epsilon_high", 0.2}};
  add("two policies", {gspo("first"), policy_b});
  Child labels_b = cross_entropy("second");
  labels_b.inputs["labels"] = "labels_b";
  add("two label tensors", {cross_entropy("first"), labels_b, z_loss()});

  NamedCase& measured = add("metrics and outputs", {gspo(), grpo("token"), cross_entropy(), dpo()});
  measured.spec.metrics = {"entropy",
                           "token_accuracy",
                           "entropy.sum",
                           "entropy.count",
                           "ce.entropy",
                           "ce.token_accuracy",
                           "pref.reward_chosen",
                           "pref.reward_rejected",
                           "pref.reward_margin",
                           "pref.reward_accuracy"};
  for (const char* figure :
       {"logprob", "old_logprob", "ratio", "ratio_sum", "ratio_sq_sum", "kl_k1", "kl_k3", "clip_fraction",
        "clip_fraction_band", "advantage_mean", "advantage_min", "advantage_max", "tokens", "segments",
        "ratio.sum", "ratio.count", "clip_fraction.sum"}) {
    measured.spec.metrics.push_back(std::string("policy.") + figure);
    if (std::string(figure) != "segments") measured.spec.metrics.push_back(std::string("token.") + figure);
  }
  measured.spec.outputs = {"logprobs", "entropy", "lse", "policy.loss", "token.loss", "ce.loss"};

  NamedCase& document = add("metrics by document", {gspo(), cross_entropy()});
  document.spec.metrics = {"entropy@document", "policy.logprob@document", "policy.ratio@document",
                           "policy.kl_k3@document", "ce.token_accuracy@document"};
  document.options.label_counts = true;

  NamedCase& watching = add("outputs alone", {});
  watching.spec.gradient_mode = "none";
  watching.spec.outputs = {"logprobs", "entropy", "lse"};
  watching.spec.metrics = {"token_accuracy"};
  return cases;
}

std::vector<NamedCase> all_cases() {
  std::vector<NamedCase> all;
  for (const auto& family :
       {likelihood_cases(), distillation_cases(), policy_cases(), preference_cases(), combination_cases()}) {
    all.insert(all.end(), family.begin(), family.end());
  }
  return all;
}

NamedCase resized(NamedCase named, std::int64_t vocab, std::int64_t rows, std::int64_t segments) {
  named.spec.vocab = vocab;
  named.options.rows = rows;
  named.options.segments = segments;
  return named;
}

}  // namespace lossc::test
