// Spec::to_json: the canonical text. Keys are sorted, structure is written out with its defaults, numbers
// stand only where the spec names them, as their presence is structure.
#include <fmt/format.h>

#include <cmath>

#include "ir/spec_reader.h"
#include "ir/spec_words.h"
#include "lossc/spec.h"

namespace lossc {
namespace ir {
namespace {

// The shortest text: integers without a fraction.
Json number_json(double value) {
  constexpr double exact = 9007199254740992.0;  // 2^53
  if (value == std::floor(value) && std::abs(value) < exact) return static_cast<std::int64_t>(value);
  return value;
}

Json number_json(const Number& number) {
  constexpr std::string_view prefix = "params.";
  if (number.parameter.starts_with(prefix)) return "$" + number.parameter.substr(prefix.size());
  return number_json(number.value);
}

std::string_view order_word(const Transform& transform) {
  return transform.cap_first ? "cap_first" : "scale_first";
}

Json logits_json(const Spec& spec) {
  Json out = {{"dtype", element_dtype_name(spec.logits_dtype)},
              {"vocab", spec.vocab},
              {"order", order_word(spec.logits)}};
  if (spec.logits.scale) out["scale"] = number_json(*spec.logits.scale);
  if (spec.logits.softcap) out["softcap"] = number_json(*spec.logits.softcap);
  if (spec.logits.temperature) out["temperature"] = number_json(*spec.logits.temperature);
  return out;
}

// What a child's transform has of the logits block's own numbers is left out: reading inherits it again.
void add_transform(const Transform& own, const Transform& block, Json& out) {
  const auto add = [&](const char* key, const std::optional<Number>& value,
                       const std::optional<Number>& inherited) {
    if (value && value->parameter != std::string("logits.") + key) out[key] = number_json(*value);
    if (!value && inherited) out[key] = nullptr;
  };
  add("scale", own.scale, block.scale);
  add("softcap", own.softcap, block.softcap);
  add("temperature", own.temperature, block.temperature);
  out["order"] = order_word(own);
}

Json child_json(const ChildSpec& child, const Transform& block) {
  Json out = {{"type", child.type}, {"reduction", child.reduction}};
  if (child.weight) out["weight"] = number_json(*child.weight);
  if (child.divisor) out["divisor"] = number_json(*child.divisor);
  if (child.transform) add_transform(*child.transform, block, out);
  for (const auto& [key, number] : child.numbers) out[key] = number_json(number);
  for (const auto& [key, word] : child.options) out[key] = word;
  for (const auto& [key, flag] : child.flags) out[key] = flag;
  for (const auto& [key, target] : child.inputs) out["inputs"][key] = target ? Json(*target) : Json(nullptr);
  return out;
}

Json metric_json(const MetricSpec& metric) {
  if (!metric.per_document) return metric.name;
  return {{"name", metric.name}, {"weighting", "document"}};
}

Json tensor_json(const TensorSpec& tensor) {
  Json out = Json::object();
  if (tensor.dtype) out["dtype"] = element_dtype_name(*tensor.dtype);
  if (!tensor.space.empty()) out["space"] = tensor.space;
  return out;
}

}  // namespace
}  // namespace ir

std::string Spec::to_json(int indent) const {
  using namespace ir;
  Json out = {{"version", 1}, {"logits", logits_json(*this)}};
  for (const auto& [name, value] : params) out["params"][name] = number_json(value);
  for (const ChildSpec& child : losses) out["losses"][child.name] = child_json(child, logits);
  for (const auto& [name, tensor] : tensors) out["tensors"][name] = tensor_json(tensor);
  for (const MetricSpec& metric : metrics) out["metrics"].push_back(metric_json(metric));
  if (!outputs.empty()) out["outputs"] = outputs;
  out["gradient"] = {{"mode", gradient_mode_name(gradient_mode)},
                     {"dtype", element_dtype_name(gradient_dtype)},
                     {"form", "dense"}};
  if (!parallel.empty()) out["parallel"] = parallel;
  return out.dump(indent);
}

}  // namespace lossc
