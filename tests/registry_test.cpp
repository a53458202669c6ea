// The registry of loss types and the helpers for names.
#include "ir/registry.h"

#include <string>
#include <vector>

#include "catch.h"
#include "ir/names.h"
#include "lossc/error.h"
#include "lossc/loss.h"
#include "lossc/spec.h"
#include "spec_text.h"

using lossc::Error;
using lossc::ErrorCode;
using lossc::LossContext;
using lossc::LossDefinition;
using lossc::LossDomain;
using lossc::LossRegistry;
using lossc::Range;
using lossc::Spec;
using namespace lossc::ir;

namespace {

LossDefinition definition(const std::string& name) {
  LossDefinition d;
  d.name = name;
  d.value = [](LossContext& c) { return c.logprob(); };
  return d;
}

std::string refused(const LossDefinition& d) {
  LossRegistry registry;
  registry.add(definition("taken"));
  try {
    registry.add(d);
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::invalid_argument);
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("nearest names") {
  const std::vector<std::string> known = {"epsilon_low", "epsilon_high", "weight", "type", "scale"};
  CHECK(nearest_name("epsilonlow", known) == "epsilon_low");
  CHECK(nearest_name("epsilon_hihg", known) == "epsilon_high");
  CHECK(nearest_name("WEIGHT", known) == "weight");
  CHECK(nearest_name("wieght", known) == "weight");
  CHECK(nearest_name("tpe", known) == "type");
  CHECK(nearest_name("zzzzzzzz", known).empty());
  CHECK(nearest_name("", known).empty());
  CHECK(nearest_name("scale", {}).empty());
  CHECK(nearest_name("ab", {"ac", "aa"}) == "aa");  // of two equally near, the first in the alphabet
  CHECK(did_you_mean("wieght", known) == "; did you mean \"weight\"?");
  CHECK(did_you_mean("zzzzzzzz", known).empty());
  CHECK(did_you_mean(std::string(1 << 20, 'a'), {std::string(1 << 20, 'b')}).empty());
}

TEST_CASE("names and quotes") {
  CHECK(is_name("_a1"));
  CHECK(is_name("A"));
  CHECK_FALSE(is_name(""));
  CHECK(is_name(std::string(128, 'a')));
  CHECK_FALSE(is_name(std::string(129, 'a')));
  CHECK_FALSE(is_name("1a"));
  CHECK_FALSE(is_name("a.b"));
  CHECK_FALSE(is_name("\xc3\xa4"));
  CHECK(in_quotes("a\"b\\c") == R"("a\"b\\c")");
  CHECK(in_quotes("\n\x7f") == R"("\x0a\x7f")");
  CHECK(in_quotes("\xc3\xa4 \xff \xed\xa0\x80") == "\"\xc3\xa4 \\xff \\xed\\xa0\\x80\"");
  CHECK(in_quotes(std::string(100, 'x')) == "\"" + std::string(64, 'x') + "...\"");
  CHECK(printable(std::string(100, 'x'), 30).size() <= 33);
  CHECK(comma_list({"a", "b"}) == "a, b");
  CHECK(comma_list(std::vector<std::string>(1000, "a")).ends_with("a and 968 more"));
  CHECK(printable("short", 30) == "short");
}

TEST_CASE("a registry keeps definitions by name") {
  LossRegistry registry;
  registry.add(definition("b"));
  registry.add(definition("a"));
  CHECK(registry.names() == std::vector<std::string>{"a", "b"});
  CHECK(registry.find("a") == &registry.at("a"));
  CHECK(registry.find("c") == nullptr);
  CHECK_THROWS_AS(registry.at("c"), Error);
  const LossRegistry copy = registry;
  registry.add(definition("c"));
  CHECK(copy.find("c") == nullptr);
}

TEST_CASE("definitions are checked when added") {
  CHECK(refused(definition("taken")).find("taken") != std::string::npos);
  CHECK_FALSE(refused(definition("")).empty());
  CHECK_FALSE(refused(definition("a-b")).empty());
  LossDefinition d = definition("x");
  CHECK(refused(d).empty());
  d.value = nullptr;
  CHECK(refused(d).find("value") != std::string::npos);

  d = definition("x");
  d.parameters = {{.name = "weight", .fallback = {}}};
  CHECK(refused(d).find("reserved") != std::string::npos);
  d.parameters = {{.name = "p", .fallback = {}}, {.name = "p", .fallback = {}}};
  CHECK(refused(d).find("twice") != std::string::npos);
  d.parameters = {{.name = "p", .fallback = {}}};
  d.options = {{.name = "p", .allowed = {"a"}}};
  CHECK(refused(d).find("twice") != std::string::npos);
  d.parameters = {{.name = "p", .fallback = -1, .range = Range::positive}};
  d.options = {};
  CHECK(refused(d).find("> 0") != std::string::npos);

  d = definition("x");
  d.options = {{.name = "o", .allowed = {}}};
  CHECK(refused(d).find("no value") != std::string::npos);
  d.options = {{.name = "o", .allowed = {"a", "a"}}};
  CHECK(refused(d).find("twice") != std::string::npos);
  d.options = {};
  d.flags = {{.name = "count_empty"}};
  CHECK(refused(d).find("reserved") != std::string::npos);

  d = definition("x");
  d.inputs = {{.name = "logits"}};
  CHECK_FALSE(refused(d).empty());
  d.inputs = {{.name = "a", .space = "row"}};
  CHECK(refused(d).find("\"row\"") != std::string::npos);
  d.inputs = {{.name = "a"}, {.name = "a"}};
  CHECK(refused(d).find("twice") != std::string::npos);

  d = definition("x");
  d.reductions = {"tokenmean"};
  CHECK(refused(d).find("did you mean \"token_mean\"?") != std::string::npos);
  d.reductions = {"sum", "sum"};
  CHECK(refused(d).find("twice") != std::string::npos);

  d = definition("x");
  d.metrics = {{"m", "", nullptr}};
  CHECK(refused(d).find("value") != std::string::npos);
  const auto value = [](LossContext& c) { return c.logprob(); };
  d.metrics = {{"sum", "", value}};
  CHECK(refused(d).find("suffix") != std::string::npos);
  d.metrics = {{"m", "", value}, {"m", "", value}};
  CHECK(refused(d).find("twice") != std::string::npos);
}

TEST_CASE("a spec over a loss of one's own") {
  LossRegistry registry;
  LossDefinition d = definition("mine");
  d.domain = LossDomain::segments;
  d.parameters = {{.name = "gamma", .fallback = {}, .range = Range::positive}};
  d.options = {{.name = "shape", .allowed = {"round", "square"}}};
  d.inputs = {{.name = "scores", .space = "segments", .required = false}};
  d.reductions = {"sequence_mean", "sum"};
  d.metrics = {
      {"best", "", [](LossContext& c) { return c.logprob(); }, lossc::MetricDefinition::Summary::max}};
  registry.add(std::move(d));
  const std::string text = lossc::test::spec_with(
      R"("losses": {"a": {"type": "mine", "gamma": 2, "inputs": {"scores": null}}, "b": {"type": "mine",
         "shape": "square", "inputs": {"scores": "other"}}}, "metrics": ["a.best"])");
  const Spec spec = Spec::parse(text, registry);
  CHECK(spec.losses.at(0).reduction == "sequence_mean");
  CHECK(spec.losses.at(0).options.at("shape") == "round");
  CHECK(spec.losses.at(0).inputs.at("scores") == std::nullopt);
  CHECK(spec.losses.at(1).inputs.at("scores") == "other");
  CHECK_THROWS_AS(Spec::parse(text), Error);  // not among the built-in losses
  CHECK(lossc::spec_schema(registry).find("loss_mine") != std::string::npos);
}

TEST_CASE("what a child may say follows from its definition") {
  LossDefinition rows = definition("r");
  CHECK(allowed_reductions(rows).front() == "token_mean");
  rows.domain = LossDomain::pairs;
  CHECK(allowed_reductions(rows).front() == "pair_mean");
  rows.inputs = {{.name = "labels"}};
  CHECK_FALSE(may_opt_out(rows, "labels"));
  CHECK(may_opt_out(definition("r"), "labels"));
  CHECK_FALSE(may_opt_out(definition("r"), "segment_ids"));
  CHECK(child_metrics(rows) == std::vector<std::string>{"entropy", "token_accuracy"});
  // The kind of summary decides, not the metric's name.
  const auto value = [](LossContext& c) { return c.logprob(); };
  rows.metrics = {{"spread_max", "", value},
                  {"all", "", value, lossc::MetricDefinition::Summary::sum},
                  {"margin", "", value, lossc::MetricDefinition::Summary::mean, true}};
  CHECK(metric_form(rows, "spread_max").mean);
  CHECK_FALSE(metric_form(rows, "spread_max").of_pairs);
  CHECK_FALSE(metric_form(rows, "all").mean);
  CHECK(metric_form(rows, "margin").of_pairs);
  CHECK(metric_form(rows, "entropy").mean);
  CHECK(child_inputs(definition("r")) ==
        std::vector<std::string>{"label_counts", "labels", "mask", "token_weights"});
}
