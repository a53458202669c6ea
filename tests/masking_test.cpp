// What contributes nothing, and what must not spread: rows that do not count, -inf logits, NaN. V1 ... V3 are
// lines of the list of cases that must work; numerics_test.cpp has the rest.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "tests/cases.h"
#include "tests/catch.h"
#include "tests/verify.h"

namespace lossc::test {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan_value = std::numeric_limits<double>::quiet_NaN();

std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

Child entropy(std::string name = "h") {
  return {.name = std::move(name), .type = "entropy", .weight = 0.1};
}

TEST_CASE("V1: nothing counts") {
  LossCase spec = losses(
      {cross_entropy(), z_loss(), entropy(), gspo(), grpo("token"), dpo(), distillation("reverse_kl")});
  spec.metrics = {"entropy",           "token_accuracy",       "policy.ratio",         "policy.kl_k3",
                  "policy.tokens",     "policy.advantage_min", "policy.advantage_max", "policy.segments",
                  "pref.reward_margin"};
  spec.outputs = {"logprobs", "entropy", "ce.loss", "policy.loss"};
  BatchOptions options;
  std::mt19937_64 random(1);
  SECTION("every label ignored") {
    options.ignored_fraction = 1;
  }
  SECTION("every row masked") {
    options.masked_fraction = 1;
  }
  SECTION("every row in no segment, the rest masked") {
    options.segment_form = BatchOptions::Segments::ids;
    options.outside_fraction = 1;
  }
  SECTION("zero rows") {
    options.rows = 0;
  }
  SECTION("zero rows, zero segments") {
    options.rows = 0;
    options.segments = 0;
    options.segment_form = BatchOptions::Segments::ids;
  }
  const Batch batch = random_batch(spec, options, random);
  CHECK(verify_everywhere(spec, batch) == "");
  for (const char* mode : {"accumulate", "in_place", "none"}) {
    LossCase other = spec;
    other.gradient_mode = mode;
    std::mt19937_64 again(1);
    CHECK(verify_everywhere(other, random_batch(other, options, again)) == "");
  }
}

TEST_CASE("V1: zero rows without any memory") {
  Execution execution(compile(losses({cross_entropy(), z_loss()})));
  execution.bind("logits", {nullptr, DType::fp32, {0, 7}, {}});
  execution.bind("labels", {nullptr, DType::i64, {0}, {}});
  execution.bind("grad_logits", {nullptr, DType::fp32, {0, 7}, {}});
  execution.run();
  CHECK(execution.value("loss") == 0);
  CHECK(execution.value("loss.ce") == 0);
}

TEST_CASE("V1: no pairs") {
  const LossCase spec = losses({dpo(), cross_entropy()});
  std::mt19937_64 random(2);
  Batch batch = random_batch(spec, {}, random);
  batch.pairs.clear();
  CHECK(verify_everywhere(spec, batch) == "");
}

TEST_CASE("V2: most logits are -inf") {
  std::uint64_t seed = 20;
  BatchOptions options;
  options.minus_inf_fraction = 0.9;
  for (std::int64_t vocab : {7, 100, 2049}) {
    for (const TransformKeys& keys :
         {TransformKeys{}, TransformKeys{.scale = 2}, TransformKeys{.softcap = 3},
          TransformKeys{.scale = 0.5, .softcap = 8, .temperature = 3, .cap_first = true}}) {
      LossCase spec =
          losses({cross_entropy(), z_loss(), entropy(), grpo(), distillation("reverse_kl")}, vocab);
      spec.logits = keys;
      spec.metrics = {"entropy", "token_accuracy", "policy.kl_k3"};
      spec.outputs = {"logprobs", "entropy", "lse"};
      CHECK(verify_random(spec, options, ++seed) == "");

      std::mt19937_64 random(seed);
      const Batch batch = decided_batch(spec, options, random);
      Run run(spec, batch);
      for (std::int64_t i = 0; i < batch.rows * vocab; ++i) {
        if (batch.logits[at(i)] == -infinity) REQUIRE(run.memory.gradient().get(i) == 0);
      }
    }
  }
}

TEST_CASE("V2: student and teacher are -inf at the same places") {
  std::uint64_t seed = 40;
  BatchOptions options;
  options.minus_inf_fraction = 0.5;
  options.teacher_minus_inf = true;
  for (const char* divergence : {"cross_entropy", "forward_kl", "reverse_kl"}) {
    for (DType dtype : {DType::fp32, DType::bf16}) {
      LossCase spec = losses({distillation(divergence)}, 333);
      spec.logits_dtype = dtype;
      CHECK(verify_random(spec, options, ++seed) == "");
    }
  }
}

TEST_CASE("V2: a teacher's -inf is a probability of 0") {
  std::mt19937_64 random(45);
  for (const char* divergence : {"cross_entropy", "forward_kl"}) {
    const LossCase spec = losses({distillation(divergence)}, 9);
    Batch batch = random_batch(spec, {}, random);
    for (std::int64_t r = 0; r < batch.rows; ++r)
      batch.elements["teacher_logits"][at(r * 9 + r % 9)] = -infinity;
    CHECK(verify_everywhere(spec, batch) == "");
  }
}

TEST_CASE("V2: label smoothing set to 0 over -inf logits") {
  LossCase spec = losses({cross_entropy()}, 40);
  spec.children[0].numbers["label_smoothing"] = 0;
  BatchOptions options;
  options.minus_inf_fraction = 0.6;
  CHECK(verify_random(spec, options, 46) == "");
}

TEST_CASE("a label at -inf gives an infinite loss and the gradient p - onehot") {
  for (std::int64_t vocab : {5, 700}) {
    LossCase spec = losses({cross_entropy()}, vocab);
    spec.outputs = {"logprobs", "ce.loss"};
    std::mt19937_64 random(47);
    BatchOptions options;
    options.masked_fraction = options.ignored_fraction = 0;
    Batch batch = random_batch(spec, options, random);
    batch.logits_row(2)[batch.labels["labels"][2]] = -infinity;
    CHECK(verify_everywhere(spec, batch) == "");
    Run run(spec, batch);
    CHECK(run.execution.value("loss") == std::numeric_limits<float>::infinity());
  }
}

TEST_CASE("V3: a NaN row stays where the mathematics keeps it") {
  BatchOptions options;
  options.rows = 14;
  options.segments = 4;
  options.masked_fraction = options.ignored_fraction = options.outside_fraction = 0;
  options.segment_form = BatchOptions::Segments::ids;
  std::uint64_t seed = 50;
  for (std::int64_t vocab : {6, 1300}) {
    for (int kind = 0; kind < 3; ++kind) {
      for (int family = 0; family < 5; ++family) {
        LossCase spec = family == 0   ? losses({cross_entropy(), z_loss(), entropy()}, vocab)
                        : family == 1 ? losses({gspo(), cross_entropy()}, vocab)
                        : family == 2 ? losses({dpo(), z_loss()}, vocab)
                        : family == 3 ? losses({grpo(), distillation("reverse_kl")}, vocab)
                                      : losses({distillation("forward_kl")}, vocab);
        spec.outputs = {"logprobs"};
        INFO("vocab " << vocab << ", kind " << kind << ", family " << family);
        std::mt19937_64 random(++seed);
        Batch batch = decided_batch(spec, options, random);
        for (std::int64_t row : {3, 8}) {
          double* z = batch.logits_row(row);
          if (kind == 0) z[vocab / 2] = nan_value;
          if (kind == 1) z[vocab - 1] = infinity;
          if (kind == 2) std::fill_n(z, vocab, -infinity);
          // A * ratio is 0 where the advantage is, whatever the ratio: these rows shall have one.
          if (batch.row_values.count("advantages") != 0) batch.row_values["advantages"][at(row)] = 1;
        }
        CHECK(verify_everywhere(spec, batch) == "");
      }
    }
  }
}

TEST_CASE("V3: NaN in a teacher or in a row tensor") {
  BatchOptions options;
  options.masked_fraction = options.ignored_fraction = 0;
  LossCase spec = losses({distillation("reverse_kl"), cross_entropy()}, 12);
  std::mt19937_64 random(60);
  Batch batch = random_batch(spec, options, random);
  batch.elements["teacher_logits"][12 * 4 + 7] = nan_value;
  CHECK(verify_everywhere(spec, batch) == "");

  spec = losses({gspo(), cross_entropy()}, 12);
  options.segment_form = BatchOptions::Segments::ids;
  options.rows = 12;
  batch = decided_batch(spec, options, random);
  batch.segment_ids[5] = 1;
  batch.row_values["old_logprobs"][5] = nan_value;
  batch.row_values["advantages"][5] = 2;
  CHECK(verify_everywhere(spec, batch) == "");
}

/// Five rows over a vocabulary of 4, bound by hand to a spec of the given members.
struct FiveRows {
  std::vector<float> logits, gradient, old_logprobs, advantages;
  std::vector<std::int64_t> labels = {0, 1, 2, 3, 0}, ids;
  std::int64_t segments = 0;
  Execution execution;

  FiveRows(const std::string& members, const std::string& device)
      : gradient(20, 0.0F), execution(program(members, device)) {
    for (int i = 0; i < 20; ++i) logits.push_back(static_cast<float>(std::sin(1.7 * i)));
    old_logprobs = {-1.5F, -1.25F, -1, -2, -1.75F};
    advantages = {1, -1, 2, -0.5F, 0.25F};
    execution.bind("logits", tensor(logits, {5, 4}));
    execution.bind("labels", tensor(labels));
    execution.bind("old_logprobs", tensor(old_logprobs));
    execution.bind("ref_logprobs", tensor(old_logprobs));
    execution.bind("advantages", tensor(advantages));
  }

  static Program program(const std::string& members, const std::string& device) {
    const std::string head = R"({"version": 1, "logits": {"dtype": "fp32", "vocab": 4}, )";
    return Program::compile(Spec::parse(head + members + "}"), {.device = device});
  }
  void bind_gradient() { execution.bind("grad_logits", tensor(gradient, {5, 4})); }
  void bind_ids(std::vector<std::int64_t> values, std::int64_t number) {
    ids = std::move(values);
    segments = number;
    execution.bind("segment_ids", tensor(ids));
    execution.bind("num_segments", tensor(&segments, {}));
  }
  /// The code of what run() throws; nullopt when it throws nothing.
  std::optional<ErrorCode> run(std::string* message = nullptr) {
    try {
      execution.run();
    } catch (const Error& error) {
      if (message != nullptr) *message = error.what();
      return error.code();
    }
    return std::nullopt;
  }
};

const std::string no_gradient = R"(, "gradient": {"mode": "none"})";

TEST_CASE("advantages of no segment in a batch without segments are refused") {
  for (const std::string& device : devices()) {
    INFO(device);
    FiveRows batch(R"("losses": {"p": {"type": "grpo"}})" + no_gradient, device);
    float none = 0;
    batch.execution.bind("advantages", tensor(&none, {0}));
    std::string message;
    CHECK(batch.run(&message) == ErrorCode::invalid_argument);
    CHECK(message.find("\"advantages\"") != message.npos);
    CHECK(message.find("5 numbers are expected") != message.npos);

    // The segments of an earlier batch are none of this one.
    batch.bind_ids({0, 0, 1, 1, 1}, 2);
    batch.execution.bind("advantages", tensor(batch.advantages.data(), {2}));
    CHECK_FALSE(batch.run().has_value());
    batch.execution.unbind("segment_ids");
    batch.execution.unbind("num_segments");
    for (const std::int64_t count : {0, 2}) {
      batch.execution.bind("advantages", tensor(batch.advantages.data(), {count}));
      CHECK(batch.run(&message) == ErrorCode::invalid_argument);
      CHECK(message.find("5 numbers are expected") != message.npos);
    }
    batch.execution.bind("advantages", tensor(batch.advantages));
    CHECK_FALSE(batch.run().has_value());
    CHECK(std::isfinite(batch.execution.value("loss")));
  }
}

TEST_CASE("as many advantages as rows are one a row, unless the spec says segments") {
  const std::string child = R"("losses": {"p": {"type": "grpo"}})" + no_gradient;
  const std::string per_segment = child + R"(, "tensors": {"advantages": {"space": "segments"}})";
  for (const std::string& device : devices()) {
    // Every row stands in another segment than its own number.
    const std::vector<std::int64_t> ids = {4, 3, 2, 1, 0};
    FiveRows by_row(child, device), by_segment(per_segment, device), reversed(child, device);
    by_row.bind_ids(ids, 5);
    by_segment.bind_ids(ids, 5);
    std::reverse(reversed.advantages.begin(), reversed.advantages.end());
    for (FiveRows* batch : {&by_row, &by_segment, &reversed}) REQUIRE_FALSE(batch->run().has_value());
    CHECK(by_segment.execution.value("loss") == reversed.execution.value("loss"));
    CHECK(by_row.execution.value("loss") != reversed.execution.value("loss"));
  }
}

TEST_CASE("a bad segment id makes every result of its children NaN, and of children of rows beside them") {
  struct Case {
    std::string members;
    std::int64_t advantages = 5;
  };
  const std::string policy_metrics =
      R"(, "metrics": ["p.ratio", "p.ratio_sum", "p.clip_fraction", "p.tokens", "p.segments", "p.advantage_min",
          "p.token_accuracy", {"name": "p.kl_k3", "weighting": "document"}])";
  const std::string grpo = R"("losses": {"p": {"type": "grpo"}, "c": {"type": "cross_entropy"}})";
  const std::vector<Case> cases = {
      {R"("losses": {"c": {"type": "cross_entropy", "reduction": "sequence_mean"}},
          "metrics": [{"name": "c.entropy", "weighting": "document"}])"},
      {R"("losses": {"c": {"type": "cross_entropy", "reduction": "sequence_sum_mean"}})"},
      {R"("losses": {"c": {"type": "cross_entropy"}}, "metrics": [{"name": "entropy", "weighting": "document"},
          {"name": "c.entropy", "weighting": "document"}])"},
      {R"("losses": {"p": {"type": "gspo"}, "c": {"type": "cross_entropy"}})" + policy_metrics},
      {R"("losses": {"p": {"type": "gspo", "reduction": "sequence_mean"}})" + policy_metrics},
      {R"("losses": {"d": {"type": "dpo"}}, "metrics": ["d.reward_margin", "d.reward_accuracy", "d.entropy"])"},
      {grpo + policy_metrics},
      {grpo, 2},  // one a segment
  };
  for (const Case& c : cases) {
    for (const std::string& device : devices()) {
      INFO(device << ": " << c.members);
      FiveRows batch(c.members, device);
      batch.bind_gradient();
      batch.execution.bind("advantages", tensor(batch.advantages.data(), {c.advantages}));
      std::vector<std::int32_t> pairs = {0, 1};
      batch.execution.bind("pairs", tensor(pairs, {1, 2}));
      const Program program = FiveRows::program(c.members, device);
      for (const bool bad : {false, true}) {
        batch.bind_ids({0, 0, bad ? 7 : 1, 1, 1}, 2);
        std::string message;
        CHECK(batch.run(&message).has_value() == bad);
        CHECK(batch.execution.status().bad_rows == (bad ? 1 : 0));
        if (bad) CHECK(message.find("the first is row 2") != message.npos);
        for (const TensorInfo& output : program.outputs()) {
          if (output.space != "scalar") continue;
          INFO(output.name);
          CHECK(std::isnan(batch.execution.value(output.name)) == bad);
        }
        for (std::size_t k = 0; k < 4; ++k) CHECK(std::isnan(batch.gradient[8 + k]) == bad);
      }
    }
  }
}

TEST_CASE("segment ids are not read where nothing depends on segments") {
  for (const std::string& device : devices()) {
    FiveRows batch(R"("losses": {"c": {"type": "cross_entropy"}})" + no_gradient, device);
    batch.bind_ids({0, 0, 7, 0, 0}, 1);
    CHECK_FALSE(batch.run().has_value());
    CHECK(batch.execution.status().bad_rows == 0);
    CHECK(std::isfinite(batch.execution.value("loss")));
  }
}

TEST_CASE("a number of segments that only a mistake can be is refused by name") {
  for (const std::string& device : devices()) {
    FiveRows batch(R"("losses": {"p": {"type": "gspo"}})" + no_gradient, device);
    for (const std::int64_t wrong : {std::int64_t{-1}, std::int64_t{2147483647}, std::int64_t{1} << 40}) {
      batch.bind_ids({0, 0, 1, 1, 1}, wrong);
      std::string message;
      CHECK(batch.run(&message) == ErrorCode::invalid_argument);
      CHECK(message.find("num_segments is " + std::to_string(wrong)) != message.npos);
    }
    batch.bind_ids({0, 0, 1, 1, 1}, 1000);  // segments without a row
    CHECK_FALSE(batch.run().has_value());
  }
}

TEST_CASE("label_counts of another name, and opting out of them") {
  const auto members = [](const std::string& inputs) {
    return R"("losses": {"c": {"type": "cross_entropy", "reduction": "sequence_mean", "inputs": {)" + inputs +
           "}}}" + no_gradient;
  };
  std::vector<float> ten(5, 10.0F);
  for (const std::string& device : devices()) {
    const auto loss = [&](const std::string& inputs, const std::string& tensor_name) {
      FiveRows batch(members(inputs), device);
      batch.bind_ids({0, 0, 1, 1, 1}, 2);
      if (!tensor_name.empty()) batch.execution.bind(tensor_name, tensor(ten));
      REQUIRE_FALSE(batch.run().has_value());
      return batch.execution.value("loss");
    };
    const float without = loss("", ""), with = loss("", "label_counts");
    CHECK(without > 2 * with);  // means of 2 and 3 rows, then sums of them over 10
    CHECK(loss(R"("label_counts": null)", "label_counts") == without);
    CHECK(loss(R"("label_counts": "lc_b")", "lc_b") == with);
    CHECK(loss(R"("label_counts": "lc_b")", "label_counts") == without);
  }
}

TEST_CASE("ignore_index is a number of the batch") {
  const std::string members = R"("losses": {"c": {"type": "cross_entropy"}})";
  for (const std::string& device : devices()) {
    FiveRows marked(members, device), named(members, device);
    marked.labels = {-100, 1, 2, 3, -100};
    named.labels = {0, 1, 2, 3, 0};
    std::int64_t wide = 0;
    std::int32_t narrow = 0;
    for (FiveRows* batch : {&marked, &named}) batch->bind_gradient();
    REQUIRE_FALSE(marked.run().has_value());
    REQUIRE_FALSE(named.run().has_value());
    CHECK(named.execution.value("loss") != marked.execution.value("loss"));
    for (const TensorView& index : {tensor(&wide, {}), tensor(&narrow, {})}) {
      named.execution.bind("ignore_index", index);
      REQUIRE_FALSE(named.run().has_value());
      CHECK(named.execution.value("loss") == marked.execution.value("loss"));
      CHECK(named.gradient == marked.gradient);
    }
    // A label past the vocabulary may be the ignored one; negative labels are ignored whatever it is.
    named.labels = {400, 1, 2, 3, -7};
    wide = 400;
    named.execution.bind("ignore_index", tensor(&wide, {}));
    REQUIRE_FALSE(named.run().has_value());
    CHECK(named.gradient == marked.gradient);
    named.execution.unbind("ignore_index");
    CHECK(named.run() == ErrorCode::invalid_data);
  }
}

TEST_CASE("a spec that reads no logits runs: they say how many rows there are") {
  for (const std::string& device : devices()) {
    FiveRows batch(R"("metrics": ["entropy.count"])", device);
    batch.labels = {0, -1, 2, -1, 0};
    REQUIRE_FALSE(batch.run().has_value());
    CHECK(batch.execution.value("metric.entropy.count") == 3);
    CHECK(batch.execution.value("loss") == 0);
  }
}

TEST_CASE("what a child is called says nothing of what it reads") {
  const auto members = [](const std::string& name) {
    return R"("losses": {")" + name + R"(": {"type": "z_loss", "inputs": {"labels": null}}}, "metrics": [")" +
           name + R"(.entropy"])" + no_gradient;
  };
  for (const std::string& device : devices()) {
    const std::string key = FiveRows::program(members("h"), device).key();
    for (const char* name : {"token_accuracy_x", "entropy_x", "entropy", "logprobs", "segments"}) {
      INFO(name);
      CHECK(FiveRows::program(members(name), device).key() == key);
      FiveRows batch(members(name), device);
      batch.labels[2] = 9;  // bad, and read by nobody
      REQUIRE_FALSE(batch.run().has_value());
      CHECK(std::isfinite(batch.execution.value("loss")));
      batch.execution.unbind("labels");
      CHECK_FALSE(batch.run().has_value());
    }
  }
}

}  // namespace
}  // namespace lossc::test
