// Spec::parse: the spec's own keys. A child's are read in spec_child.cpp.
#include "lossc/spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "ir/names.h"
#include "ir/registry.h"
#include "ir/spec_child.h"
#include "ir/spec_parameters.h"
#include "ir/spec_reader.h"
#include "ir/spec_words.h"
#include "lossc/error.h"
#include "lossc/loss.h"

namespace lossc {
namespace ir {
namespace {

constexpr std::int64_t max_vocab = (std::int64_t{1} << 31) - 1;

void expect_name(const Cursor& at, const std::string& name, std::string_view what,
                 const std::vector<std::string>& reserved) {
  if (is_name(name) && std::find(reserved.begin(), reserved.end(), name) == reserved.end()) return;
  at.fail(fmt::format(
      "found the name {}; allowed: {} of at most {} letters, digits and _, not starting "
      "with a digit{}",
      in_quotes(name), what, max_name_length, reserved.empty() ? "" : ", none of " + quoted_list(reserved)));
}

std::map<std::string, double> read_params(const Cursor& root) {
  std::map<std::string, double> values;
  const auto at = root.get("params");
  if (!at) return values;
  at->expect_object("an object of numbers: {\"tau\": 1.0}");
  for (const auto& [name, value] : at->members()) {
    expect_name(value, name, "a name", {});
    if (value.is_null()) continue;
    values[name] = value.number(Range::any);
  }
  return values;
}

void read_logits(const Cursor& root, References& references, Spec& spec) {
  const Cursor at = root.require("logits", "an object: {\"dtype\": \"bf16\", \"vocab\": 131072}");
  at.expect_object("an object: {\"dtype\": \"bf16\", \"vocab\": 131072}",
                   {"dtype", "vocab", "scale", "softcap", "temperature", "order"});
  spec.logits_dtype =
      to_element_dtype(at.require("dtype", quoted_list(element_dtypes())).word(element_dtypes()));
  spec.vocab = at.require("vocab", fmt::format("an integer from 1 to {}", max_vocab)).integer(1, max_vocab);
  read_transform(at, "logits", references, spec.logits);
}

void read_losses(const Cursor& root, const LossRegistry& registry, References& references, Spec& spec) {
  const auto at = root.get("losses");
  if (!at) return;
  at->expect_object("an object of named losses: {\"ce\": {\"type\": \"cross_entropy\"}}");
  for (const auto& [name, child] : at->members()) {
    expect_name(child, name, "a name", {"logits", "params"});
    if (child.is_null()) continue;
    spec.losses.push_back(read_child(name, child, spec.logits, registry, references));
  }
  std::sort(spec.losses.begin(), spec.losses.end(),
            [](const ChildSpec& a, const ChildSpec& b) { return a.name < b.name; });
}

void read_tensors(const Cursor& root, const LossRegistry& registry, Spec& spec) {
  const std::map<std::string, std::string> used = spec_tensors(spec.losses, registry);
  const auto at = root.get("tensors");
  if (!at) return;
  at->expect_object("an object of tensors: {\"teacher_logits\": {\"dtype\": \"bf16\"}}");
  std::vector<std::string> names;
  for (const auto& [name, tensor] : used) names.push_back(name);
  for (const auto& [name, tensor] : at->members()) {
    if (tensor.is_null()) continue;
    const auto it = used.find(name);
    if (it == used.end()) {
      if (name == "logits" || name == "grad_logits") {
        tensor.fail(fmt::format("found {}; its dtype is set by {}", in_quotes(name),
                                name == "logits" ? "logits.dtype" : "gradient.dtype"));
      }
      const std::string hint = did_you_mean(name, names);
      tensor.fail(fmt::format("found {}, which no child uses{} allowed: {}", in_quotes(name),
                              hint.empty() ? ";" : hint,
                              names.empty() ? "none, as the spec has no losses" : comma_list(names)));
    }
    const std::string& kind = it->second;
    tensor.expect_object("an object: {\"dtype\": \"bf16\"}", {"dtype", "space"});
    TensorSpec read;
    if (const auto dtype = tensor.get("dtype")) {
      if (kind != "element") {
        dtype->fail(fmt::format(
            "found a dtype for {}; allowed: one for tensors of the logits' shape alone, the others "
            "take the dtype of the batch",
            in_quotes(name)));
      }
      read.dtype = to_element_dtype(dtype->word(element_dtypes()));
    }
    if (const auto space = tensor.get("space")) {
      if (kind != "advantages") {
        space->fail(fmt::format("found a space for {}; allowed: one for advantages alone", in_quotes(name)));
      }
      read.space = space->word({"rows", "segments"});
    }
    spec.tensors[name] = read;
  }
}

std::vector<std::string> names_of_children(const Spec& spec) {
  std::vector<std::string> names;
  for (const ChildSpec& child : spec.losses) names.push_back(child.name);
  return names;
}

const ChildSpec* find_child(const Spec& spec, std::string_view name) {
  for (const ChildSpec& child : spec.losses) {
    if (child.name == name) return &child;
  }
  return nullptr;
}

// Every metric that the spec may name, without suffix.
std::vector<std::string> all_metrics(const Spec& spec, const LossRegistry& registry) {
  std::vector<std::string> names = batch_metrics();
  for (const ChildSpec& child : spec.losses) {
    for (const std::string& metric : child_metrics(registry.at(child.type)))
      names.push_back(child.name + "." + metric);
  }
  return names;
}

void check_metric(const Cursor& at, const MetricSpec& metric, const Spec& spec,
                  const LossRegistry& registry) {
  std::string_view base = metric.name;
  std::string_view suffix;
  for (const std::string_view candidate : {".sum", ".count"}) {
    if (!base.ends_with(candidate)) continue;
    suffix = candidate;
    base.remove_suffix(candidate.size());
    break;
  }
  const std::vector<std::string> known = all_metrics(spec, registry);
  if (std::find(known.begin(), known.end(), base) == known.end()) {
    std::string hint = nearest_name(base, known);
    if (!hint.empty()) hint = fmt::format("; did you mean {}?", in_quotes(hint + std::string(suffix)));
    // One child's metrics where the child is known, else the pattern: the full list can be long.
    const std::string_view child = base.substr(0, base.find('.'));
    const ChildSpec* found = find_child(spec, child);
    std::string allowed;
    if (found != nullptr && base.size() > child.size()) {
      allowed = fmt::format("for {}, a loss of type {}: {}", found->name, found->type,
                            comma_list(child_metrics(registry.at(found->type))));
    } else {
      allowed =
          fmt::format("{}, or CHILD.METRIC{}", comma_list(batch_metrics()),
                      spec.losses.empty() ? "" : " of the children " + comma_list(names_of_children(spec)));
    }
    at.fail(fmt::format("found the metric {}{} allowed: {}; each with .sum or .count too",
                        in_quotes(metric.name), hint.empty() ? ";" : hint, allowed));
  }
  const std::size_t dot = base.find('.');
  if (dot == std::string_view::npos) return;  // the batch's own figures are means over rows
  const ChildSpec& child = *find_child(spec, base.substr(0, dot));
  const std::string_view figure = base.substr(dot + 1);
  const MetricForm form = metric_form(registry.at(child.type), figure);
  if (!suffix.empty() && !form.mean) {
    at.fail(fmt::format("found {}; allowed: {} without {}, as it is no mean", in_quotes(metric.name),
                        in_quotes(base), suffix));
  }
  if (metric.per_document && (!form.mean || form.of_pairs)) {
    at.fail(
        fmt::format("found {} weighted by document; allowed: that for means over rows or segments, and "
                    "it is {}",
                    in_quotes(metric.name), form.mean ? "a mean over pairs" : "no mean"));
  }
  const auto labels = child.inputs.find("labels");
  if (figure == "token_accuracy" && labels != child.inputs.end() && !labels->second) {
    at.fail(
        fmt::format("found {}, which needs labels, and losses.{}.inputs.labels is null; allowed: it for "
                    "children with labels",
                    in_quotes(metric.name), child.name));
  }
}

void read_metrics(const Cursor& root, const LossRegistry& registry, Spec& spec) {
  const auto at = root.get("metrics");
  if (!at) return;
  std::map<std::string, std::string> taken;
  for (const Cursor& item : at->items("an array of metric names")) {
    MetricSpec metric;
    Cursor name = item;
    if (item.json().is_object()) {
      item.expect_object("a metric", {"name", "weighting"});
      name = item.require("name", "a metric's name");
      if (const auto weighting = item.get("weighting")) {
        metric.per_document = weighting->word({"token", "document"}) == "document";
      }
    }
    metric.name = name.string("a metric's name, or {\"name\": NAME, \"weighting\": \"document\"}");
    check_metric(name, metric, spec, registry);
    if (const auto [it, first] = taken.try_emplace(metric.name, item.path()); !first) {
      item.fail(fmt::format("found {}, which {} names too; allowed: each metric once", in_quotes(metric.name),
                            it->second));
    }
    spec.metrics.push_back(std::move(metric));
  }
}

void read_outputs(const Cursor& root, const LossRegistry& registry, Spec& spec) {
  const auto at = root.get("outputs");
  if (!at) return;
  std::vector<std::string> known = batch_outputs();
  std::set<std::string> of_pairs;
  for (const ChildSpec& child : spec.losses) {
    const std::string name = child.name + ".loss";
    if (registry.at(child.type).domain == LossDomain::pairs) {
      of_pairs.insert(name);
    } else {
      known.push_back(name);
    }
  }
  std::set<std::string> taken;
  for (const Cursor& item : at->items("an array of output names: " + comma_list(known))) {
    if (item.json().is_string() && of_pairs.contains(item.json().get<std::string>())) {
      item.refuse(fmt::format("one number a row: {}. This loss is one of pairs", comma_list(known)));
    }
    std::string name = item.word(known);
    if (!taken.insert(name).second) {
      item.fail(fmt::format("found {} a second time; allowed: each output once", in_quotes(name)));
    }
    spec.outputs.push_back(std::move(name));
  }
}

void read_gradient(const Cursor& root, Spec& spec) {
  spec.gradient_dtype = spec.logits_dtype;
  // Without a loss there is nothing to differentiate.
  spec.gradient_mode = spec.losses.empty() ? GradientMode::none : GradientMode::overwrite;
  const auto at = root.get("gradient");
  if (!at) return;
  at->expect_object("an object: {\"mode\": \"overwrite\", \"dtype\": \"bf16\"}", {"mode", "dtype", "form"});
  if (const auto mode = at->get("mode")) spec.gradient_mode = to_gradient_mode(mode->word(gradient_modes()));
  if (const auto dtype = at->get("dtype"))
    spec.gradient_dtype = to_element_dtype(dtype->word(element_dtypes()));
  if (const auto form = at->get("form")) {
    if (form->word({"dense", "factored"}) == "factored") {
      throw Error(ErrorCode::unsupported,
                  fmt::format("{}: found \"factored\", which is not available yet; allowed: "
                              "\"dense\"",
                              form->path()));
    }
  }
  if (spec.gradient_mode == GradientMode::in_place && spec.gradient_dtype != spec.logits_dtype) {
    const Cursor dtype = at->require("dtype", "");
    dtype.refuse(fmt::format("{}, the dtype of the logits, as the gradient is written over them",
                             in_quotes(element_dtype_name(spec.logits_dtype))));
  }
}

void read_parallel(const Cursor& root, Spec& spec) {
  const auto at = root.get("parallel");
  if (!at) return;
  at->expect_object("an object of group names: {\"vocab\": \"tp\"}", {"vocab", "sequence", "data"});
  for (const auto& [dimension, group] : at->members()) {
    if (group.is_null()) continue;
    const std::string name = group.string("the name of a group of ranks");
    expect_name(group, name, "a group's name", {});
    spec.parallel[dimension] = name;
  }
}

}  // namespace
}  // namespace ir

Spec Spec::parse(std::string_view json, const LossRegistry& registry) {
  using namespace ir;
  const Json tree = read_json(json);
  const Cursor root(tree, "$");
  root.expect_object("an object: a loss spec");
  root.require("version", "1").integer(1, 1);
  root.expect_object("an object: a loss spec", {"version", "logits", "tensors", "params", "losses", "metrics",
                                                "outputs", "gradient", "parallel"});
  Spec spec;
  References references(read_params(root));
  read_logits(root, references, spec);
  read_losses(root, registry, references, spec);
  references.expect_all_used();
  spec.params = references.values();
  read_tensors(root, registry, spec);
  read_metrics(root, registry, spec);
  read_outputs(root, registry, spec);
  read_gradient(root, spec);
  read_parallel(root, spec);
  if (spec.losses.empty() && spec.metrics.empty() && spec.outputs.empty()) {
    root.fail("found a spec that asks for nothing; required: at least one of losses, metrics and outputs");
  }
  return spec;
}

}  // namespace lossc
