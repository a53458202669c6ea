#include "ir/spec_child.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/names.h"
#include "ir/registry.h"
#include "ir/spec_parameters.h"
#include "lossc/error.h"

namespace lossc::ir {
namespace {

std::vector<std::string> child_keys(const LossDefinition& definition) {
  std::vector<std::string> keys = common_child_keys();
  for (const ParameterDefinition& parameter : definition.parameters) keys.push_back(parameter.name);
  for (const OptionDefinition& option : definition.options) keys.push_back(option.name);
  for (const FlagDefinition& flag : definition.flags) keys.push_back(flag.name);
  return keys;
}

const LossDefinition& read_type(const Cursor& at, const LossRegistry& registry) {
  const std::vector<std::string> known = registry.names();
  return registry.at(at.require("type", "a loss type: " + quoted_list(known)).word(known));
}

void read_inputs(const Cursor& at, const LossDefinition& definition, ChildSpec& child) {
  const std::vector<std::string> known = child_inputs(definition);
  at.expect_object("an object of input tensors: {\"teacher_logits\": \"teacher_b\"}");
  for (const auto& [name, value] : at.json().items()) {
    const std::vector<std::string>& shared = segment_tensors();
    if (std::find(shared.begin(), shared.end(), name) == shared.end()) continue;
    Cursor(value, at.path_of(name))
        .fail(fmt::format("found {}; allowed: {}. A batch has one set of segments and pairs, which no child "
                          "renames",
                          in_quotes(name), comma_list(known)));
  }
  at.expect_object("an object of input tensors: {\"teacher_logits\": \"teacher_b\"}", known);
  for (const auto& [name, value] : at.json().items()) {
    const Cursor input(value, at.path_of(name));
    if (value.is_null()) {
      if (!may_opt_out(definition, name)) {
        input.fail(fmt::format("found null; allowed: the name of a tensor, as {} needs this input",
                               definition.name));
      }
      child.inputs[name] = std::nullopt;
      continue;
    }
    const std::string allowed =
        fmt::format("a tensor's name (letters, digits and _, not starting with a digit; none of {}){}",
                    comma_list(reserved_tensors()), may_opt_out(definition, name) ? ", or null" : "");
    const std::string target = input.string(allowed);
    const auto& reserved = reserved_tensors();
    if (!is_name(target) || std::find(reserved.begin(), reserved.end(), target) != reserved.end()) {
      input.refuse(allowed);
    }
    // Naming token_weights, by whatever name, is what turns them on.
    if (target != name || name == "token_weights") child.inputs[name] = target;
  }
}

void read_reduction(const Cursor& at, const LossDefinition& definition, References& references,
                    ChildSpec& child) {
  const std::vector<std::string>& allowed = allowed_reductions(definition);
  child.reduction = allowed.front();
  if (const auto reduction = at.get("reduction")) child.reduction = reduction->word(allowed);
  if (const auto divisor = at.get("divisor")) {
    if (!needs_divisor(child.reduction)) {
      const bool possible = std::find(allowed.begin(), allowed.end(), "divisor") != allowed.end();
      divisor->fail(
          fmt::format("found a divisor with the reduction {}; allowed: {}", in_quotes(child.reduction),
                      possible ? "a divisor with \"reduction\": \"divisor\" or \"sequence_sum_norm\""
                               : "none for this loss"));
    }
    child.divisor = references.read(*divisor, Range::positive, child.name + ".divisor");
  } else if (needs_divisor(child.reduction)) {
    at.require(
        "divisor",
        fmt::format("a finite number > 0, the default of the run-time parameter, with the reduction {}",
                    in_quotes(child.reduction)));
  }
}

}  // namespace

const std::vector<std::string>& reserved_tensors() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all = {"logits", "grad_logits", "grad_scale", "loss", "ignore_index"};
    all.insert(all.end(), segment_tensors().begin(), segment_tensors().end());
    return all;
  }();
  return names;
}

const std::vector<std::string>& segment_tensors() {
  static const std::vector<std::string> names = {"cu_seqlens", "segment_ids", "num_segments", "pairs"};
  return names;
}

bool read_transform(const Cursor& at, const std::string& prefix, References& references,
                    Transform& transform) {
  bool named = false;
  const auto number = [&](const char* key, std::optional<Number>& value) {
    const std::optional<Cursor> found = at.get_or_null(key);
    if (!found) return;
    named = true;
    value.reset();
    if (!found->json().is_null()) value = references.read(*found, Range::positive, prefix + "." + key);
  };
  number("scale", transform.scale);
  number("softcap", transform.softcap);
  number("temperature", transform.temperature);
  if (const std::optional<Cursor> order = at.get_or_null("order")) {
    named = true;
    transform.cap_first =
        !order->json().is_null() && order->word({"scale_first", "cap_first"}) == "cap_first";
  }
  return named;
}

ChildSpec read_child(const std::string& name, const Cursor& at, const Transform& block,
                     const LossRegistry& registry, References& references) {
  ChildSpec child;
  child.name = name;
  at.expect_object("an object with a \"type\": {\"type\": \"cross_entropy\", \"weight\": 1}");
  // The type first: which keys exist depends on it.
  const LossDefinition& definition = read_type(at, registry);
  child.type = definition.name;
  at.expect_object("an object", child_keys(definition));

  if (const auto weight = at.get("weight")) {
    child.weight = references.read(*weight, Range::non_negative, name + ".weight");
  }
  Transform own = block;
  if (read_transform(at, name, references, own)) child.transform = own;
  for (const ParameterDefinition& parameter : definition.parameters) {
    if (const auto value = at.get(parameter.name)) {
      child.numbers[parameter.name] = references.read(*value, parameter.range, name + "." + parameter.name);
    }
  }
  for (const OptionDefinition& option : definition.options) {
    const auto value = at.get(option.name);
    child.options[option.name] = value ? value->word(option.allowed) : option.allowed.front();
  }
  for (const FlagDefinition& flag : definition.flags) {
    const auto value = at.get(flag.name);
    child.flags[flag.name] = value ? value->boolean() : flag.fallback;
  }
  const auto count_empty = at.get("count_empty");
  child.flags["count_empty"] = count_empty && count_empty->boolean();
  if (const auto inputs = at.get("inputs")) read_inputs(*inputs, definition, child);
  read_reduction(at, definition, references, child);
  return child;
}

std::map<std::string, std::string> spec_tensors(const std::vector<ChildSpec>& children,
                                                const LossRegistry& registry) {
  static const std::vector<std::string> own_kind = {"labels", "mask", "advantages"};
  std::map<std::string, std::string> tensors;
  std::map<std::string, std::string> origin;
  for (const ChildSpec& child : children) {
    const LossDefinition& definition = registry.at(child.type);
    for (const std::string& input : child_inputs(definition)) {
      std::string kind =
          std::find(own_kind.begin(), own_kind.end(), input) != own_kind.end() ? input : "rows";
      for (const InputDefinition& defined : definition.inputs) {
        if (defined.name == input && kind != input) kind = defined.space;
      }
      const auto renamed = child.inputs.find(input);
      if (renamed == child.inputs.end() && input == "token_weights") continue;
      if (renamed != child.inputs.end() && !renamed->second) continue;
      const std::string name = renamed == child.inputs.end() ? input : *renamed->second;
      const std::string path = fmt::format("losses.{}.inputs.{}", child.name, input);
      const auto [it, inserted] = tensors.try_emplace(name, kind);
      if (inserted) origin[name] = path;
      if (it->second == kind) continue;
      throw Error(
          ErrorCode::invalid_spec,
          fmt::format(
              "{}: found the tensor {} for an input of kind {}, and it is of kind {} in {}; allowed: one "
              "kind for one name. Rename one of them",
              path, in_quotes(name), kind, it->second, origin[name]));
    }
  }
  return tensors;
}

}  // namespace lossc::ir
