#include "tests/loss_case.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace lossc::test {
namespace {

using Json = nlohmann::json;

void put_transform(Json& json, const TransformKeys& keys) {
  if (keys.scale) json["scale"] = *keys.scale;
  if (keys.softcap) json["softcap"] = *keys.softcap;
  if (keys.temperature) json["temperature"] = *keys.temperature;
  if (keys.cap_first) json["order"] = "cap_first";
}

void set_transform(Execution& execution, const std::string& prefix, const TransformKeys& keys) {
  if (keys.scale) execution.set(prefix + ".scale", *keys.scale);
  if (keys.softcap) execution.set(prefix + ".softcap", *keys.softcap);
  if (keys.temperature) execution.set(prefix + ".temperature", *keys.temperature);
}

}  // namespace

double Child::number(const std::string& key, double fallback) const {
  const auto it = numbers.find(key);
  return it == numbers.end() ? fallback : it->second;
}

std::string Child::option(const std::string& key, const std::string& fallback) const {
  const auto it = options.find(key);
  return it == options.end() ? fallback : it->second;
}

bool Child::flag(const std::string& key) const {
  const auto it = flags.find(key);
  return it != flags.end() && it->second;
}

std::string Child::input(const std::string& key) const {
  const auto it = inputs.find(key);
  if (it == inputs.end()) return key;
  return it->second.value_or("");
}

std::string Child::reduction_or_default() const {
  if (!reduction.empty()) return reduction;
  return type == "dpo" ? "pair_mean" : "token_mean";
}

DType LossCase::element_dtype(const std::string& tensor) const {
  const auto it = tensor_dtypes.find(tensor);
  return it == tensor_dtypes.end() ? logits_dtype : it->second;
}

TransformKeys LossCase::effective(const Child& child) const {
  TransformKeys keys = logits;
  const TransformKeys& own = child.transform;
  if (own.scale) keys.scale = own.scale;
  if (own.softcap) keys.softcap = own.softcap;
  if (own.temperature) keys.temperature = own.temperature;
  if (own.cap_first) keys.cap_first = true;
  return keys;
}

std::vector<std::string> inputs_of(const std::string& type) {
  if (type == "distillation") return {"teacher_logits"};
  if (type == "grpo" || type == "gspo") return {"old_logprobs", "advantages"};
  if (type == "dpo") return {"ref_logprobs"};
  return {};
}

bool LossCase::uses_input(const std::string& tensor) const {
  return std::any_of(children.begin(), children.end(), [&](const Child& child) {
    const std::vector<std::string> names = inputs_of(child.type);
    return std::any_of(names.begin(), names.end(),
                       [&](const std::string& n) { return child.input(n) == tensor; });
  });
}

bool LossCase::needs_segments() const {
  return std::any_of(children.begin(), children.end(), [](const Child& child) {
    return child.type == "gspo" || child.type == "dpo" || child.reduction.starts_with("sequence");
  });
}

std::string LossCase::to_json() const {
  Json json = {{"version", 1}};
  json["logits"] = {{"dtype", dtype_name(logits_dtype)}, {"vocab", vocab}};
  put_transform(json["logits"], logits);
  for (const auto& [name, dtype] : tensor_dtypes) json["tensors"][name]["dtype"] = dtype_name(dtype);
  for (const auto& [name, space] : tensor_spaces) json["tensors"][name]["space"] = space;
  for (const Child& child : children) {
    Json& entry = json["losses"][child.name];
    entry["type"] = child.type;
    if (child.weight) entry["weight"] = *child.weight;
    put_transform(entry, child.transform);
    for (const auto& [key, value] : child.numbers) entry[key] = value;
    for (const auto& [key, value] : child.options) entry[key] = value;
    for (const auto& [key, value] : child.flags) entry[key] = value;
    for (const auto& [key, value] : child.inputs) {
      entry["inputs"][key] = value ? Json(*value) : Json(nullptr);
    }
    if (!child.reduction.empty()) entry["reduction"] = child.reduction;
    if (child.divisor) entry["divisor"] = *child.divisor;
  }
  for (const std::string& metric : metrics) {
    const auto mark = metric.find('@');
    if (mark == metric.npos) {
      json["metrics"].push_back(metric);
    } else {
      json["metrics"].push_back({{"name", metric.substr(0, mark)}, {"weighting", metric.substr(mark + 1)}});
    }
  }
  if (!outputs.empty()) json["outputs"] = outputs;
  json["gradient"]["mode"] = gradient_mode;
  if (gradient_dtype) json["gradient"]["dtype"] = dtype_name(*gradient_dtype);
  return json.dump(2);
}

Spec LossCase::spec() const {
  return Spec::parse(to_json());
}
Spec LossCase::spec(const LossRegistry& registry) const {
  return Spec::parse(to_json(), registry);
}

void LossCase::set_parameters(Execution& execution) const {
  set_transform(execution, "logits", logits);
  for (const Child& child : children) {
    set_transform(execution, child.name, child.transform);
    if (child.weight) execution.set(child.name + ".weight", *child.weight);
    if (child.divisor) execution.set(child.name + ".divisor", *child.divisor);
    for (const auto& [key, value] : child.numbers) execution.set(child.name + "." + key, value);
  }
}

}  // namespace lossc::test
