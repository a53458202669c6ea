// What a spec means once it is read: values, defaults, transforms, parameters, and its canonical text.
#include "lossc/spec.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "catch.h"
#include "ir/spec_parameters.h"
#include "lossc/error.h"
#include "lossc/loss.h"
#include "spec_text.h"

using lossc::ChildSpec;
using lossc::DType;
using lossc::GradientMode;
using lossc::LossRegistry;
using lossc::Range;
using lossc::Spec;
using lossc::test::full_spec;
using lossc::test::spec_with;
using lossc::test::spec_with_child;

namespace {

const ChildSpec& child(const Spec& spec, const std::string& name) {
  for (const ChildSpec& c : spec.losses) {
    if (c.name == name) return c;
  }
  FAIL("no child " << name);
  return spec.losses.front();
}

std::vector<std::string> parameter_names(const Spec& spec) {
  std::vector<std::string> names;
  for (const auto& info : lossc::ir::parameters(spec, LossRegistry::builtin())) names.push_back(info.name);
  return names;
}

using Ordered = nlohmann::ordered_json;

// The same JSON with the members of every object in random order.
Ordered shuffled(const Ordered& json, std::mt19937& random) {
  if (json.is_array()) {
    Ordered out = Ordered::array();
    for (const auto& item : json) out.push_back(shuffled(item, random));
    return out;
  }
  if (!json.is_object()) return json;
  std::vector<std::string> keys;
  for (const auto& item : json.items()) keys.push_back(item.key());
  std::shuffle(keys.begin(), keys.end(), random);
  Ordered out = Ordered::object();
  for (const auto& key : keys) out[key] = shuffled(json[key], random);
  return out;
}

}  // namespace

TEST_CASE("a spec with every key") {
  const Spec spec = Spec::parse(full_spec);
  CHECK(spec.logits_dtype == DType::bf16);
  CHECK(spec.vocab == 131072);
  CHECK(spec.logits.scale.value().value == 0.5);
  CHECK(spec.logits.scale.value().parameter == "logits.scale");
  CHECK(spec.logits.softcap.value().value == 30);
  CHECK(spec.logits.temperature.value().value == 1.5);
  CHECK(spec.logits.temperature.value().parameter == "params.tau");
  CHECK(spec.logits.cap_first);
  CHECK(spec.params == std::map<std::string, double>{{"smoothing", 0.1}, {"tau", 1.5}});
  CHECK(spec.tensors.at("teacher_b").dtype == DType::fp32);
  CHECK(spec.tensors.at("advantages").space == "segments");

  std::vector<std::string> names;
  for (const auto& c : spec.losses) names.push_back(c.name);
  CHECK(names == std::vector<std::string>{"ce", "distill", "h", "policy", "z"});
  CHECK(child(spec, "policy").numbers.at("epsilon_low").value == 3e-4);
  CHECK(child(spec, "policy").numbers.at("epsilon_low").parameter == "policy.epsilon_low");
  CHECK(child(spec, "policy").reduction == "divisor");
  CHECK(child(spec, "policy").divisor.value().parameter == "policy.divisor");
  CHECK_FALSE(child(spec, "policy").transform.has_value());
  CHECK(child(spec, "ce").numbers.at("label_smoothing").parameter == "params.smoothing");
  CHECK(child(spec, "ce").flags.at("count_empty"));
  CHECK(child(spec, "z").inputs ==
        std::map<std::string, std::optional<std::string>>{{"labels", std::nullopt}, {"mask", "other_mask"}});
  CHECK(child(spec, "h").options.at("direction") == "minimize");
  CHECK(child(spec, "h").weight.value().value == 0);
  CHECK(child(spec, "distill").flags.at("temperature_squared"));
  CHECK(child(spec, "distill").numbers.at("teacher_temperature").value == 2);

  REQUIRE(spec.metrics.size() == 7);
  CHECK(spec.metrics[2].name == "policy.ratio.sum");
  CHECK_FALSE(spec.metrics[2].per_document);
  CHECK(spec.metrics[5].name == "policy.kl_k3");
  CHECK(spec.metrics[5].per_document);
  CHECK(spec.outputs == std::vector<std::string>{"logprobs", "entropy", "lse", "ce.loss"});
  CHECK(spec.gradient_mode == GradientMode::accumulate);
  CHECK(spec.gradient_dtype == DType::fp32);
  CHECK(spec.parallel ==
        std::map<std::string, std::string>{{"vocab", "tp"}, {"sequence", "sp"}, {"data", "dp"}});
}

TEST_CASE("what a spec does not name") {
  const Spec spec = Spec::parse(spec_with_child(R"("type": "distillation")"));
  CHECK_FALSE(spec.logits.scale.has_value());
  CHECK_FALSE(spec.logits.softcap.has_value());
  CHECK_FALSE(spec.logits.temperature.has_value());
  CHECK_FALSE(spec.logits.cap_first);
  CHECK(spec.gradient_mode == GradientMode::overwrite);
  CHECK(spec.gradient_dtype == DType::bf16);
  const ChildSpec& a = child(spec, "a");
  CHECK_FALSE(a.weight.has_value());
  CHECK_FALSE(a.transform.has_value());
  CHECK(a.numbers.empty());
  CHECK(a.options.at("divergence") ==
        LossRegistry::builtin().at("distillation").options.at(0).allowed.front());
  CHECK(a.flags == std::map<std::string, bool>{{"count_empty", false}, {"temperature_squared", false}});
  CHECK(a.reduction == "token_mean");
  CHECK(parameter_names(spec).empty());
  CHECK(child(Spec::parse(spec_with_child(R"("type": "dpo")")), "a").reduction == "pair_mean");
}

TEST_CASE("null is absent") {
  const std::string absent = Spec::parse(spec_with_child(R"("type": "gspo")")).to_json();
  CHECK(Spec::parse(spec_with(R"("losses": {"a": {"type": "gspo", "weight": null, "epsilon_low": null,
      "reduction": null, "divisor": null, "count_empty": null, "inputs": null}, "b": null},
      "params": null, "tensors": null, "metrics": null, "outputs": null, "parallel": null,
      "gradient": {"mode": null, "dtype": null, "form": null})"))
            .to_json() == absent);
  CHECK(Spec::parse(spec_with(R"("losses": {"a": {"type": "gspo"}}, "gradient": null, "params": {"tau": null},
      "tensors": {"advantages": null}, "parallel": {"vocab": null})"))
            .to_json() == absent);
}

TEST_CASE("a spec may ask for figures alone, and has no gradient then") {
  for (const char* members : {R"("metrics": ["entropy"])", R"("outputs": ["lse"])",
                              R"("losses": {}, "metrics": ["token_accuracy.count"])"}) {
    CHECK(Spec::parse(spec_with(members)).gradient_mode == GradientMode::none);
  }
}

TEST_CASE("a child's transform replaces what it names of the block's") {
  const std::string block =
      R"({"version": 1, "logits": {"dtype": "fp32", "vocab": 8, "scale": 2, "softcap": 30},
                               "losses": {"a": {"type": "z_loss", )";
  SECTION("another temperature keeps scale and soft-cap, by the block's parameters") {
    const auto t = child(Spec::parse(block + R"("temperature": 3}}})"), "a").transform.value();
    CHECK(t.scale.value().parameter == "logits.scale");
    CHECK(t.softcap.value().parameter == "logits.softcap");
    CHECK(t.temperature.value().parameter == "a.temperature");
  }
  SECTION("null switches off") {
    const Spec spec = Spec::parse(block + R"("softcap": null}}})");
    const auto t = child(spec, "a").transform.value();
    CHECK(t.scale.has_value());
    CHECK_FALSE(t.softcap.has_value());
    CHECK(Spec::parse(spec.to_json()).to_json() == spec.to_json());
    CHECK_FALSE(child(Spec::parse(spec.to_json()), "a").transform.value().softcap.has_value());
  }
  SECTION("naming the block's own values is still a transform of one's own") {
    CHECK(child(Spec::parse(block + R"("scale": 2}}})"), "a").transform.value().scale.value().parameter ==
          "a.scale");
    CHECK(child(Spec::parse(block + R"("order": "scale_first"}}})"), "a").transform.has_value());
  }
}

TEST_CASE("run-time parameters") {
  const Spec spec = Spec::parse(full_spec);
  CHECK(parameter_names(spec) == std::vector<std::string>{"logits.scale", "logits.softcap", "ce.scale",
                                                          "distill.weight", "distill.teacher_temperature",
                                                          "h.weight", "policy.weight", "policy.divisor",
                                                          "policy.epsilon_high", "policy.epsilon_low",
                                                          "z.weight", "params.smoothing", "params.tau"});
  std::map<std::string, lossc::ParameterInfo> by_name;
  for (const auto& info : lossc::ir::parameters(spec, LossRegistry::builtin())) by_name[info.name] = info;
  CHECK(by_name.at("logits.scale").value == 0.5);
  CHECK(by_name.at("logits.scale").range == Range::positive);
  CHECK(by_name.at("policy.weight").range == Range::non_negative);
  CHECK(by_name.at("params.smoothing").range == Range::probability);
  CHECK(by_name.at("params.tau").range == Range::positive);
  CHECK(by_name.at("params.tau").value == 1.5);
}

TEST_CASE("a shared parameter takes the numbers that suit all its uses") {
  const Spec spec = Spec::parse(spec_with(R"("params": {"x": 0.5}, "losses": {
      "a": {"type": "z_loss", "weight": "$x", "temperature": "$x"}})"));
  const auto infos = lossc::ir::parameters(spec, LossRegistry::builtin());
  REQUIRE(infos.size() == 1);
  CHECK(infos[0].name == "params.x");
  CHECK(infos[0].range == Range::positive);
}

TEST_CASE("ranges hold in fp32") {
  using lossc::ir::in_range;
  CHECK(in_range(3.4028234663852886e38, Range::any));
  CHECK_FALSE(in_range(3.4028235677973366e38, Range::any));  // rounds to infinity
  CHECK_FALSE(in_range(-1e300, Range::any));
  CHECK(in_range(1e-45, Range::positive));
  CHECK_FALSE(in_range(1e-46, Range::positive));  // rounds to 0
  CHECK(in_range(0, Range::non_negative));
  CHECK(in_range(-0.0, Range::non_negative));
  CHECK_FALSE(in_range(0, Range::positive));
  CHECK(in_range(0.9999999, Range::probability));
  CHECK_FALSE(in_range(0.99999999, Range::probability));  // rounds to 1
  for (const Range range : {Range::any, Range::non_negative, Range::positive, Range::probability}) {
    CHECK_FALSE(in_range(std::numeric_limits<double>::quiet_NaN(), range));
    CHECK_FALSE(in_range(std::numeric_limits<double>::infinity(), range));
  }
}

TEST_CASE("the canonical text does not depend on the order of keys") {
  const std::string canonical = Spec::parse(full_spec).to_json();
  std::mt19937 random(7);
  const Ordered json = Ordered::parse(full_spec);
  for (int i = 0; i < 200; ++i) CHECK(Spec::parse(shuffled(json, random).dump()).to_json() == canonical);
}

TEST_CASE("the canonical text does not depend on how a number is written") {
  const auto text = [](const char* vocab, const char* weight, const char* epsilon) {
    return Spec::parse(std::string(R"({"version": 1.0, "logits": {"dtype": "bf16", "vocab": )") + vocab +
                       R"(}, "losses": {"a": {"type": "gspo", "weight": )" + weight + R"(, "epsilon_low": )" +
                       epsilon + "}}}")
        .to_json();
  };
  const std::string canonical = text("131072", "1", "0.0003");
  CHECK(text("1.31072e5", "1.0", "3e-4") == canonical);
  CHECK(text("131072.0", "10E-1", "3.0e-04") == canonical);
  CHECK(text("131072", "0.1e1", "0.00030000000000000000") == canonical);
  CHECK(text("131072", "1", "0.0004") != canonical);
  CHECK(text("131072", "0", "0.0003") == text("131072", "-0.0", "0.0003"));
}

TEST_CASE("the canonical text reads back as the same spec") {
  for (const std::string& text :
       {std::string(full_spec), spec_with_child(R"("type": "cross_entropy")"),
        spec_with(R"("metrics": ["entropy"])"),
        spec_with_child(R"("type": "z_loss", "temperature": 0.1, "weight": 1e-300)"),
        spec_with_child(R"("type": "dpo", "beta": 1e22, "weight": 3.0000001)"),
        spec_with(R"("losses": {"a": {"type": "grpo"}}, "gradient": {"mode": "in_place"})")}) {
    INFO(text);
    const Spec first = Spec::parse(text);
    const Spec second = Spec::parse(first.to_json());
    CHECK(second.to_json() == first.to_json());
    CHECK(Spec::parse(first.to_json(-1)).to_json() == first.to_json());
    CHECK(second.gradient_mode == first.gradient_mode);
    CHECK(second.metrics.size() == first.metrics.size());
    REQUIRE(second.losses.size() == first.losses.size());
    for (std::size_t i = 0; i < first.losses.size(); ++i) {
      const ChildSpec &a = first.losses[i], &b = second.losses[i];
      CHECK(b.name == a.name);
      CHECK(b.type == a.type);
      CHECK(b.options == a.options);
      CHECK(b.flags == a.flags);
      CHECK(b.inputs == a.inputs);
      CHECK(b.reduction == a.reduction);
      CHECK(b.transform.has_value() == a.transform.has_value());
      CHECK(b.weight.has_value() == a.weight.has_value());
      for (const auto& [key, number] : a.numbers) {
        CHECK(b.numbers.at(key).value == number.value);
        CHECK(b.numbers.at(key).parameter == number.parameter);
      }
    }
    const auto before = lossc::ir::parameters(first, LossRegistry::builtin());
    const auto after = lossc::ir::parameters(second, LossRegistry::builtin());
    REQUIRE(after.size() == before.size());
    for (std::size_t i = 0; i < before.size(); ++i) {
      CHECK(after[i].name == before[i].name);
      CHECK(after[i].value == before[i].value);
      CHECK(after[i].range == before[i].range);
    }
  }
}

TEST_CASE("numbers stand in shortest form in the canonical text") {
  const std::string text =
      Spec::parse(spec_with_child(R"("type": "z_loss", "weight": 1.0000e-4)")).to_json(-1);
  CHECK(text.find(R"("weight":0.0001)") != std::string::npos);
  CHECK(
      Spec::parse(spec_with_child(R"("type": "z_loss", "weight": 2.0)")).to_json(-1).find(R"("weight":2})") !=
      std::string::npos);
}
