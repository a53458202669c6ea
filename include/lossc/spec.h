// The loss spec: what a user asks for, as read from JSON and checked in full.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lossc/tensor.h"

namespace lossc {

class LossRegistry;

/// A number in the spec. `parameter` is the name of the run-time parameter it is the default of:
/// "policy.epsilon_low", or "params.tau" when the spec says "$tau".
struct Number {
  double value = 0;
  std::string parameter;
};

/// `u = softcap(scale * z) / temperature`, softcap(x) = c * tanh(x / c). What is not named is off.
/// `cap_first`: u = scale * softcap(z) / temperature.
struct Transform {
  std::optional<Number> scale, softcap, temperature;
  bool cap_first = false;
};

struct ChildSpec {
  std::string name, type;
  std::optional<Number> weight;           ///< Absent: the constant 1.
  std::optional<Transform> transform;     ///< Absent: the logits block's; set once any of its keys is named.
  std::map<std::string, Number> numbers;  ///< Loss parameters named in the spec (not null).
  std::map<std::string, std::string>
      options;  ///< Choices: "divergence" -> "reverse_kl". All options, defaults filled in.
  std::map<std::string, bool>
      flags;  ///< Boolean options: "temperature_squared", "count_empty". Defaults filled in.
  std::map<std::string, std::optional<std::string>> inputs;  ///< Renames; nullopt: opted out (null).
  std::string reduction;                                     ///< Filled in with the loss's default.
  std::optional<Number> divisor;                             ///< Only with reduction "divisor".
};

struct MetricSpec {
  std::string name;           ///< "entropy", "policy.clip_fraction", optionally ending in ".sum" or ".count".
  bool per_document = false;  ///< "weighting": "document".
};

struct TensorSpec {
  std::optional<DType> dtype;
  std::string space;  ///< "", "rows" or "segments" (advantages).
};

enum class GradientMode { overwrite, accumulate, in_place, none };

/// A checked spec. Children stand sorted by name; JSON's key order carries no meaning.
struct Spec {
  DType logits_dtype = DType::fp32;
  std::int64_t vocab = 0;
  Transform logits;
  std::map<std::string, TensorSpec> tensors;
  std::map<std::string, double> params;
  std::vector<ChildSpec> losses;
  std::vector<MetricSpec> metrics;
  std::vector<std::string> outputs;
  GradientMode gradient_mode = GradientMode::overwrite;
  DType gradient_dtype = DType::fp32;           ///< Default: the logits' dtype.
  std::map<std::string, std::string> parallel;  ///< "vocab" | "sequence" | "data" -> group name.

  /// Parses and checks. Throws Error(invalid_spec) with the JSON path, what was found, what is allowed and
  /// the nearest known name. `registry` supplies the loss types; the built-in ones by default.
  static Spec parse(std::string_view json);
  static Spec parse(std::string_view json, const LossRegistry& registry);
  static Spec parse_file(const std::string& path);
  static Spec parse_file(const std::string& path, const LossRegistry& registry);

  /// The canonical JSON: keys sorted, defaults of the structure written out, numbers in shortest form.
  /// parse(to_json()) gives an equal spec.
  std::string to_json(int indent = 2) const;
};

/// The JSON Schema (draft 2020-12) of specs over the losses of `registry`; docs/spec.schema.json is this
/// text.
std::string spec_schema(const LossRegistry& registry);

}  // namespace lossc
