#include "ir/check_gradient.h"

#include <cmath>
#include <filesystem>
#include <string>

#include "ir/build_graph.h"
#include "ir/differentiate.h"
#include "ir/random_inputs.h"
#include "ir/simplify.h"
#include "lossc/error.h"
#include "tests/catch.h"

namespace {

using lossc::GradientCheck;
using lossc::LossContext;
using lossc::LossRegistry;
using lossc::Spec;
using lossc::ir::EvaluationInputs;
using lossc::ir::LossGraph;

Spec spec_of(const std::string& losses, const LossRegistry& registry = LossRegistry::builtin()) {
  return Spec::parse(R"({"version": 1, "logits": {"dtype": "fp32", "vocab": 11}, "losses": )" + losses + "}",
                     registry);
}

std::string report(const GradientCheck& check) {
  std::string text;
  for (const lossc::GradientComparison& loss : check.losses) {
    text += loss.name + ": error " + std::to_string(loss.error) + " of " + std::to_string(loss.largest) +
            ", compared " + std::to_string(loss.compared) + ", kinks " + std::to_string(loss.kinks) + " " +
            loss.note + "\n";
  }
  return text;
}

LossGraph derivative(const LossGraph& values) {
  LossGraph derived = values;
  lossc::ir::differentiate(derived);
  return lossc::ir::simplify(derived);
}

}  // namespace

TEST_CASE("the gradients of the ready specs agree with differences", "[check_gradient]") {
  const std::filesystem::path folder =
      std::filesystem::path(LOSSC_TEST_DATA_DIR).parent_path().parent_path() / "examples" / "specs";
  int specs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    INFO(entry.path().filename().string());
    Spec spec = Spec::parse_file(entry.path().string());
    spec.vocab = 11;
    ++specs;
    for (const std::uint64_t seed : {1U, 2U, 3U}) {
      const EvaluationInputs inputs =
          lossc::ir::random_inputs(spec, LossRegistry::builtin(), {.rows = 9, .seed = seed});
      const GradientCheck check = lossc::check_gradient(spec, LossRegistry::builtin(), inputs);
      INFO(report(check));
      CHECK(check.passed());
      CHECK(check.losses.size() == spec.losses.size() + 1);
      CHECK(check.elements == 99);
      // Random numbers are nowhere near a clip: what is found to be a kink is one.
      for (const lossc::GradientComparison& loss : check.losses) CHECK(loss.compared + loss.kinks == 99);
    }
  }
  CHECK(specs >= 7);
}

TEST_CASE("every option, reduction and transform has the derivative of its value", "[check_gradient]") {
  const char* logits[] = {
      R"({"dtype": "fp32", "vocab": 11})",
      R"({"dtype": "fp32", "vocab": 11, "scale": 0.7, "softcap": 3, "temperature": 1.3})",
      R"({"dtype": "fp32", "vocab": 11, "scale": 1.7, "softcap": 4, "order": "cap_first"})",
      R"({"dtype": "fp32", "vocab": 1})",
  };
  const char* children[] = {
      R"("type": "cross_entropy", "label_smoothing": 0.1)",
      R"("type": "cross_entropy", "softcap": 2.5, "weight": 0.5)",
      R"("type": "z_loss", "weight": 0.01)",
      R"("type": "z_loss", "inputs": {"labels": null})",
      R"("type": "entropy", "direction": "minimize", "temperature": 0.8)",
      R"("type": "distillation", "divergence": "cross_entropy", "teacher_temperature": 2)",
      R"("type": "distillation", "divergence": "forward_kl", "temperature": 2, "temperature_squared": true)",
      R"("type": "distillation", "divergence": "reverse_kl", "teacher_scale": 0.5, "teacher_softcap": 3)",
      R"("type": "grpo", "epsilon_low": 0.1)",
      R"("type": "gspo", "epsilon_low": 0.2, "epsilon_high": 0.2)",
      R"("type": "gspo")",
      R"("type": "dpo", "beta": 0.3)",
  };
  const char* reductions[] = {"sum", "sequence_mean", "sequence_sum_mean", R"(divisor", "divisor": "$n)"};
  int checked = 0;
  std::uint64_t seed = 100;
  for (const char* block : logits) {
    for (const std::string child : children) {
      for (const std::string reduction : reductions) {
        const bool of_pairs = child.find("dpo") != std::string::npos;
        if (of_pairs && reduction.starts_with("sequence")) continue;
        const std::string params = reduction.starts_with("divisor") ? R"("params": {"n": 7}, )" : "";
        const std::string text = R"({"version": 1, "logits": )" + std::string(block) + ", " + params +
                                 R"("losses": {"a": {)" + child + R"(, "reduction": ")" + reduction +
                                 R"("}, "z": {"type": "z_loss", "weight": 0.1}}})";
        INFO(text);
        const Spec spec = Spec::parse(text);
        EvaluationInputs inputs =
            lossc::ir::random_inputs(spec, LossRegistry::builtin(), {.rows = 7, .seed = ++seed});
        inputs.tensors["grad_scale"] = {1, 0.5, -2, 3, 0, 1.5, 0.25};
        const GradientCheck check = lossc::check_gradient(spec, LossRegistry::builtin(), inputs);
        INFO(report(check));
        CHECK(check.passed());
        ++checked;
      }
    }
  }
  CHECK(checked == 4 * (11 * 4 + 2));
}

TEST_CASE("a derivative that is wrong in the sixth digit does not pass", "[check_gradient]") {
  const Spec spec = spec_of(R"({"ce": {"type": "cross_entropy"}, "z": {"type": "z_loss", "weight": 0.5}})");
  const EvaluationInputs inputs = lossc::ir::random_inputs(spec, LossRegistry::builtin());
  const LossGraph values = lossc::ir::build_graph(spec, LossRegistry::builtin());
  LossGraph derived = derivative(values);
  REQUIRE(lossc::check_gradient(values, derived, inputs).passed());

  using lossc::ir::Op;
  SECTION("a coefficient of the total") {
    lossc::ir::DenseTerm& term = derived.dense.front();
    term.coefficient = derived.graph.apply(Op::mul, term.coefficient, derived.graph.constant(1 + 1e-5));
    const GradientCheck check = lossc::check_gradient(values, derived, inputs);
    INFO(report(check));
    CHECK(check.losses[0].passed);
    CHECK(check.losses[1].passed);
    CHECK_FALSE(check.losses[2].passed);
    CHECK(check.losses[2].error > 1e-6 * check.losses[2].largest);
  }
  SECTION("the one-hot term of one child") {
    for (auto& child : derived.child_gradients) child.sparse.clear();
    const GradientCheck check = lossc::check_gradient(values, derived, inputs);
    INFO(report(check));
    CHECK(check.losses[0].passed != check.losses[1].passed);
    CHECK(check.losses[2].passed);
  }
  SECTION("no gradient at all") {
    derived.dense.clear();
    derived.sparse.clear();
    const GradientCheck check = lossc::check_gradient(values, derived, inputs);
    CHECK_FALSE(check.losses[2].passed);
    CHECK(check.losses[2].kinks == 0);
  }
  SECTION("a NaN") {
    derived.dense.front().coefficient = derived.graph.constant(std::nan(""));
    const GradientCheck check = lossc::check_gradient(values, derived, inputs);
    CHECK_FALSE(check.losses[2].passed);
    CHECK(std::isnan(check.losses[2].derived));
  }
}

TEST_CASE("what the derivative takes as constant is held constant", "[check_gradient]") {
  LossRegistry registry = LossRegistry::builtin();
  registry.add({.name = "dft",
                .summary = "negative log-likelihood weighted by the label's probability, a constant",
                .formula = "-sg(p) log p",
                .inputs = {{"labels"}},
                .value = [](LossContext& c) { return -stop_gradient(exp(c.logprob())) * c.logprob(); }});
  const Spec spec = spec_of(R"({"dft": {"type": "dft"}})", registry);
  const EvaluationInputs inputs = lossc::ir::random_inputs(spec, registry);
  const GradientCheck check = lossc::check_gradient(spec, registry, inputs);
  INFO(report(check));
  CHECK(check.passed());
}

TEST_CASE("elements at a kink are counted, not compared", "[check_gradient]") {
  // The ratio of row 0 is 1 + epsilon_high up to rounding: moving any of its logits crosses the clip.
  const Spec spec = spec_of(R"({"policy": {"type": "grpo"}})");
  EvaluationInputs inputs = lossc::ir::random_inputs(spec, LossRegistry::builtin(), {.rows = 12});
  inputs.tensors["labels"][0] = 3;
  inputs.tensors["mask"][0] = 1;
  inputs.tensors["advantages"][0] = 1.5;
  double sum = 0;
  for (std::size_t k = 0; k < 11; ++k) sum += std::exp(inputs.tensors["logits"][k]);
  inputs.tensors["old_logprobs"][0] = inputs.tensors["logits"][3] - std::log(sum) - std::log(1.2);
  const GradientCheck check = lossc::check_gradient(spec, LossRegistry::builtin(), inputs);
  INFO(report(check));
  CHECK(check.losses[0].kinks == 11);
  CHECK(check.losses[0].compared == 11 * 11);
  CHECK(check.passed());

  // A kink beside the first step's reach of a row is stepped around: nothing is left out.
  inputs.tensors["old_logprobs"][0] += 3e-5;
  const GradientCheck beside = lossc::check_gradient(spec, LossRegistry::builtin(), inputs);
  INFO(report(beside));
  CHECK(beside.losses[0].kinks == 0);
  CHECK(beside.passed());
}

TEST_CASE("batches that leave nothing to compare", "[check_gradient]") {
  const Spec spec = spec_of(R"({"ce": {"type": "cross_entropy", "weight": 0}, "z": {"type": "z_loss"}})");
  EvaluationInputs inputs = lossc::ir::random_inputs(spec, LossRegistry::builtin());
  GradientCheck check = lossc::check_gradient(spec, LossRegistry::builtin(), inputs);
  CHECK(check.passed());
  CHECK(check.losses[0].largest == 0);
  CHECK(check.losses[0].note == "the gradient is 0 everywhere");

  inputs.tensors["labels"][0] = 11;  // beyond the vocabulary: NaN
  inputs.tensors["mask"][0] = 1;
  check = lossc::check_gradient(spec, LossRegistry::builtin(), inputs);
  CHECK_FALSE(check.passed());
  CHECK(check.losses[1].note.find("nan") != std::string::npos);

  inputs.tensors.erase("labels");
  CHECK_THROWS_AS(lossc::check_gradient(spec, LossRegistry::builtin(), inputs), lossc::Error);
}

TEST_CASE("a large batch is sampled, and progress is told", "[check_gradient]") {
  const Spec spec = spec_of(R"({"ce": {"type": "cross_entropy"}})");
  const EvaluationInputs inputs = lossc::ir::random_inputs(spec, LossRegistry::builtin(), {.rows = 20});
  std::size_t calls = 0;
  lossc::GradientCheckOptions options;
  options.max_elements = 50;
  options.progress = [&](std::size_t done, std::size_t all) {
    CHECK(done == calls++);
    CHECK(all == 50);
  };
  const GradientCheck check = lossc::check_gradient(spec, LossRegistry::builtin(), inputs, options);
  CHECK(check.elements == 50);
  CHECK(check.losses[0].compared == 50);
  CHECK(calls == 50);
  CHECK(check.passed());
}
