// Whatever the text, reading it ends in a spec whose canonical text reads back unchanged, or in an Error that
// blames the spec.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "ir/spec_parameters.h"
#include "lossc/error.h"
#include "lossc/loss.h"
#include "lossc/spec.h"

namespace {

using lossc::LossContext;
using lossc::LossDomain;
using lossc::LossRegistry;
using lossc::MetricDefinition;
using lossc::Range;

// Loss types with every kind of key. Their values are never asked for: the reader alone is under test.
LossRegistry make_registry() {
  const auto value = [](LossContext& c) { return c.logprob(); };
  const auto metric = [](LossContext& c) { return c.logprob(); };
  LossRegistry registry;
  registry.add({.name = "cross_entropy",
                .summary = "",
                .formula = "",
                .inputs = {{.name = "labels"}},
                .parameters = {{"label_smoothing", std::nullopt, Range::probability, ""}},
                .value = value});
  registry.add({.name = "z_loss", .summary = "", .formula = "", .value = value});
  registry.add({.name = "gspo",
                .summary = "",
                .formula = "",
                .domain = LossDomain::segments,
                .inputs = {{.name = "labels"}, {.name = "old_logprobs"}, {.name = "advantages"}},
                .parameters = {{"epsilon_low", 3e-4, Range::non_negative, ""},
                               {"epsilon_high", 4e-4, Range::non_negative, ""}},
                .value = value,
                .metrics = {{"ratio", "", metric},
                            {"ratio_sum", "", metric, MetricDefinition::Summary::sum},
                            {"advantage_max", "", metric, MetricDefinition::Summary::max}}});
  registry.add({.name = "dpo",
                .summary = "",
                .formula = "",
                .domain = LossDomain::pairs,
                .inputs = {{.name = "labels"}, {.name = "ref_logprobs"}},
                .parameters = {{"beta", 0.1, Range::positive, ""}},
                .value = value});
  registry.add({.name = "distillation",
                .summary = "",
                .formula = "",
                .inputs = {{.name = "teacher_logits", .space = "element"}},
                .parameters = {{"teacher_temperature", std::nullopt, Range::positive, ""}},
                .options = {{"divergence", {"forward_kl", "reverse_kl"}, ""}},
                .flags = {{"temperature_squared", false, ""}},
                .value = value});
  return registry;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const LossRegistry registry = make_registry();
  std::string canonical;
  try {
    const lossc::Spec spec =
        lossc::Spec::parse(std::string_view(reinterpret_cast<const char*>(data), size), registry);
    for (const auto& parameter : lossc::ir::parameters(spec, registry)) {
      if (!lossc::ir::in_range(parameter.value, parameter.range)) std::abort();
    }
    canonical = spec.to_json();
  } catch (const lossc::Error& error) {
    const bool blames_spec =
        error.code() == lossc::ErrorCode::invalid_spec || error.code() == lossc::ErrorCode::unsupported;
    if (!blames_spec || std::string_view(error.what()).size() > 10000) std::abort();
    return 0;
  }
  // Outside the handler: an error here is a defect.
  if (lossc::Spec::parse(canonical, registry).to_json() != canonical) std::abort();
  return 0;
}
