// What names the kernels of a plan on a GPU: their structure, types and vocabulary, the architecture and the
// compiler; neither names nor numbers nor the order that a spec is written in. What has one key has one
// source. Skipped where there is no NVRTC.
#include <set>

#include "catch.h"
#include "compiler/cuda/cuda_source.h"
#include "compiler/cuda/nvrtc.h"
#include "lossc/loss.h"
#include "runtime/program_key.h"
#include "tests/cases.h"
#include "tests/need_nvrtc.h"

using namespace lossc;
using namespace lossc::cuda;
using namespace lossc::test;

namespace {

struct Kernels {
  std::string key, source;
  bool operator==(const Kernels&) const = default;
};

Kernels kernels_of(const Spec& spec, const std::string& arch = "sm_90a") {
  const Plan plan = plan_spec(spec, LossRegistry::builtin());
  const Layout layout = make_layout(plan, spec);
  return {program_key(plan, layout, spec, "cuda:" + arch).digest(),
          cuda_source(plan, layout, spec, arch).text};
}

Kernels kernels_of(const char* spec) {
  return kernels_of(Spec::parse(spec));
}

const char* const kSpec = R"({"version": 1, "logits": {"dtype": "bf16", "vocab": 4096},
  "tensors": {"teacher_logits": {"dtype": "fp16"}}, "params": {"tau": 2},
  "losses": {"ce": {"type": "cross_entropy", "weight": 0.5},
             "policy": {"type": "gspo", "epsilon_low": 0.1},
             "soft": {"type": "distillation", "temperature": "$tau", "divergence": "forward_kl"},
             "preference": {"type": "dpo"}},
  "metrics": ["policy.clip_fraction", "entropy"], "outputs": ["logprobs", "ce.loss"],
  "gradient": {"mode": "accumulate", "dtype": "fp32"}})";

}  // namespace

TEST_CASE("names of children, tensors and parameters are in neither key nor source") {
  need_nvrtc();
  const Kernels kernels = kernels_of(kSpec);
  CHECK(kernels == kernels_of(R"({"version": 1, "logits": {"dtype": "bf16", "vocab": 4096},
    "tensors": {"other_teacher": {"dtype": "fp16"}}, "params": {"heat": 2},
    "losses": {"a": {"type": "cross_entropy", "weight": 0.5},
               "b": {"type": "gspo", "epsilon_low": 0.1,
                     "inputs": {"advantages": "gains", "old_logprobs": "before"}},
               "c": {"type": "distillation", "temperature": "$heat", "divergence": "forward_kl",
                     "inputs": {"teacher_logits": "other_teacher"}},
               "d": {"type": "dpo", "inputs": {"ref_logprobs": "reference"}}},
    "metrics": ["b.clip_fraction", "entropy"], "outputs": ["logprobs", "a.loss"],
    "gradient": {"mode": "accumulate", "dtype": "fp32"}})"));
  CHECK(kernels_of(R"({"version": 1, "logits": {"dtype": "bf16", "vocab": 4096},
          "losses": {"ce": {"type": "cross_entropy"}, "z": {"type": "z_loss"}}})") ==
        kernels_of(R"({"version": 1, "logits": {"dtype": "bf16", "vocab": 4096},
          "losses": {"x": {"type": "cross_entropy", "inputs": {"labels": "targets"}},
                     "y": {"type": "z_loss", "inputs": {"labels": "targets"}}}})"));
}

TEST_CASE("J2: the order of keys and how numbers are written are in neither key nor source") {
  need_nvrtc();
  CHECK(kernels_of(kSpec) == kernels_of(R"({"gradient": {"dtype": "fp32", "mode": "accumulate"},
    "outputs": ["logprobs", "ce.loss"], "metrics": ["policy.clip_fraction", "entropy"],
    "losses": {"preference": {"type": "dpo"},
               "soft": {"divergence": "forward_kl", "temperature": "$tau", "type": "distillation"},
               "policy": {"epsilon_low": 1e-1, "type": "gspo"},
               "ce": {"weight": 5e-1, "type": "cross_entropy"}},
    "params": {"tau": 2.0}, "tensors": {"teacher_logits": {"dtype": "fp16"}},
    "logits": {"vocab": 4096, "dtype": "bf16"}, "version": 1})"));
}

TEST_CASE("the values of weights and parameters are in neither key nor source") {
  need_nvrtc();
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {"\"weight\": 0.5", "\"weight\": 0.25"}, {"0.1", "0.3"}, {"\"tau\": 2", "\"tau\": 3"}}) {
    std::string text = kSpec;
    text.replace(text.find(from), from.size(), to);
    CAPTURE(text);
    CHECK(kernels_of(kSpec) == kernels_of(text.c_str()));
  }
}

TEST_CASE("what changes kernels changes their key") {
  need_nvrtc();
  std::set<std::string> keys = {kernels_of(kSpec).key};
  std::size_t made = 1;
  const auto add = [&](const Kernels& kernels) {
    keys.insert(kernels.key);
    CHECK(keys.size() == ++made);
  };
  for (const auto& [from, to] :
       std::vector<std::pair<std::string, std::string>>{{"4096", "4097"},
                                                        {"\"dtype\": \"bf16\"", "\"dtype\": \"fp32\""},
                                                        {"\"dtype\": \"fp16\"", "\"dtype\": \"bf16\""},
                                                        {"forward_kl", "reverse_kl"},
                                                        {"\"accumulate\"", "\"overwrite\""},
                                                        {"\"dtype\": \"fp32\"}", "\"dtype\": \"fp16\"}"},
                                                        {"\"entropy\"]", "\"policy.ratio\"]"},
                                                        {"\"logprobs\", ", ""}}) {
    std::string text = kSpec;
    text.replace(text.find(from), from.size(), to);
    CAPTURE(text);
    add(kernels_of(text.c_str()));
  }
  for (const char* arch : {"sm_80", "sm_100a", "sm_120a"}) add(kernels_of(Spec::parse(kSpec), arch));
}

TEST_CASE("no source includes anything, and nothing but the source reaches a compilation") {
  need_nvrtc();
  for (const NamedCase& named : all_cases()) {
    CAPTURE(named.name);
    const std::string source = kernels_of(named.spec.spec()).source;
    CHECK(source.find("#include") == std::string::npos);
    CHECK(source.find("std::") == std::string::npos);
  }
  for (const char* arch : {"sm_80", "sm_90a", "sm_999"}) {
    const std::vector<std::string> options = nvrtc_options(arch);
    CHECK(std::find(options.begin(), options.end(), "--no-source-include") != options.end());
    for (const std::string& option : options) {
      CAPTURE(option);
      CHECK_FALSE((option.starts_with("-I") || option.starts_with("--include") ||
                   option.starts_with("--pre-include")));
    }
  }
}

// Every value is used twice by the next one: what walks each path of such a graph never ends.
TEST_CASE("a row value of 2^60 paths is planned and printed") {
  LossRegistry registry = LossRegistry::builtin();
  registry.add({.name = "chain",
                .summary = "many squares",
                .formula = "((A^2)^2 ...)^2 logprob^2 ...",
                .inputs = {{.name = "labels"}, {.name = "advantages"}},
                .value = [](LossContext& c) {
                  Expr given = c.advantages(), swept = c.logprob();
                  for (int i = 0; i < 60; ++i) {
                    given = given * given;
                    swept = swept * swept;
                  }
                  return given * swept;
                }});
  const Spec spec = Spec::parse(
      R"({"version": 1, "logits": {"dtype": "bf16", "vocab": 4096}, "losses": {"own": {"type": "chain"}}})",
      registry);
  const Plan plan = plan_spec(spec, registry);
  CHECK(plan.regions.size() == 1);
  CHECK(cuda_source(plan, make_layout(plan, spec), spec, "sm_90a").units.size() >= 2);
}
