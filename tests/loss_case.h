// A loss spec as plain numbers: from one description come the spec's JSON and what the reference computes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lossc/program.h"
#include "lossc/tensor.h"

namespace lossc::test {

/// The transform keys that are named.
struct TransformKeys {
  std::optional<double> scale = {}, softcap = {}, temperature = {};
  bool cap_first = false;
  bool any() const { return scale || softcap || temperature || cap_first; }
};

struct Child {
  std::string name, type;
  std::optional<double> weight = {};
  TransformKeys transform = {};
  std::map<std::string, double> numbers = {};
  std::map<std::string, std::string> options = {};
  std::map<std::string, bool> flags = {};
  std::map<std::string, std::optional<std::string>> inputs = {};  ///< nullopt: opted out.
  std::string reduction = {};                                     ///< Empty: the loss's default.
  std::optional<double> divisor = {};

  double number(const std::string& key, double fallback) const;
  std::string option(const std::string& key, const std::string& fallback) const;
  bool flag(const std::string& key) const;
  /// The tensor that the child reads for its own name `key`; empty when it opted out.
  std::string input(const std::string& key) const;
  std::string reduction_or_default() const;
};

struct LossCase {
  std::int64_t vocab = 0;
  DType logits_dtype = DType::fp32;
  TransformKeys logits = {};
  std::vector<Child> children = {};
  std::map<std::string, DType> tensor_dtypes = {};
  std::map<std::string, std::string> tensor_spaces = {};
  std::vector<std::string> metrics = {};  ///< "policy.ratio.sum", "entropy@document"
  std::vector<std::string> outputs = {};
  std::string gradient_mode = "overwrite";
  std::optional<DType> gradient_dtype = {};  ///< Absent: the logits'.

  DType grad_dtype() const { return gradient_dtype.value_or(logits_dtype); }
  DType element_dtype(const std::string& tensor) const;
  /// The transform of a child: its own keys in place of the block's.
  TransformKeys effective(const Child& child) const;
  bool uses_input(const std::string& tensor) const;
  bool needs_segments() const;

  std::string to_json() const;
  Spec spec() const;
  Spec spec(const LossRegistry& registry) const;
  /// Sets every named number as a run-time parameter.
  void set_parameters(Execution& execution) const;
};

/// The tensors that a loss type reads besides logits and labels.
std::vector<std::string> inputs_of(const std::string& type);

}  // namespace lossc::test
