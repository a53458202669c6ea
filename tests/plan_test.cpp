// The fusion planner and its printouts: what is read how often, where seams stand, and that a printed plan
// says everything that it uses.
#include "compiler/plan.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "compiler/plan_print.h"
#include "lossc/loss.h"
#include "tests/catch.h"

using namespace lossc;
using Json = nlohmann::ordered_json;

namespace {

const char* const kCe = R"("ce": {"type": "cross_entropy"})";
const char* const kZ = R"("z": {"type": "z_loss", "weight": 1e-4})";
const char* const kGrpo = R"("policy": {"type": "grpo"})";
const char* const kGspo = R"("policy": {"type": "gspo"})";
const char* const kDpo = R"("preference": {"type": "dpo"})";
const char* const kEntropy = R"("bonus": {"type": "entropy", "weight": 0.01})";
const char* const kReverse =
    R"("distill": {"type": "distillation", "divergence": "reverse_kl", "weight": 0.5})";

struct Request {
  std::vector<std::string> losses;
  std::string metrics = {};  // inside of the brackets
  std::string outputs = {};
  std::string gradient = R"({"mode": "overwrite"})";
};

std::string spec_text(const Request& request) {
  const std::string losses = fmt::format("{}", fmt::join(request.losses, ", "));
  const bool teacher = losses.find("distillation") != std::string::npos;
  return fmt::format(R"({{"version": 1, "logits": {{"dtype": "bf16", "vocab": 1000}}, "tensors": {{{}}},
    "losses": {{{}}}, "metrics": [{}], "outputs": [{}], "gradient": {}}})",
                     teacher ? R"("teacher_logits": {"dtype": "fp32"})" : "", losses, request.metrics,
                     request.outputs, request.gradient);
}

struct Planned {
  Spec spec;
  Plan plan;
  Json json() const { return Json::parse(plan_json(plan, spec)); }
};

Planned planned(const Request& request, const LossRegistry& registry = LossRegistry::builtin()) {
  Planned p;
  p.spec = Spec::parse(spec_text(request), registry);
  p.plan = plan_spec(p.spec, registry);
  return p;
}

bool depends_on_logits(const Plan& plan, ir::NodeId id) {
  return ir::depends_on(plan.loss.graph, {plan.loss.logits})[static_cast<std::size_t>(id)];
}

std::vector<Request> requests() {
  return {{{kCe}},
          {{kCe, kZ}, R"("entropy", "token_accuracy")", R"("logprobs")"},
          {{kCe, kZ}, "", R"("lse")", R"({"mode": "none"})"},
          {{kCe, kZ}, "", "", R"({"mode": "accumulate", "dtype": "fp32"})"},
          {{kCe, kGrpo, kEntropy}, R"("policy.kl_k1", "policy.clip_fraction")", R"("entropy")"},
          {{kGspo, kZ, kCe}, R"("policy.ratio", {"name": "policy.logprob", "weighting": "document"})"},
          {{kGspo, kReverse}, R"("entropy")", R"("policy.loss")"},
          {{kDpo}, R"("preference.reward_margin")"},
          {{kDpo, kReverse, kCe}},
          {{R"("cap": {"type": "cross_entropy", "softcap": 30, "label_smoothing": 0.1, "temperature": 0.7})",
            kCe}},
          {{}, R"("entropy")", R"("logprobs")", R"({"mode": "none"})"}};
}

}  // namespace

TEST_CASE("cross-entropy and z-loss read once and write once") {
  const Plan plan = planned({{kCe, kZ}}).plan;
  CHECK(plan.regions.size() == 1);
  CHECK(plan.seams.empty());
  CHECK(plan.passes == 2);
  CHECK(plan.bound_passes == 2);
  CHECK(plan.extra_reads == 1);  // the gradient's sweep
  CHECK(plan.bytes_per_row == 2 * 1000 * 2);
  CHECK(plan.bound_bytes_per_row == plan.bytes_per_row);
  CHECK(plan.regions[0].emit);
  CHECK(plan.regions[0].phases.size() == 1);
}

TEST_CASE("children that name one parameter share a softmax") {
  const auto sums = [](const std::string& first, const std::string& second) {
    const std::string params = first.front() == '"' ? R"("params": {"tau": 2}, )" : "";
    const Spec spec = Spec::parse(R"({"version": 1, "logits": {"dtype": "bf16", "vocab": 1000}, )" + params +
                                  R"("losses": {"a": {"type": "cross_entropy", "temperature": )" + first +
                                  R"(}, "b": {"type": "z_loss", "temperature": )" + second + "}}}");
    const Plan plan = plan_spec(spec, LossRegistry::builtin());
    CHECK(plan.passes == 2);
    CHECK(plan.regions.size() == 1);
    CHECK(plan.regions[0].phases.size() == 1);
    std::size_t found = 0;
    for (const Phase& phase : plan.regions[0].phases) {
      for (const ir::NodeId id : phase.statistics) found += plan.loss.graph.node(id).op == ir::Op::log_sum;
    }
    return found;
  };
  CHECK(sums(R"("$tau")", R"("$tau")") == 1);
  CHECK(sums("2", "2") == 2);  // two parameters that happen to have one value
}

TEST_CASE("children without a seam are written with those that have one") {
  const Plan plan = planned({{kGspo, kZ, kCe}}).plan;
  REQUIRE(plan.regions.size() == 2);
  REQUIRE(plan.seams.size() == 1);
  CHECK(!plan.seams[0].empty());
  CHECK(plan.passes == 3);
  CHECK(plan.bound_passes == 3);
  CHECK(!plan.regions[0].emit);
  CHECK(plan.regions[1].emit);
  CHECK(plan.regions[1].phases.empty());  // all statistics come from the first region
  CHECK(plan.bytes_per_row == 3 * 1000 * 2);
}

TEST_CASE("the teacher is read once, in the last region") {
  const Planned p = planned({{kGspo, kReverse}});
  const Plan& plan = p.plan;
  REQUIRE(plan.regions.size() == 2);
  CHECK(plan.passes == 4);
  CHECK(plan.bound_passes == 4);
  CHECK(plan.regions[0].reads == std::vector<ir::NodeId>{plan.loss.logits});
  CHECK(plan.regions[1].reads.size() == 2);
  CHECK(plan.bytes_per_row == 2 * 1000 * 2 + 1000 * 4 + 1000 * 2);  // the teacher is fp32
}

TEST_CASE("figures that people log add no pass") {
  const std::string figures = R"("entropy", "policy.kl_k1", "policy.kl_k3", "token_accuracy")";
  for (const char* policy : {kGrpo, kGspo}) {
    for (const std::vector<std::string>& others :
         {std::vector<std::string>{kCe}, std::vector<std::string>{kCe, kZ, kEntropy}}) {
      std::vector<std::string> losses = others;
      losses.emplace_back(policy);
      const Plan without = planned({losses}).plan, with = planned({losses, figures, R"("logprobs")"}).plan;
      CAPTURE(losses);
      CHECK(with.passes == without.passes);
      CHECK(with.bound_passes == without.bound_passes);
      CHECK(with.regions.size() == without.regions.size());
      CHECK(with.extra_reads == without.extra_reads);
      CHECK(with.bytes_per_row == without.bytes_per_row);
    }
  }
}

TEST_CASE("a loss without a gradient reads once; accumulating reads the gradient too") {
  const Plan value = planned({{kCe, kZ}, "", "", R"({"mode": "none"})"}).plan;
  CHECK(value.regions.size() == 1);
  CHECK(value.passes == 1);
  CHECK(value.bound_passes == 1);
  CHECK(value.extra_reads == 0);
  CHECK(!value.regions[0].emit);
  CHECK(planned({{kGspo}, "", "", R"({"mode": "none"})"}).plan.passes == 1);

  const Planned sum = planned({{kCe, kZ}, "", "", R"({"mode": "accumulate", "dtype": "fp32"})"});
  CHECK(sum.plan.passes == 3);
  CHECK(sum.plan.bound_passes == 3);
  CHECK(sum.plan.bytes_per_row == 1000 * (2 + 4 + 4));
  const Json region = sum.json()["regions"][0];
  CHECK(region["reads"] == Json({"logits", "grad_logits"}));
  CHECK(region["writes"] == Json({"grad_logits"}));

  CHECK(planned({{kCe, kZ}, "", "", R"({"mode": "in_place"})"}).plan.passes == 2);
}

TEST_CASE("sums over sequences and over pairs stand in one seam") {
  const Plan plan = planned({{kDpo}}).plan;
  REQUIRE(plan.regions.size() == 2);
  REQUIRE(plan.seams.size() == 1);
  CHECK(plan.passes == 3);
  CHECK(plan.bound_passes == 3);
  std::set<std::string> maps;
  for (const Step& step : plan.seams[0]) {
    if (step.kind == Step::Kind::segment) maps.insert(step.map);
  }
  // Forward a sum over each sequence, backward one over the pairs that a sequence is in.
  CHECK(maps == std::set<std::string>{"segment_ids", "pairs.chosen", "pairs.rejected"});
}

TEST_CASE("entropy, policy and cross-entropy share one region") {
  const Plan plan = planned({{kEntropy, kGrpo, kCe}}).plan;
  CHECK(plan.regions.size() == 1);
  CHECK(plan.seams.empty());
  CHECK(plan.passes == 2);
  CHECK(plan.bound_passes == 2);
}

TEST_CASE("losses of the label's probability collapse into one dense and one sparse term") {
  const Plan plan = planned({{kCe, kZ, kGrpo, kDpo}}).plan;
  REQUIRE(plan.loss.child_gradients.size() == 4);
  REQUIRE(plan.loss.dense.size() == 1);
  REQUIRE(plan.loss.sparse.size() == 1);
  const ir::Graph& g = plan.loss.graph;
  const ir::Node& basis = g.node(plan.loss.dense[0].basis);
  CHECK(basis.op == ir::Op::softmax);
  CHECK(basis.in[0] == plan.loss.logits);
  CHECK(g.node(plan.loss.sparse[0].index).op == ir::Op::input);
  CHECK(g.symbol_of(plan.loss.sparse[0].index) == "labels");
  // Without the preference pairs there is no seam.
  CHECK(planned({{kCe, kZ, kGrpo}}).plan.regions.size() == 1);
}

TEST_CASE("every plan holds what planning promises") {
  for (const Request& request : requests()) {
    const Planned p = planned(request);
    const Plan& plan = p.plan;
    const ir::Graph& g = plan.loss.graph;
    CAPTURE(spec_text(request), plan_text(plan, p.spec));
    CHECK(plan.passes >= plan.bound_passes);
    CHECK(plan.bytes_per_row >= plan.bound_bytes_per_row);
    REQUIRE(plan.seams.size() + 1 == plan.regions.size());
    for (const auto& seam : plan.seams) CHECK(!seam.empty());

    std::set<ir::NodeId> computed;
    for (std::size_t i = 0; i < plan.regions.size(); ++i) {
      const Region& region = plan.regions[i];
      const bool last = i + 1 == plan.regions.size();
      CHECK(region.emit == (last && p.spec.gradient_mode != GradientMode::none));
      CHECK((!region.reads.empty() || !region.picks.empty()));
      std::set<ir::NodeId> own(region.picks.begin(), region.picks.end());
      for (const Phase& phase : region.phases) {
        CHECK(!phase.statistics.empty());
        own.insert(phase.statistics.begin(), phase.statistics.end());
      }
      for (ir::NodeId id : own) {
        CHECK(is_statistic(g, id));
        CHECK(computed.insert(id).second);  // once
      }
      for (ir::NodeId id : region.stored) CHECK(own.count(id) == 1);
    }
    for (const Step& step : plan.prologue) {
      for (ir::NodeId id : step.values) CHECK(!depends_on_logits(plan, id));
    }
    for (const auto& seam : plan.seams) {
      for (const Step& step : seam) {
        for (ir::NodeId id : step.values) CHECK(depends_on_logits(plan, id));
      }
    }
  }
}

TEST_CASE("a row output that another value reads is written at the end") {
  LossRegistry registry = LossRegistry::builtin();
  registry.add({.name = "centred",
                .summary = "squared distance of the log-probability from the batch's mean",
                .formula = "(logprob - mean(logprob))^2",
                .inputs = {{"labels"}},
                .value = [](LossContext& c) { return square(c.logprob() - c.batch_mean(c.logprob())); }});
  const Planned p = planned({{R"("c": {"type": "centred"})"}, "", R"("logprobs")"}, registry);
  // The output is what the mean is taken of, so the gradient reads it; its statistics come from the first
  // region.
  CHECK(p.plan.regions.size() == 2);
  const auto written_in = [&](const std::vector<Step>& steps) {
    for (const Step& step : steps) {
      for (ir::NodeId id : step.values) {
        if (id == p.plan.loss.rows.at(0).node) return true;
      }
    }
    return false;
  };
  CHECK(!written_in(p.plan.prologue));
  CHECK(written_in(p.plan.epilogue));
}

TEST_CASE("the JSON form adds up") {
  for (const Request& request : requests()) {
    const Planned p = planned(request);
    const Json json = p.json();
    CAPTURE(json.dump(1));
    double bytes = 0;
    int passes = 0, stored = 0;
    for (const Json& region : json["regions"]) {
      bytes += region["bytes_per_row"].get<double>();
      passes += static_cast<int>(region["reads"].size() + region["writes"].size());
      stored += static_cast<int>(region["stored"].size());
      CHECK(region["emit"].is_null() == region["writes"].empty());
    }
    CHECK(bytes == json["bytes_per_row"].get<double>());
    CHECK(passes == json["passes"].get<int>());
    CHECK(json["row_bytes"].get<int>() >= 4 * stored);
    CHECK(json["row_bytes"].get<int>() <= 64);
    CHECK(json["segment_bytes"].get<int>() <= 64);
    CHECK(json["spec"]["children"].size() == p.spec.losses.size());
    CHECK(json["results"].size() == p.plan.loss.scalars.size() + p.plan.loss.rows.size() +
                                        (p.spec.gradient_mode == GradientMode::none ? 0 : 1));
  }
}

namespace {

// Reads `name = formula` lines in the order of the plan; every name in a formula must be known by then.
class Reader {
 public:
  explicit Reader(const Json& json) {
    for (const Json& input : json["inputs"]) {
      std::string name = input;
      if (name.ends_with("?")) name.pop_back();
      known_.insert(name);
    }
    for (const char* word : {"true", "false", "nan", "inf", "k"}) known_.insert(word);
    for (const Json& child : json["spec"]["children"]) {
      for (const auto& [key, value] : child["parameters"].items()) known_.insert(value["parameter"]);
      if (child["weight"].contains("parameter")) known_.insert(child["weight"]["parameter"]);
      if (!child.contains("transform")) continue;
      for (const auto& [key, value] : child["transform"].items()) known_.insert(value["parameter"]);
    }
  }

  void define(const Json& lines) {
    for (const std::string line : lines) {
      CAPTURE(line);
      CHECK(line.size() <= 132);
      CHECK(unknown(formula(line)).empty());
      const std::string name = line.substr(0, line.find(" = "));
      CHECK(known_.insert(name).second);
    }
  }

  // Takes lines when all that they use is known, as often as one is.
  void define_in_any_order(Json lines) {
    while (!lines.empty()) {
      Json later = Json::array();
      for (const Json& line : lines) {
        if (unknown(formula(line)).empty()) {
          define({line});
        } else {
          later.push_back(line);
        }
      }
      if (later.size() == lines.size()) return define(lines);  // fails
      lines = later;
    }
  }

  void use(const Json& lines) {
    for (const std::string line : lines) {
      CAPTURE(line);
      CHECK(unknown(formula(line)).empty());
    }
  }

  void steps(const Json& list) {
    for (const Json& step : list) {
      define(step["where"]);
      define(step["values"]);
    }
  }

 private:
  static std::string formula(const std::string& line) {
    const std::size_t equals = line.find(" = ");
    return equals == std::string::npos ? line : line.substr(equals + 3);
  }

  // The names in a formula that are not known, functions left out.
  std::set<std::string> unknown(const std::string& text) const {
    static const std::regex word("[A-Za-z_][A-Za-z_0-9.]*\\(?");
    std::set<std::string> names;
    for (auto it = std::sregex_iterator(text.begin(), text.end(), word); it != std::sregex_iterator(); ++it) {
      const std::string name = it->str();
      if (name.back() != '(' && known_.count(name) == 0) names.insert(name);
    }
    return names;
  }

  std::set<std::string> known_;
};

}  // namespace

TEST_CASE("every name in a printed plan is defined once, before it is used") {
  for (const Request& request : requests()) {
    const Planned p = planned(request);
    const Json json = p.json();
    CAPTURE(plan_text(p.plan, p.spec));
    Reader reader(json);
    reader.define(json["rows"]["where"]);
    reader.use({json["rows"]["active"], json["rows"]["live"], json["rows"]["bad"]});
    reader.steps(json["prologue"]);
    for (std::size_t i = 0; i < json["regions"].size(); ++i) {
      if (i > 0) reader.steps(json["seams"][i - 1]["steps"]);
      const Json& region = json["regions"][i];
      reader.define(region["where"]);
      reader.define(region["picks"]);
      for (const Json& phase : region["phases"]) {
        // What is known before the sweep comes first; the rest may be made of it.
        Json lines = phase["where"];
        for (const Json& statistic : phase["statistics"]) lines.push_back(statistic);
        reader.define_in_any_order(lines);
      }
      reader.use(region["stored"]);
      if (region["emit"].is_null()) continue;
      reader.define(region["emit_where"]);
      reader.use(region["emit"]);
    }
    reader.steps(json["epilogue"]);
  }
}

TEST_CASE("a plan prints the same every time, in ASCII") {
  for (const Request& request : requests()) {
    const Planned a = planned(request), b = planned(request);
    const std::string text = plan_text(a.plan, a.spec);
    CHECK(text == plan_text(b.plan, b.spec));
    CHECK(plan_json(a.plan, a.spec) == plan_json(b.plan, b.spec));
    CHECK(plan_math(a.plan, a.spec) == plan_math(b.plan, b.spec));
    for (char c : text) CHECK((c == '\n' || (c >= ' ' && c <= '~')));
  }
}

TEST_CASE("the summary comes first") {
  const Planned p = planned({{kGspo, kReverse}});
  const std::string text = plan_text(p.plan, p.spec);
  CHECK(text.rfind("2 regions, 1 seam, 4 passes\n", 0) == 0);
  CHECK(text.find("passes    4 (bound 4)") != std::string::npos);
  CHECK(text.find("traffic   10,000 bytes a row (bound 10,000)") != std::string::npos);
  std::size_t at = 0;
  for (const char* part : {"\nrows\n", "\nprologue\n", "\nregion0: read logits;", "\nseam0\n",
                           "\nregion1: read logits, teacher_logits; write grad_logits;", "\nepilogue\n"}) {
    const std::size_t found = text.find(part, at);
    CAPTURE(text, part);
    REQUIRE(found != std::string::npos);
    at = found;
  }
}

TEST_CASE("the derivative reads like mathematics") {
  const Planned p = planned({{kCe, kZ}});
  const std::string text = plan_math(p.plan, p.spec);
  CAPTURE(text);
  CHECK(text.find("d(weight * loss.ce) / d logits[k] =\n"
                  "    p / max(N, 1)\n"
                  "  - [k == labels] / max(N, 1)\n") != std::string::npos);
  CHECK(text.find("p      = softmax(logits)\n") != std::string::npos);
  CHECK(text.find("N      = reduce_sum(indicator(counts))\n") != std::string::npos);
  CHECK(text.find("anchor") == std::string::npos);
  CHECK(text.find("nan") == std::string::npos);

  // Reverse KL: p (u - t - E[u - t]).
  const Planned reverse = planned({{kReverse}});
  const std::string distill = plan_math(reverse.plan, reverse.spec);
  CAPTURE(distill);
  CHECK(distill.find("p * (logits - teacher_logits)") != std::string::npos);
  CHECK(distill.find("expect(logits, logits - teacher_logits)") != std::string::npos);

  // The chain through a soft cap: 1 - tanh^2, and no trace of how infinite logits are treated.
  const Planned cap = planned({{R"("ce": {"type": "cross_entropy", "softcap": 30})"}});
  const std::string capped = plan_math(cap.plan, cap.spec);
  CAPTURE(capped);
  CHECK(capped.find("= tanh(logits / ce.softcap)\n") != std::string::npos);
  CHECK(capped.find("-inf") == std::string::npos);

  const Planned none = planned({{kCe}, "", "", R"({"mode": "none"})"});
  CHECK(plan_math(none.plan, none.spec) == "The spec asks for no gradient.\n");
}

TEST_CASE("the graph's dump names the results") {
  const Planned p = planned({{kCe}});
  const std::string text = graph_text(p.plan);
  for (const char* part : {"input logits: element\n", "\nloss.ce = %", "\nactive = %", "\ngrad.basis0 = %",
                           "\ngrad.index0 = labels\n"}) {
    CAPTURE(text, part);
    CHECK(text.find(part) != std::string::npos);
  }
}
