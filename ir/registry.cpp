#include "ir/registry.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "ir/names.h"
#include "ir/spec_child.h"
#include "ir/spec_parameters.h"
#include "lossc/error.h"

namespace lossc {
namespace ir {
namespace {

template <class T>
bool contains(const std::vector<T>& items, std::string_view item) {
  return std::find(items.begin(), items.end(), item) != items.end();
}

// Tensors that say what counts: any child may use them.
const std::vector<std::string>& common_inputs() {
  static const std::vector<std::string> names = {"labels", "mask", "label_counts"};
  return names;
}

const InputDefinition* find_input(const LossDefinition& definition, std::string_view name) {
  for (const InputDefinition& input : definition.inputs) {
    if (input.name == name) return &input;
  }
  return nullptr;
}

[[noreturn]] void refuse(const LossDefinition& definition, const std::string& what) {
  throw Error(ErrorCode::invalid_argument, fmt::format("loss type {}: {}", in_quotes(definition.name), what));
}

// A key of a child in a spec: well-formed, not one that every child has, and used once.
void check_key(const LossDefinition& definition, const char* what, const std::string& name,
               std::set<std::string>& taken) {
  if (!is_name(name)) {
    refuse(definition, fmt::format("{} name {}: a name is letters, digits and _, not starting with a digit",
                                   what, in_quotes(name)));
  }
  if (contains(common_child_keys(), name)) {
    refuse(definition, fmt::format("{} name {} is reserved; every child has the keys {}", what,
                                   in_quotes(name), comma_list(common_child_keys())));
  }
  if (!taken.insert(name).second)
    refuse(definition, fmt::format("the name {} is used twice", in_quotes(name)));
}

void check_keys(const LossDefinition& definition) {
  std::set<std::string> taken;
  for (const ParameterDefinition& parameter : definition.parameters) {
    check_key(definition, "parameter", parameter.name, taken);
    if (parameter.fallback && !in_range(*parameter.fallback, parameter.range)) {
      refuse(definition, fmt::format("parameter {}: the fallback {} is not {}", in_quotes(parameter.name),
                                     *parameter.fallback, range_text(parameter.range)));
    }
  }
  for (const OptionDefinition& option : definition.options) {
    check_key(definition, "option", option.name, taken);
    if (option.allowed.empty())
      refuse(definition, fmt::format("option {} allows no value", in_quotes(option.name)));
    if (std::set<std::string>(option.allowed.begin(), option.allowed.end()).size() != option.allowed.size()) {
      refuse(definition, fmt::format("option {} lists a value twice", in_quotes(option.name)));
    }
  }
  for (const FlagDefinition& flag : definition.flags) check_key(definition, "flag", flag.name, taken);
}

void check_inputs(const LossDefinition& definition) {
  static const std::vector<std::string> spaces = {"rows", "segments", "pairs", "element", "vocab"};
  std::set<std::string> taken;
  for (const InputDefinition& input : definition.inputs) {
    if (!is_name(input.name) || contains(reserved_tensors(), input.name)) {
      refuse(definition,
             fmt::format("input name {}: a name is letters, digits and _, not starting with a digit, and "
                         "none of {}",
                         in_quotes(input.name), comma_list(reserved_tensors())));
    }
    if (!contains(spaces, input.space)) {
      refuse(definition, fmt::format("input {}: found the space {}; allowed: {}", in_quotes(input.name),
                                     in_quotes(input.space), comma_list(spaces)));
    }
    if (!taken.insert(input.name).second)
      refuse(definition, fmt::format("input {} is listed twice", in_quotes(input.name)));
  }
}

void check_reductions(const LossDefinition& definition) {
  static const std::vector<std::string> known = {
      "token_mean",        "sum",       "none",          "sequence_mean", "sequence_sum_mean",
      "sequence_sum_norm", "pair_mean", "weighted_mean", "divisor"};
  std::set<std::string> taken;
  for (const std::string& reduction : definition.reductions) {
    if (!contains(known, reduction)) {
      refuse(definition, fmt::format("reduction {} is unknown; allowed: {}{}", in_quotes(reduction),
                                     comma_list(known), did_you_mean(reduction, known)));
    }
    if (!taken.insert(reduction).second)
      refuse(definition, fmt::format("reduction {} is listed twice", in_quotes(reduction)));
  }
}

void check_metrics(const LossDefinition& definition) {
  std::set<std::string> taken;
  for (const MetricDefinition& metric : definition.metrics) {
    if (!is_name(metric.name) || metric.name == "sum" || metric.name == "count") {
      refuse(definition,
             fmt::format("metric name {}: a name is letters, digits and _, not starting with a digit, and "
                         "neither sum nor count, which are suffixes",
                         in_quotes(metric.name)));
    }
    if (!metric.value)
      refuse(definition, fmt::format("metric {} has no value function", in_quotes(metric.name)));
    if (!taken.insert(metric.name).second)
      refuse(definition, fmt::format("metric {} is listed twice", in_quotes(metric.name)));
  }
}

}  // namespace

const std::vector<std::string>& common_child_keys() {
  static const std::vector<std::string> keys = {"type",  "weight", "scale",     "softcap", "temperature",
                                                "order", "inputs", "reduction", "divisor", "count_empty"};
  return keys;
}

const std::vector<std::string>& allowed_reductions(const LossDefinition& definition) {
  static const std::vector<std::string> rows = {
      "token_mean", "sum", "none", "sequence_mean", "sequence_sum_mean", "sequence_sum_norm", "divisor"};
  static const std::vector<std::string> segments = {
      "token_mean", "sum", "sequence_mean", "sequence_sum_mean", "sequence_sum_norm", "divisor"};
  static const std::vector<std::string> pairs = {"pair_mean", "sum", "divisor"};
  if (!definition.reductions.empty()) return definition.reductions;
  switch (definition.domain) {
    case LossDomain::segments:
      return segments;
    case LossDomain::pairs:
      return pairs;
    case LossDomain::rows:
      break;
  }
  return rows;
}

bool needs_divisor(std::string_view reduction) {
  return reduction == "divisor" || reduction == "sequence_sum_norm";
}

std::vector<std::string> child_inputs(const LossDefinition& definition) {
  std::vector<std::string> names = common_inputs();
  if (definition.domain != LossDomain::pairs) names.push_back("token_weights");
  for (const InputDefinition& input : definition.inputs) {
    if (!contains(names, input.name)) names.push_back(input.name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool may_opt_out(const LossDefinition& definition, std::string_view input) {
  const InputDefinition* own = find_input(definition, input);
  if (own != nullptr) return !own->required;
  return input == "labels" || input == "mask" || input == "label_counts" || input == "token_weights";
}

const std::vector<std::string>& batch_metrics() {
  static const std::vector<std::string> names = {"entropy", "token_accuracy"};
  return names;
}

std::vector<std::string> child_metrics(const LossDefinition& definition) {
  std::vector<std::string> names = batch_metrics();
  for (const MetricDefinition& metric : definition.metrics) {
    if (!contains(names, metric.name)) names.push_back(metric.name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

MetricForm metric_form(const LossDefinition& definition, std::string_view metric) {
  for (const MetricDefinition& own : definition.metrics) {
    if (own.name == metric) return {own.summary == MetricDefinition::Summary::mean, own.of_pairs};
  }
  return {};
}

}  // namespace ir

void LossRegistry::add(LossDefinition definition) {
  using namespace ir;
  if (!is_name(definition.name)) {
    refuse(definition, "a name is letters, digits and _, not starting with a digit");
  }
  if (definitions_.contains(definition.name)) refuse(definition, "the name is taken");
  if (!definition.value) refuse(definition, "it has no value function");
  check_keys(definition);
  check_inputs(definition);
  check_reductions(definition);
  check_metrics(definition);
  std::string name = definition.name;
  definitions_.emplace(std::move(name), std::move(definition));
}

const LossDefinition* LossRegistry::find(std::string_view name) const {
  const auto it = definitions_.find(name);
  return it == definitions_.end() ? nullptr : &it->second;
}

const LossDefinition& LossRegistry::at(std::string_view name) const {
  if (const LossDefinition* definition = find(name)) return *definition;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("loss type {} is unknown; known: {}{}", ir::in_quotes(name),
                          ir::comma_list(names()), ir::did_you_mean(name, names())));
}

std::vector<std::string> LossRegistry::names() const {
  std::vector<std::string> out;
  out.reserve(definitions_.size());
  for (const auto& [name, definition] : definitions_) out.push_back(name);
  return out;
}

}  // namespace lossc
