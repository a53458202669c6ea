// Specs that are wrong: one clear message with the path, what was found, what is allowed, the nearest known
// name.
#include <string>
#include <vector>

#include "catch.h"
#include "lossc/error.h"
#include "lossc/loss.h"
#include "lossc/spec.h"
#include "spec_text.h"

using lossc::Error;
using lossc::ErrorCode;
using lossc::Spec;
using lossc::test::full_spec;
using lossc::test::spec_with;
using lossc::test::spec_with_child;

namespace {

// The message of the error that the text gives; "" if it is accepted.
std::string message(const std::string& text, ErrorCode code = ErrorCode::invalid_spec) {
  try {
    Spec::parse(text);
  } catch (const Error& error) {
    CHECK(error.code() == code);
    return error.what();
  }
  return "";
}

struct Wrong {
  std::string text, path;
  std::vector<std::string> parts;  // what the message must say besides
};

void check(const std::vector<Wrong>& table) {
  for (const Wrong& wrong : table) {
    INFO(wrong.text);
    const std::string found = message(wrong.text);
    INFO("message: " << found);
    CHECK(found.starts_with(wrong.path + ": "));
    CHECK(found.size() < 2000);
    for (const std::string& part : wrong.parts) {
      INFO("missing: " << part);
      CHECK(found.find(part) != std::string::npos);
    }
  }
}

std::string with_logits(const std::string& logits) {
  return R"({"version": 1, "metrics": ["entropy"], "logits": )" + logits + "}";
}

}  // namespace

TEST_CASE("text that is not JSON") {
  check({
      {"", "$", {"not JSON", "line 1"}},
      {"   \n  ", "$", {"not JSON", "line 2"}},
      {"{", "$", {"not JSON"}},
      {"nonsense", "$", {"not JSON"}},
      {R"({"version": 1} trailing)", "$", {"not JSON"}},
      {R"({"version": 1} {})", "$", {"not JSON"}},
      {R"({"version": 1,})", "$", {"not JSON"}},
      {spec_with(R"("metrics": ["entropy",])"), "metrics[1]", {"not JSON"}},
      {spec_with_child(R"("type": "z_loss",)"), "losses.a", {"not JSON"}},
      {spec_with_child(R"("weight": NaN)"), "losses.a.weight", {"not JSON", "N'"}},
      {spec_with_child(R"("weight": Infinity)"), "losses.a.weight", {"not JSON"}},
      {spec_with_child(R"("weight": 1e999)"), "losses.a.weight", {"1e999"}},
      {spec_with_child(R"("weight": 01)"), "losses.a", {"not JSON"}},
      {spec_with_child(R"("weight": .5)"), "losses.a.weight", {"not JSON"}},
      {spec_with_child(R"('type': "z_loss")"), "losses.a", {"not JSON"}},
      {spec_with(R"(/* comment */ "metrics": ["entropy"])"), "$", {"not JSON"}},
      {"{\"\xff\": 1}", "$", {"UTF-8", "\\xff"}},
      {spec_with_child("\"type\": \"z_loss\xc3\x28\""), "losses.a.type", {"UTF-8"}},
      {spec_with_child("\"type\": \"\xed\xa0\x80\""), "losses.a.type", {"UTF-8"}},  // a lone surrogate
      {spec_with_child("\"type\": \"z\nloss\""), "losses.a.type", {"not JSON"}},
      {std::string("{\"version\": 1}\0 {}", 17), "$", {"NUL"}},
  });
}

TEST_CASE("every unfinished spec is an error") {
  const std::string text(full_spec);
  for (std::size_t length = 0; length < text.size(); ++length) {
    const std::string found = message(text.substr(0, length));
    INFO(length << ": " << found);
    CHECK(found.find("not JSON") != std::string::npos);
  }
}

TEST_CASE("a spec with one byte changed is read or refused, and what is read survives its canonical text") {
  const std::string text(full_spec);
  for (std::size_t i = 0; i < text.size(); i += 3) {
    for (const char byte : {'"', '{', ']', '0', '-', '$', '.', '\x80', '\\', 'n'}) {
      std::string changed = text;
      changed[i] = byte;
      try {
        const std::string canonical = Spec::parse(changed).to_json();
        CHECK(Spec::parse(canonical).to_json() == canonical);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::invalid_spec) FAIL_CHECK(error.what());
      }
    }
  }
}

TEST_CASE("too much input") {
  const std::size_t ten_million = 10'000'000;
  CHECK(message(std::string(ten_million, '[')).find("64 nested") != std::string::npos);
  std::string objects;
  while (objects.size() < ten_million) objects += R"({"a":)";
  CHECK(message(objects).find("64 nested") != std::string::npos);
  CHECK(message(std::string(ten_million, '[') + std::string(ten_million / 2, ']')).starts_with("$"));
  CHECK(message(spec_with("\"x\": " + std::string(62, '[') + std::string(62, ']'))).find("unknown key") !=
        std::string::npos);

  CHECK(message(std::string((16 << 20) + 1, ' ')).find("16 MiB") != std::string::npos);
  CHECK(message(std::string(16 << 20, ' ')).find("not JSON") != std::string::npos);
  std::string flat = "[";
  for (int i = 0; i < 200000; ++i) flat += "{},";
  CHECK(message(flat + "1]").find("100000 values") != std::string::npos);

  // A long text does not become a long message.
  const std::string longest(1'000'000, 'x');
  for (const std::string& text :
       {spec_with("\"" + longest + "\": 1"), spec_with_child("\"type\": \"" + longest + "\""),
        spec_with("\"losses\": {\"" + longest + "\": {}}"),
        spec_with("\"losses\": {\"" + longest + "-\": {}}"), spec_with("\"metrics\": [\"" + longest + "\"]"),
        spec_with_child("\"" + longest + "\": 1, \"type\": \"z_loss\""),
        spec_with("\"params\": {\"" + longest + "\": 1}, \"metrics\": [\"entropy\"]"),
        spec_with("\"params\": {\"" + longest + "\": []}"), "\"" + longest, "{\"" + longest, longest,
        spec_with("\"losses\": {\"" + longest + "\": {\"type\": \"z_loss\"}}, \"metrics\": [\"q\"]")}) {
    const std::string found = message(text);
    CHECK_FALSE(found.empty());
    CHECK(found.size() < 2000);
  }
}

TEST_CASE("keys that stand twice") {
  check({
      {R"({"version": 1, "version": 1})", "version", {"twice"}},
      {spec_with(R"("losses": {"a": {"type": "z_loss"}, "a": {"type": "z_loss"}})"), "losses.a", {"twice"}},
      {spec_with_child(R"("type": "z_loss", "weight": 1, "weight": 2)"), "losses.a.weight", {"twice"}},
      {spec_with_child(R"("type": "z_loss", "weight": 1, "\u0077eight": 2)"), "losses.a.weight", {"twice"}},
      {spec_with_child(R"("weight": null, "weight": 1)"), "losses.a.weight", {"twice"}},
      {spec_with(R"("metrics": [{"name": "entropy"}, {"name": "entropy", "name": "entropy"}])"),
       "metrics[1].name",
       {"twice"}},
  });
}

TEST_CASE("the root") {
  check({
      {"[]", "$", {"found an array", "an object"}},
      {"1", "$", {"found 1", "an object"}},
      {"{}", "version", {"found nothing", "required: 1"}},
      {R"({"version": null})", "version", {"found null"}},
      {R"({"version": 2})", "version", {"found 2", "allowed: 1"}},
      {R"({"version": "1"})", "version", {"found the string \"1\"", "allowed: 1"}},
      {R"({"version": true})", "version", {"found true"}},
      {R"({"version": 1})", "logits", {"found nothing", "required"}},
      {R"({"version": 1, "logits": {"dtype": "bf16", "vocab": 8}})", "$", {"losses, metrics and outputs"}},
      {spec_with(R"("losses": {}, "metrics": [], "outputs": [])"), "$", {"losses, metrics and outputs"}},
      {spec_with(R"("losses": {"a": null})"), "$", {"losses, metrics and outputs"}},
      {spec_with(R"("lossse": {})"),
       "lossse",
       {"unknown key \"lossse\"", "did you mean \"losses\"?", "gradient"}},
      {spec_with(R"("GRADIENT": {})"), "GRADIENT", {"did you mean \"gradient\"?"}},
      {spec_with(R"("a b": {})"), "$[\"a b\"]", {"unknown key \"a b\""}},
      {spec_with(R"("": {})"), "$[\"\"]", {"unknown key \"\""}},
      {spec_with(R"("losses": [])"), "losses", {"found an array", "an object"}},
      {spec_with(R"("losses": "ce")"), "losses", {"found the string \"ce\""}},
  });
}

TEST_CASE("logits") {
  check({
      {with_logits("[]"), "logits", {"found an array"}},
      {with_logits("{}"), "logits.dtype", {"found nothing", "\"fp32\", \"bf16\", \"fp16\""}},
      {with_logits(R"({"dtype": "bf16"})"), "logits.vocab", {"found nothing", "from 1 to 2147483647"}},
      {with_logits(R"({"dtype": "bf61", "vocab": 8})"),
       "logits.dtype",
       {"\"bf61\"", "did you mean \"bf16\"?"}},
      {with_logits(R"({"dtype": "fp64", "vocab": 8})"), "logits.dtype", {"\"fp64\""}},
      {with_logits(R"({"dtype": 16, "vocab": 8})"), "logits.dtype", {"found 16"}},
      {with_logits(R"({"dtype": "bf16", "vocab": 0})"), "logits.vocab", {"found 0", "from 1 to 2147483647"}},
      {with_logits(R"({"dtype": "bf16", "vocab": -1})"), "logits.vocab", {"found -1"}},
      {with_logits(R"({"dtype": "bf16", "vocab": 8.5})"), "logits.vocab", {"found 8.5", "an integer"}},
      {with_logits(R"({"dtype": "bf16", "vocab": 2147483648})"), "logits.vocab", {"found 2147483648"}},
      {with_logits(R"({"dtype": "bf16", "vocab": 99999999999999999999})"), "logits.vocab", {"an integer"}},
      {with_logits(R"({"dtype": "bf16", "vocab": "8"})"), "logits.vocab", {"found the string \"8\""}},
      {with_logits(R"({"dtype": "bf16", "vocab": true})"), "logits.vocab", {"found true"}},
      {with_logits(R"({"dtype": "bf16", "vocab": 8, "scale": 0})"), "logits.scale", {"found 0", "> 0"}},
      {with_logits(R"({"dtype": "bf16", "vocab": 8, "softcap": -30})"),
       "logits.softcap",
       {"found -30", "> 0"}},
      {with_logits(R"({"dtype": "bf16", "vocab": 8, "temperature": 1e39})"), "logits.temperature", {"fp32"}},
      {with_logits(R"({"dtype": "bf16", "vocab": 8, "temperature": 1e-60})"), "logits.temperature", {"fp32"}},
      {with_logits(R"({"dtype": "bf16", "vocab": 8, "order": "cap"})"), "logits.order", {"\"cap_first\""}},
      {with_logits(R"({"dtype": "bf16", "vocab": 8, "soft_cap": 30})"),
       "logits.soft_cap",
       {"did you mean \"softcap\"?"}},
  });
}

TEST_CASE("children") {
  check({
      {spec_with(R"("losses": {"a": []})"), "losses.a", {"found an array", "an object"}},
      {spec_with(R"("losses": {"a": "z_loss"})"), "losses.a", {"found the string \"z_loss\""}},
      {spec_with_child(""), "losses.a.type", {"found nothing", "\"cross_entropy\"", "\"z_loss\""}},
      {spec_with_child(R"("type": null)"), "losses.a.type", {"found null"}},
      {spec_with_child(R"("type": 3)"), "losses.a.type", {"found 3"}},
      {spec_with_child(R"("type": "zloss")"),
       "losses.a.type",
       {"\"zloss\"", "did you mean \"z_loss\"?", "\"cross_entropy\""}},
      {spec_with_child(R"("type": "corss_entropy")"), "losses.a.type", {"did you mean \"cross_entropy\"?"}},
      {spec_with_child(R"("type": "gspo", "epsilonlow": 1)"),
       "losses.a.epsilonlow",
       {"did you mean \"epsilon_low\"?", "epsilon_high", "weight"}},
      {spec_with_child(R"("type": "z_loss", "epsilon_low": 1)"), "losses.a.epsilon_low", {"unknown key"}},
      {spec_with_child(R"("type": "z_loss", "weight": -1)"), "losses.a.weight", {"found -1", ">= 0"}},
      {spec_with_child(R"("type": "z_loss", "weight": "1")"),
       "losses.a.weight",
       {"found the string \"1\"", "$NAME"}},
      {spec_with_child(R"("type": "z_loss", "weight": [1])"), "losses.a.weight", {"found an array"}},
      {spec_with_child(R"("type": "z_loss", "weight": true)"), "losses.a.weight", {"found true"}},
      {spec_with_child(R"("type": "z_loss", "weight": 1e39)"), "losses.a.weight", {"fp32"}},
      {spec_with_child(R"("type": "z_loss", "temperature": 0)"), "losses.a.temperature", {"> 0"}},
      {spec_with_child(R"("type": "gspo", "epsilon_low": -0.1)"),
       "losses.a.epsilon_low",
       {"found -0.1", ">= 0"}},
      {spec_with_child(R"("type": "cross_entropy", "label_smoothing": 1)"),
       "losses.a.label_smoothing",
       {"< 1"}},
      {spec_with_child(R"("type": "dpo", "beta": 0)"), "losses.a.beta", {"> 0"}},
      {spec_with_child(R"("type": "entropy", "direction": "maximise")"),
       "losses.a.direction",
       {"did you mean \"maximize\"?", "\"minimize\""}},
      {spec_with_child(R"("type": "distillation", "temperature_squared": 1)"),
       "losses.a.temperature_squared",
       {"found 1", "true, false"}},
      {spec_with_child(R"("type": "z_loss", "count_empty": "yes")"), "losses.a.count_empty", {"true, false"}},
      {spec_with(R"("losses": {"z loss": {"type": "z_loss"}})"),
       "losses[\"z loss\"]",
       {"letters, digits and _"}},
      {spec_with(R"("losses": {"1z": {"type": "z_loss"}})"), "losses[\"1z\"]", {"not starting with a digit"}},
      {spec_with(R"("losses": {"": {"type": "z_loss"}})"), "losses[\"\"]", {"letters, digits and _"}},
      {spec_with(R"("losses": {"logits": {"type": "z_loss"}})"), "losses.logits", {"\"logits\", \"params\""}},
      {spec_with(R"("losses": {"params": {"type": "z_loss"}})"), "losses.params", {"\"logits\", \"params\""}},
  });
}

TEST_CASE("reductions and divisors") {
  check({
      {spec_with_child(R"("type": "z_loss", "reduction": "mean")"), "losses.a.reduction", {"\"token_mean\""}},
      {spec_with_child(R"("type": "z_loss", "reduction": "token-mean")"),
       "losses.a.reduction",
       {"did you mean \"token_mean\"?"}},
      {spec_with_child(R"("type": "z_loss", "reduction": "pair_mean")"),
       "losses.a.reduction",
       {"\"token_mean\""}},
      {spec_with_child(R"("type": "gspo", "reduction": "none")"),
       "losses.a.reduction",
       {"\"sequence_mean\""}},
      {spec_with_child(R"("type": "dpo", "reduction": "token_mean")"),
       "losses.a.reduction",
       {"\"pair_mean\""}},
      {spec_with_child(R"("type": "z_loss", "divisor": 4)"),
       "losses.a.divisor",
       {"\"token_mean\"", "\"divisor\""}},
      {spec_with_child(R"("type": "z_loss", "reduction": "divisor")"),
       "losses.a.divisor",
       {"found nothing", "> 0"}},
      {spec_with_child(R"("type": "z_loss", "reduction": "divisor", "divisor": 0)"),
       "losses.a.divisor",
       {"> 0"}},
      {spec_with_child(R"("type": "z_loss", "reduction": "divisor", "divisor": -4)"),
       "losses.a.divisor",
       {"> 0"}},
  });
}

TEST_CASE("inputs and tensors") {
  const std::string distill = R"("losses": {"a": {"type": "distillation"}}, )";
  check({
      {spec_with_child(R"("type": "z_loss", "inputs": [])"), "losses.a.inputs", {"found an array"}},
      {spec_with_child(R"("type": "distillation", "inputs": {"teacher": "b"})"),
       "losses.a.inputs.teacher",
       {"teacher_logits", "unknown key"}},
      {spec_with_child(R"("type": "distillation", "inputs": {"teacher_logits": null})"),
       "losses.a.inputs.teacher_logits",
       {"found null", "needs"}},
      {spec_with_child(R"("type": "cross_entropy", "inputs": {"labels": null})"),
       "losses.a.inputs.labels",
       {"found null", "cross_entropy needs"}},
      {spec_with_child(R"("type": "distillation", "inputs": {"teacher_logits": 3})"),
       "losses.a.inputs.teacher_logits",
       {"found 3"}},
      {spec_with_child(R"("type": "distillation", "inputs": {"teacher_logits": "a b"})"),
       "losses.a.inputs.teacher_logits",
       {"\"a b\""}},
      {spec_with_child(R"("type": "distillation", "inputs": {"teacher_logits": "logits"})"),
       "losses.a.inputs.teacher_logits",
       {"\"logits\"", "grad_logits"}},
      {spec_with_child(R"("type": "distillation", "inputs": {"teacher_logits": "labels"})"),
       "losses.a.inputs.teacher_logits",
       {"\"labels\"", "kind element"}},
      {spec_with_child(R"("type": "z_loss", "inputs": {"cu_seqlens": "cu_b"})"),
       "losses.a.inputs.cu_seqlens",
       {"found \"cu_seqlens\"", "label_counts, labels, mask", "one set of segments and pairs"}},
      {spec_with_child(R"("type": "gspo", "inputs": {"segment_ids": "ids_b"})"),
       "losses.a.inputs.segment_ids",
       {"one set of segments and pairs"}},
      {spec_with_child(R"("type": "gspo", "inputs": {"num_segments": null})"),
       "losses.a.inputs.num_segments",
       {"one set of segments and pairs"}},
      {spec_with_child(R"("type": "dpo", "inputs": {"pairs": "pairs_b"})"),
       "losses.a.inputs.pairs",
       {"one set of segments and pairs", "ref_logprobs"}},
      {spec_with_child(R"("type": "z_loss", "inputs": {"labels": "ignore_index"})"),
       "losses.a.inputs.labels",
       {"\"ignore_index\"", "none of"}},
      {spec_with_child(R"("type": "z_loss", "inputs": {"labels": "pairs"})"),
       "losses.a.inputs.labels",
       {"\"pairs\"", "none of"}},
      {spec_with_child(R"("type": "z_loss", "inputs": {"mask": "cu_seqlens"})"),
       "losses.a.inputs.mask",
       {"\"cu_seqlens\"", "none of"}},
      {spec_with(R"("losses": {"a": {"type": "distillation", "inputs": {"teacher_logits": "x"}},
                              "b": {"type": "grpo", "inputs": {"advantages": "x"}}})"),
       "losses.b.inputs.advantages",
       {"\"x\"", "losses.a.inputs.teacher_logits"}},
      {spec_with(distill + R"("tensors": {"teacher_logit": {"dtype": "bf16"}})"),
       "tensors.teacher_logit",
       {"no child uses", "did you mean \"teacher_logits\"?"}},
      {spec_with(distill + R"("tensors": {"logits": {"dtype": "bf16"}})"),
       "tensors.logits",
       {"logits.dtype"}},
      {spec_with(distill + R"("tensors": {"teacher_logits": "bf16"})"),
       "tensors.teacher_logits",
       {"an object"}},
      {spec_with(distill + R"("tensors": {"teacher_logits": {"dtype": "i32"}})"),
       "tensors.teacher_logits.dtype",
       {"\"i32\"", "\"fp16\""}},
      {spec_with(distill + R"("tensors": {"teacher_logits": {"type": "bf16"}})"),
       "tensors.teacher_logits.type",
       {"did you mean \"dtype\"?"}},
      {spec_with(distill + R"("tensors": {"labels": {"dtype": "fp32"}})"),
       "tensors.labels.dtype",
       {"logits' shape"}},
      {spec_with(distill + R"("tensors": {"teacher_logits": {"space": "rows"}})"),
       "tensors.teacher_logits.space",
       {"advantages"}},
      {spec_with(R"("losses": {"a": {"type": "gspo"}}, "tensors": {"advantages": {"space": "pairs"}})"),
       "tensors.advantages.space",
       {"\"rows\", \"segments\""}},
      {spec_with(R"("metrics": ["entropy"], "tensors": {"teacher_logits": {"dtype": "bf16"}})"),
       "tensors.teacher_logits",
       {"none, as the spec has no losses"}},
  });
}

TEST_CASE("params") {
  const std::string child = R"("losses": {"a": {"type": "cross_entropy", "temperature": "$tau"}}, )";
  check({
      {spec_with(child + R"("params": {"tua": 1})"),
       "losses.a.temperature",
       {"\"$tau\"", "did you mean \"$tua\"?"}},
      {spec_with(child + R"("params": {})"), "losses.a.temperature", {"params names nothing"}},
      {spec_with(child + R"("params": {"tau": 0})"), "losses.a.temperature", {"params.tau is 0", "> 0"}},
      {spec_with(child + R"("params": {"tau": "1"})"), "params.tau", {"found the string \"1\""}},
      {spec_with(child + R"("params": {"tau": 1, "beta": 2})"), "params.beta", {"nothing uses"}},
      {spec_with(child + R"("params": {"tau": 1, "a-b": 2})"), "params[\"a-b\"]", {"letters, digits and _"}},
      {spec_with(child + R"("params": [])"), "params", {"found an array"}},
      {spec_with_child(R"("type": "z_loss", "weight": "$")"), "losses.a.weight", {"\"$\""}},
      {spec_with(R"("params": {"x": 0.5}, "losses": {"a": {"type": "cross_entropy", "label_smoothing": "$x",
                                                          "temperature": "$x"}})"),
       "losses.a.label_smoothing",
       {"losses.a.temperature", "two params"}},
  });
}

TEST_CASE("metrics") {
  const std::string policy = R"("losses": {"policy": {"type": "gspo"}, "z": {"type": "z_loss"}}, )";
  check({
      {spec_with(R"("metrics": "entropy")"), "metrics", {"found the string", "an array"}},
      {spec_with(R"("metrics": [3])"), "metrics[0]", {"found 3"}},
      {spec_with(R"("metrics": ["entropy", null])"), "metrics[1]", {"found null"}},
      {spec_with(R"("metrics": ["entorpy"])"), "metrics[0]", {"did you mean \"entropy\"?", "token_accuracy"}},
      {spec_with(policy + R"("metrics": ["clip_fraction"])"),
       "metrics[0]",
       {"did you mean \"policy.clip_fraction\"?"}},
      {spec_with(policy + R"("metrics": ["policy.clipfraction.sum"])"),
       "metrics[0]",
       {"did you mean \"policy.clip_fraction.sum\"?", "kl_k3"}},
      {spec_with(policy + R"("metrics": ["z.ratio"])"),
       "metrics[0]",
       {"type z_loss: entropy, token_accuracy"}},
      {spec_with(policy + R"("metrics": ["polcy.ratio"])"), "metrics[0]", {"did you mean \"policy.ratio\"?"}},
      {spec_with(policy + R"("metrics": ["policy"])"), "metrics[0]", {"policy, z"}},
      {spec_with(policy + R"("metrics": ["policy.ratio.mean"])"), "metrics[0]", {"ratio"}},
      {spec_with(policy + R"("metrics": ["policy.ratio.sum.sum"])"), "metrics[0]", {"policy.ratio.sum.sum"}},
      {spec_with(policy + R"("metrics": ["policy.ratio_sum.sum"])"), "metrics[0]", {"without .sum"}},
      {spec_with(policy + R"("metrics": ["policy.advantage_min.count"])"), "metrics[0]", {"without .count"}},
      {spec_with(policy + R"("metrics": ["entropy", "entropy"])"), "metrics[1]", {"metrics[0] names too"}},
      {spec_with(policy + R"("metrics": ["entropy", {"name": "entropy", "weighting": "document"}])"),
       "metrics[1]",
       {"metrics[0] names too"}},
      {spec_with(policy + R"("metrics": [{}])"), "metrics[0].name", {"found nothing"}},
      {spec_with(policy + R"("metrics": [{"name": "entorpy"}])"), "metrics[0].name", {"\"entropy\""}},
      {spec_with(policy + R"("metrics": [{"name": "entropy", "weight": "document"}])"),
       "metrics[0].weight",
       {"did you mean \"weighting\"?"}},
      {spec_with(policy + R"("metrics": [{"name": "entropy", "weighting": "documents"}])"),
       "metrics[0].weighting",
       {"did you mean \"document\"?"}},
      {spec_with(policy + R"("metrics": [{"name": "policy.advantage_max", "weighting": "document"}])"),
       "metrics[0].name",
       {"means"}},
      {spec_with(policy + R"("metrics": [{"name": "policy.tokens", "weighting": "document"}])"),
       "metrics[0].name",
       {"\"policy.tokens\"", "it is no mean"}},
      {spec_with(policy + R"("metrics": [{"name": "policy.segments", "weighting": "document"}])"),
       "metrics[0].name",
       {"it is no mean"}},
      {spec_with(policy + R"("metrics": ["policy.tokens.count"])"), "metrics[0]", {"without .count"}},
      {spec_with(R"("losses": {"d": {"type": "dpo"}},
                   "metrics": ["entropy", {"name": "d.reward_margin.sum", "weighting": "document"}])"),
       "metrics[1].name",
       {"\"d.reward_margin.sum\"", "a mean over pairs"}},
      {spec_with(R"("losses": {"z": {"type": "z_loss", "inputs": {"labels": null}}},
                   "metrics": ["z.entropy", "z.token_accuracy.sum"])"),
       "metrics[1]",
       {"\"z.token_accuracy.sum\"", "losses.z.inputs.labels is null"}},
  });
  CHECK(message(spec_with(R"("losses": {"d": {"type": "dpo"}},
      "metrics": [{"name": "d.entropy", "weighting": "document"}, "d.reward_margin.sum"])"))
            .empty());
}

TEST_CASE("outputs, gradient and groups") {
  const std::string z = R"("losses": {"z": {"type": "z_loss"}}, )";
  check({
      {spec_with(R"("outputs": {})"), "outputs", {"found an object", "an array"}},
      {spec_with(R"("outputs": [1])"), "outputs[0]", {"found 1"}},
      {spec_with(z + R"("outputs": ["logprob"])"),
       "outputs[0]",
       {"did you mean \"logprobs\"?", "\"z.loss\""}},
      {spec_with(z + R"("outputs": ["ce.loss"])"), "outputs[0]", {"\"z.loss\""}},
      {spec_with(
           R"("losses": {"z": {"type": "z_loss"}, "d": {"type": "dpo"}}, "outputs": ["lse", "d.loss"])"),
       "outputs[1]",
       {"\"d.loss\"", "z.loss", "one of pairs"}},
      {spec_with(z + R"("outputs": ["lse", "z.loss", "lse"])"), "outputs[2]", {"second time"}},
      {spec_with(z + R"("gradient": "none")"), "gradient", {"found the string", "an object"}},
      {spec_with(z + R"("gradient": {"mode": "inplace"})"), "gradient.mode", {"did you mean \"in_place\"?"}},
      {spec_with(z + R"("gradient": {"mode": "in_place", "dtype": "fp32"})"),
       "gradient.dtype",
       {"found the string \"fp32\"", "\"bf16\""}},
      {spec_with(z + R"("gradient": {"dtype": "fp8"})"), "gradient.dtype", {"\"fp32\""}},
      {spec_with(z + R"("gradient": {"form": "sparse"})"), "gradient.form", {"\"dense\""}},
      {spec_with(z + R"("gradient": {"mod": "none"})"), "gradient.mod", {"did you mean \"mode\"?"}},
      {spec_with(z + R"("parallel": {"model": "tp"})"), "parallel.model", {"vocab"}},
      {spec_with(z + R"("parallel": {"vocab": 2})"), "parallel.vocab", {"found 2"}},
      {spec_with(z + R"("parallel": {"vocab": ""})"), "parallel.vocab", {"letters, digits and _"}},
  });
  const std::string factored =
      message(spec_with(z + R"("gradient": {"form": "factored"})"), ErrorCode::unsupported);
  CHECK(factored.starts_with("gradient.form: "));
}

TEST_CASE("files") {
  const auto file_message = [](const std::string& path) -> std::string {
    try {
      Spec::parse_file(path);
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::io);
      return error.what();
    }
    return "";
  };
  CHECK(file_message("no/such/spec.json").find("no/such/spec.json") != std::string::npos);
  CHECK(file_message(".").find("folder") != std::string::npos);
  CHECK_THROWS_AS(Spec::parse_file("/dev/zero"), Error);
}
