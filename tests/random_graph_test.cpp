// Random losses through every pass: the derived gradient against differences, the simplified graph against
// the one it came from, and machine code against the interpreter. A seed that fails is named; it fails again.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "compiler/plan.h"
#include "ir/build_graph.h"
#include "ir/check_gradient.h"
#include "ir/differentiate.h"
#include "ir/random_inputs.h"
#include "ir/simplify.h"
#include "lossc/program.h"
#include "tests/catch.h"
#include "tests/random_loss.h"
#include "tests/rounding_error.h"
#include "tests/seeds.h"
#include "tests/verify.h"

namespace lossc::test {
namespace {

using ir::EvaluationInputs;
using ir::LossGraph;

constexpr std::uint64_t seeds = 320;

/// One to three random children over one batch.
struct RandomCase {
  LossRegistry registry = LossRegistry::builtin();
  std::string text;
  Spec spec;
  EvaluationInputs inputs;

  explicit RandomCase(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t n) { return random() % n; };
    const std::string vocab = std::to_string(5 + below(5));
    text = R"({"version": 1, "logits": {"dtype": "fp32", "vocab": )" + vocab;
    if (below(3) == 0) text += R"(, "scale": 0.75)";
    if (below(4) == 0) text += R"(, "softcap": 4)";
    if (below(3) == 0) text += R"(, "temperature": 1.5)";
    text += R"(}, "losses": {)";
    const std::uint64_t children = 1 + below(3);
    for (std::uint64_t i = 0; i < children; ++i) {
      const std::string name = "random_" + std::to_string(i);
      const LossDomain domain = below(2) == 0   ? LossDomain::rows
                                : below(2) == 0 ? LossDomain::segments
                                                : LossDomain::pairs;
      registry.add(random_loss(name, domain, random(), 3 + static_cast<int>(below(3))));
      text += (i > 0 ? ", " : "") + std::string("\"") + name + R"(": {"type": ")" + name + "\"";
      if (below(2) == 0) text += R"(, "weight": 0.625)";
      text += "}";
    }
    text += "}}";
    spec = Spec::parse(text, registry);
    inputs = ir::random_inputs(spec, registry, {.rows = 6, .seed = seed, .spread = 1.5});
    // The backend takes fp32: what it reads is exactly what the interpreter reads.
    for (auto& [name, values] : inputs.tensors) {
      for (double& value : values) value = static_cast<float>(value);
    }
  }
};

/// The sum of a graph's terms, one number an element, with what fp32 may change of it.
struct Gradient {
  std::vector<double> value, error;
};

Gradient gradient_of(const LossGraph& loss, const EvaluationInputs& inputs, ir::Evaluator& values,
                     RoundingError* rounding) {
  const auto vocab = static_cast<std::size_t>(inputs.vocab);
  const std::size_t size = static_cast<std::size_t>(inputs.rows) * vocab;
  Gradient g{std::vector<double>(size, 0.0), std::vector<double>(size, 0.0)};
  std::vector<double> absolute(size, 0.0);
  const auto at = [&](ir::NodeId id, std::size_t i) -> Bounded {
    const ir::Space space = loss.graph.node(id).space;
    const std::size_t place = space == ir::Space::element  ? i
                              : space == ir::Space::scalar ? 0
                              : space == ir::Space::rows   ? i / vocab
                                                           : i % vocab;
    return {values.value(id)[place], rounding != nullptr ? rounding->of(id)[place] : 0};
  };
  const auto add = [&](std::size_t i, Bounded term) {
    g.value[i] += term.value;
    g.error[i] += term.error;
    absolute[i] += std::abs(term.value);
  };
  for (std::size_t i = 0; i < size; ++i) {
    if (at(loss.live, i).value == 0) continue;
    for (const ir::DenseTerm& term : loss.dense) {
      const Bounded coefficient = at(term.coefficient, i);
      if (term.guarded && coefficient.value == 0 && coefficient.error == 0) continue;
      add(i, coefficient * at(term.basis, i));
    }
    const auto k = static_cast<double>(i % vocab);
    for (const ir::SparseTerm& term : loss.sparse) {
      if (at(term.index, i).value == k) add(i, at(term.coefficient, i));
    }
    // One rounding of the running sum a term, and one for a product that is not fused.
    g.error[i] += sum_error(static_cast<double>(loss.dense.size() + loss.sparse.size())) * absolute[i];
    // The element's whole gradient replaces the sum; its own bound may only widen what is allowed.
    for (const ir::SparseTerm& term : loss.sparse) {
      if (term.value == ir::no_node || at(term.index, i).value != k) continue;
      g.value[i] = at(term.value, i).value;
      g.error[i] = std::max(g.error[i], at(term.value, i).error);
    }
  }
  return g;
}

double largest(const std::vector<double>& values) {
  double most = 0;
  for (const double v : values) most = std::max(most, std::abs(v));
  return most;
}

/// The largest |a - b|, infinity where one of them is not a number.
double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double d = std::abs(a[i] - b[i]);
    most = std::isnan(d) ? std::numeric_limits<double>::infinity() : std::max(most, d);
  }
  return most;
}

/// What a run of a device gives, by name: scalars and the gradient.
using Results = std::map<std::string, std::vector<float>>;

Results run(const RandomCase& c, const std::string& device) {
  Program program = Program::compile(c.spec, {.registry = &c.registry, .device = device});
  Execution execution(program);
  std::set<std::string> names;
  for (const TensorInfo& input : program.inputs()) names.insert(input.name);
  std::map<std::string, std::vector<float>> reals;
  std::map<std::string, std::vector<std::int64_t>> indices;
  std::vector<std::uint8_t> mask;
  std::int64_t segments = c.inputs.segments;
  for (const auto& [name, values] : c.inputs.tensors) {
    if (!names.contains(name)) continue;
    if (name == "mask") {
      mask.assign(values.begin(), values.end());
      execution.bind(name, tensor(mask));
    } else if (name == "labels" || name == "segment_ids") {
      indices[name].assign(values.begin(), values.end());
      execution.bind(name, tensor(indices[name]));
    } else {
      reals[name].assign(values.begin(), values.end());
      const bool element = name == "logits" || name == "teacher_logits";
      execution.bind(name,
                     element ? tensor(reals[name], {c.inputs.rows, c.inputs.vocab}) : tensor(reals[name]));
    }
  }
  if (names.contains("segment_ids")) execution.bind("num_segments", tensor(&segments, {}));
  if (names.contains("pairs")) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(c.inputs.pairs); ++i) {
      indices["pairs"].push_back(c.inputs.maps.at("pairs.chosen")[i]);
      indices["pairs"].push_back(c.inputs.maps.at("pairs.rejected")[i]);
    }
    execution.bind("pairs", tensor(indices["pairs"], {c.inputs.pairs, 2}));
  }
  std::vector<float> gradient(static_cast<std::size_t>(c.inputs.rows * c.inputs.vocab), NAN);
  execution.bind("grad_logits", tensor(gradient, {c.inputs.rows, c.inputs.vocab}));
  execution.run();
  Results results;
  for (const TensorInfo& output : program.outputs()) {
    if (output.space == "scalar") results[output.name] = {execution.value(output.name)};
  }
  results["grad_logits"] = gradient;
  return results;
}

TEST_CASE("gradients of random losses agree with differences; simplify keeps all values") {
  int kinked = 0, vanishing = 0;
  for (std::uint64_t seed = 1; seed <= seeds; ++seed) {
    const RandomCase c(seed);
    INFO("seed " << seed << ": " << c.text);
    const LossGraph values = ir::build_graph(c.spec, c.registry);
    LossGraph derived = values;
    ir::differentiate(derived);
    const LossGraph simple = ir::simplify(derived);
    REQUIRE(plan_graph(simple, c.spec).regions.size() >= 1);

    ir::Evaluator before(derived.graph, c.inputs), after(simple.graph, c.inputs);
    for (std::size_t i = 0; i < derived.scalars.size(); ++i) {
      REQUIRE(simple.scalars[i].name == derived.scalars[i].name);
      const double a = before.scalar(derived.scalars[i].node), b = after.scalar(simple.scalars[i].node);
      INFO(derived.scalars[i].name << ": " << a << " became " << b);
      REQUIRE(std::isfinite(a));
      // Values on the way are below 100 and sums have tens of terms: 1e-9 is a thousand times their rounding,
      // and a thousandth of what the differences below see.
      CHECK(std::abs(a - b) <= 1e-9 * (1 + std::abs(a)));
    }
    const Gradient g = gradient_of(derived, c.inputs, before, nullptr);
    const Gradient h = gradient_of(simple, c.inputs, after, nullptr);
    CHECK(distance(g.value, h.value) <= 1e-9 * (1 + largest(g.value)));
    vanishing += largest(g.value) < 1e-3;

    for (const GradientComparison& loss : check_gradient(values, simple, c.inputs).losses) {
      INFO(loss.name << ": error " << loss.error << ", allowed " << loss.allowed << ", compared "
                     << loss.compared << ", kinks " << loss.kinks << ", derived " << loss.derived
                     << ", numeric " << loss.numeric << ". " << loss.note);
      CHECK(std::isfinite(loss.value));
      CHECK(loss.error <= loss.allowed);
      kinked += !loss.passed;
    }
  }
  // Random values seldom lie at a kink, and the losses have gradients.
  CHECK(kinked <= static_cast<int>(seeds) / 20);
  CHECK(vanishing <= static_cast<int>(seeds) / 20);
}

TEST_CASE("machine code of random losses agrees with the interpreter") {
  const std::string device = devices().front();  // the CPU backend, or a GPU
  if (device == "interpreter") {
    SUCCEED("this build has no CPU backend");
    return;
  }
  const Seeds chosen = seeds_or({.first = 8, .last = seeds, .step = 8});
  int compared = 0, sharp = 0;
  std::size_t most_phases = 0, most_regions = 0;
  std::vector<std::uint64_t> list;
  // Three whose regions depend on each other in seldom ways: on a value of a later region, on an anchor of
  // the same sweep, on an index that an earlier region finds.
  if (!chosen.chosen) list = {65, 117, 211};
  for (std::uint64_t seed = chosen.first; seed <= chosen.last; seed += chosen.step) list.push_back(seed);
  for (const std::uint64_t seed : list) {
    const RandomCase c(seed);
    INFO("seed " << seed << ": " << c.text);
    const Plan plan = plan_spec(c.spec, c.registry);
    most_regions = std::max(most_regions, plan.regions.size());
    for (const Region& region : plan.regions) most_phases = std::max(most_phases, region.phases.size());
    ir::Evaluator values(plan.loss.graph, c.inputs);
    RoundingError rounding(plan.loss.graph, c.inputs, values);
    const Gradient bound = gradient_of(plan.loss, c.inputs, values, &rounding);

    Results right = run(c, "interpreter"), machine = run(c, device);
    // The bounds are those of the graph's own operations. Both sides store fp32: one rounding each.
    const auto allowed = [](double error, double value) { return error + 2 * unit * std::abs(value) + tiny; };
    for (const ir::NamedNode& scalar : plan.loss.scalars) {
      const double a = right.at(scalar.name)[0], b = machine.at(scalar.name)[0];
      const double error = rounding.of(scalar.node)[0];
      INFO(scalar.name << ": interpreter " << a << ", machine code " << b << ", bound " << error);
      CHECK(std::abs(a - b) <= allowed(error, a));
      ++compared;
      sharp += error <= 1e-3 * (1 + std::abs(a));
    }
    const std::vector<float>&a = right.at("grad_logits"), &b = machine.at("grad_logits");
    const double scale = largest(bound.value);
    for (std::size_t i = 0; i < a.size(); ++i) {
      INFO("gradient " << i << ": interpreter " << a[i] << ", machine code " << b[i] << ", bound "
                       << bound.error[i]);
      CHECK(std::abs(a[i] - b[i]) <= allowed(bound.error[i], a[i]));
      ++compared;
      sharp += bound.error[i] <= 1e-3 * scale;
    }
  }
  if (chosen.chosen) return;
  // A bound that allows anything would say nothing; plans of several sweeps and seams are among the cases.
  CAPTURE(compared, sharp, most_phases, most_regions);
  CHECK(sharp >= compared * 9 / 10);
  CHECK(most_phases >= 2);
  CHECK(most_regions >= 2);
}

}  // namespace
}  // namespace lossc::test
