#include "ir/spec_parameters.h"

#include <cmath>
#include <map>

namespace lossc::ir {
namespace {

// Where the numbers of a spec stand, in the order in which parameters are listed.
struct Use {
  const Number* number;
  Range range;
};

void add_transform(const Transform& transform, std::vector<Use>& uses) {
  for (const std::optional<Number>* number : {&transform.scale, &transform.softcap, &transform.temperature}) {
    if (*number) uses.push_back({&**number, Range::positive});
  }
}

std::vector<Use> all_uses(const Spec& spec, const LossRegistry& registry) {
  std::vector<Use> uses;
  add_transform(spec.logits, uses);
  for (const ChildSpec& child : spec.losses) {
    const LossDefinition& definition = registry.at(child.type);
    if (child.weight) uses.push_back({&*child.weight, Range::non_negative});
    if (child.transform) add_transform(*child.transform, uses);
    if (child.divisor) uses.push_back({&*child.divisor, Range::positive});
    for (const auto& [key, number] : child.numbers) uses.push_back({&number, range_of(definition, key)});
  }
  return uses;
}

}  // namespace

Bounds bounds(Range range) {
  // Halfway to the next fp32 number, ties to even: what rounds to infinity, to 0 and to 1.
  const double infinite = std::ldexp(2.0 - std::ldexp(1.0, -24), 127);
  const double zero = std::ldexp(1.0, -150);
  const double one = 1.0 - std::ldexp(1.0, -25);
  switch (range) {
    case Range::any:
      return {-infinite, infinite, false};
    case Range::non_negative:
      return {0, infinite, true};
    case Range::positive:
      return {zero, infinite, false};
    case Range::probability:
      return {0, one, true};
  }
  return {0, 0, false};
}

bool in_range(double value, Range range) {
  const Bounds allowed = bounds(range);
  return (value > allowed.low || (allowed.low_included && value == allowed.low)) && value < allowed.high;
}

std::string_view range_text(Range range) {
  switch (range) {
    case Range::any:
      return "a finite number";
    case Range::non_negative:
      return "a finite number >= 0";
    case Range::positive:
      return "a finite number > 0";
    case Range::probability:
      return "a number >= 0 and < 1";
  }
  return "";
}

std::optional<Range> intersect(Range a, Range b) {
  if (a == b || b == Range::any) return a;
  if (a == Range::any) return b;
  if (a == Range::non_negative) return b;
  if (b == Range::non_negative) return a;
  return std::nullopt;
}

Range range_of(const LossDefinition& definition, std::string_view key) {
  if (key == "weight") return Range::non_negative;
  for (const ParameterDefinition& parameter : definition.parameters) {
    if (parameter.name == key) return parameter.range;
  }
  return Range::positive;
}

std::vector<ParameterInfo> parameters(const Spec& spec, const LossRegistry& registry) {
  std::vector<ParameterInfo> own;
  std::map<std::string, ParameterInfo> shared;
  std::map<std::string, std::size_t> position;
  for (const Use& use : all_uses(spec, registry)) {
    const std::string& name = use.number->parameter;
    if (name.starts_with("params.")) {
      auto [it, inserted] = shared.try_emplace(name, ParameterInfo{name, use.number->value, use.range});
      if (!inserted) it->second.range = intersect(it->second.range, use.range).value_or(it->second.range);
    } else if (position.try_emplace(name, own.size()).second) {
      own.push_back({name, use.number->value, use.range});
    }
  }
  for (auto& [name, info] : shared) own.push_back(std::move(info));
  return own;
}

}  // namespace lossc::ir
