#include "ir/random_inputs.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numbers>
#include <random>
#include <string>

#include "ir/build_graph.h"
#include "ir/spec_parameters.h"

namespace lossc::ir {
namespace {

std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

/// The standard's distributions differ from library to library; these do not.
class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}

  double uniform() { return (static_cast<double>(engine_() >> 11) + 0.5) * 0x1p-53; }  // in (0, 1)
  double normal() {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    return radius * std::cos(2 * std::numbers::pi * uniform());
  }
  std::int64_t below(std::int64_t bound) {
    return std::min(static_cast<std::int64_t>(uniform() * static_cast<double>(bound)), bound - 1);
  }

 private:
  std::mt19937_64 engine_;
};

/// The loss's own name of a tensor that a spec renames.
std::string canonical_name(const Spec& spec, const std::string& tensor) {
  for (const ChildSpec& child : spec.losses) {
    for (const auto& [own, renamed] : child.inputs) {
      if (renamed == tensor) return own;
    }
  }
  return tensor;
}

/// log softmax(u)[label] of each row under the logits block's transform, 0 where there is no label.
std::vector<double> label_logprobs(const Spec& spec, const LossRegistry& registry, EvaluationInputs inputs,
                                   const std::vector<double>& labels) {
  Spec only = spec;
  only.losses.clear();
  only.metrics.clear();
  only.outputs = {"logprobs"};
  const LossGraph graph = build_graph(only, registry);
  inputs.tensors["labels"] = labels;
  return Evaluator(graph.graph, inputs).value(graph.rows.front().node);
}

}  // namespace

EvaluationInputs random_inputs(const Spec& spec, const LossRegistry& registry,
                               const RandomInputOptions& options) {
  Random random(options.seed);
  EvaluationInputs inputs;
  inputs.rows = options.rows;
  inputs.vocab = spec.vocab;
  inputs.segments = std::max<std::int64_t>(2, (options.rows + 3) / 4);
  inputs.pairs = inputs.segments / 2;
  for (const ParameterInfo& parameter : parameters(spec, registry)) {
    inputs.parameters[parameter.name] = parameter.value;
  }

  // Labels and segments first: other values are made from them.
  std::vector<double> labels(at(inputs.rows)), segments(at(inputs.rows));
  for (std::int64_t row = 0; row < inputs.rows; ++row) {
    labels[at(row)] = random.uniform() < 0.15 ? -100.0 : static_cast<double>(random.below(spec.vocab));
    // The first rows give every segment a row; one row in twelve is in none.
    const std::int64_t segment = row < inputs.segments         ? row
                                 : random.uniform() < 1.0 / 12 ? -1
                                                               : random.below(inputs.segments);
    segments[at(row)] = static_cast<double>(segment);
  }
  inputs.maps["segment_ids"].assign(segments.begin(), segments.end());
  std::vector<double> chosen, rejected;
  for (std::int64_t pair = 0; pair < inputs.pairs; ++pair) {
    chosen.push_back(static_cast<double>(2 * pair));
    rejected.push_back(static_cast<double>(2 * pair + 1));
  }
  inputs.maps["pairs.chosen"].assign(chosen.begin(), chosen.end());
  inputs.maps["pairs.rejected"].assign(rejected.begin(), rejected.end());
  inputs.tensors["segment_ids"] = segments;
  inputs.tensors["pairs.chosen"] = chosen;
  inputs.tensors["pairs.rejected"] = rejected;
  std::vector<double>& logits = inputs.tensors["logits"];
  for (std::int64_t i = 0; i < inputs.rows * inputs.vocab; ++i)
    logits.push_back(options.spread * random.normal());

  const std::map<Space, std::int64_t> sizes = {
      {Space::scalar, 1},           {Space::rows, inputs.rows},
      {Space::vocab, inputs.vocab}, {Space::segments, inputs.segments},
      {Space::pairs, inputs.pairs}, {Space::element, inputs.rows * inputs.vocab}};
  const LossGraph loss = build_graph(spec, registry);
  std::vector<double> logprobs;
  for (NodeId id = 0; id < loss.graph.size(); ++id) {
    const Node& node = loss.graph.node(id);
    if (node.op != Op::input || inputs.tensors.contains(loss.graph.symbol_of(id))) continue;
    const bool optional = node.aux == 1;
    if (optional && node.kind == Kind::real) continue;
    const std::string& name = loss.graph.symbol_of(id);
    const std::string own = canonical_name(spec, name);
    std::vector<double> values(at(sizes.at(node.space)));
    if (node.kind == Kind::index) {
      values = labels;
    } else if (node.kind == Kind::boolean) {
      for (double& value : values) value = random.uniform() < 0.9 ? 1 : 0;
    } else if (own.ends_with("logprobs") && node.space == Space::rows) {
      if (logprobs.empty()) logprobs = label_logprobs(spec, registry, inputs, labels);
      // Rows of every other segment stay near enough for the narrow clip of a sequence's ratio.
      for (std::size_t i = 0; i < values.size(); ++i) {
        const bool near = static_cast<std::int64_t>(segments[i]) % 2 == 0;
        values[i] = logprobs[i] + (near ? 2e-4 : 0.3) * random.normal();
      }
    } else if (node.space == Space::vocab) {
      for (double& value : values) value = 0.5 + random.uniform();
    } else {
      const double spread = node.space == Space::element ? options.spread : 1.0;
      for (double& value : values) value = spread * random.normal();
    }
    inputs.tensors[name] = std::move(values);
  }
  return inputs;
}

}  // namespace lossc::ir
