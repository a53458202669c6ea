// Losses that are not built in, written with the public builder alone, against direct double-precision
// references whose gradients are central differences.
#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <random>
#include <type_traits>
#include <vector>

#include "lossc/loss.h"
#include "lossc/program.h"
#include "tests/catch.h"
#include "tests/tolerances.h"

namespace lossc::test {
namespace {

// `!expr` is a condition of the graph: a test whether an expression is there must not look like it.
static_assert(!std::is_constructible_v<bool, Expr>);

using Rows = std::vector<std::vector<double>>;

// Three losses, each a formula.
LossRegistry extended() {
  LossRegistry registry = LossRegistry::builtin();
  // M = b q + (1 - b) p;  b KL(q || M) + (1 - b) KL(p || M)
  registry.add({.name = "jsd",
                .summary = "generalised Jensen-Shannon divergence of student and teacher",
                .formula = "b KL(q | M) + (1 - b) KL(p | M), M = b q + (1 - b) p",
                .inputs = {{.name = "teacher_logits", .space = "element"}},
                .parameters = {{.name = "beta", .fallback = 0.5, .range = Range::probability}},
                .value = [](LossContext& c) {
                  Expr beta = c.parameter("beta");
                  Expr student = c.logits() - lse(c.logits()), teacher = c.teacher() - lse(c.teacher());
                  Expr mixture = logaddexp(student + log(1.0 - beta), teacher + log(beta));
                  return beta * expect(c.teacher(), teacher - mixture) +
                         (1.0 - beta) * expect(c.logits(), student - mixture);
                }});
  // -A sg(min(r, cap)) log p: the weight is clipped, the gradient never is.
  registry.add({.name = "cispo",
                .summary = "policy gradient with a clipped importance weight",
                .formula = "-A stop(min(r, cap)) logprob, r = exp(logprob - old_logprob)",
                .inputs = {{.name = "labels"}, {.name = "old_logprobs"}, {.name = "advantages"}},
                .parameters = {{.name = "cap", .fallback = 1.5, .range = Range::positive}},
                .value = [](LossContext& c) {
                  Expr ratio = exp(c.logprob() - c.input("old_logprobs"));
                  return -c.advantages() * stop_gradient(min(ratio, c.parameter("cap"))) * c.logprob();
                }});
  // -log sigmoid(b (mean log p of chosen - mean log p of rejected) - margin)
  registry.add({.name = "simpo",
                .summary = "preference loss over length-normalised log-probabilities",
                .formula = "-log sigmoid(b (mean logprob of chosen - of rejected) - margin)",
                .domain = LossDomain::pairs,
                .inputs = {{.name = "labels"}},
                .parameters = {{.name = "beta", .fallback = 2.0, .range = Range::positive},
                               {.name = "margin", .fallback = 0.5}},
                .value = [](LossContext& c) {
                  Expr mean = c.segment_mean(c.logprob());
                  Expr gap = c.parameter("beta") * (c.chosen(mean) - c.rejected(mean));
                  return -log_sigmoid(gap - c.parameter("margin"));
                }});
  return registry;
}

constexpr std::size_t rows = 9, vocab = 11, segments = 4;

struct Data {
  Rows logits, teacher;
  std::vector<std::int64_t> labels = {3, 0, 10, 5, -100, 7, 1, 2, 9};
  std::vector<std::int64_t> segment = {0, 2, 1, 1, 0, 3, 2, -1, 0};
  std::vector<std::array<std::int64_t, 2>> pairs = {{0, 1}, {3, 2}, {1, 2}};
  std::vector<float> old_logprobs, advantages;
  // Row 5 is masked: segment 3 is then empty, and the pair that names it does not count.
  std::vector<std::uint8_t> mask = {1, 1, 1, 1, 1, 0, 1, 1, 1};

  explicit Data(std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::normal_distribution<double> normal;
    for (Rows* tensor : {&logits, &teacher}) {
      tensor->assign(rows, std::vector<double>(vocab));
      for (auto& row : *tensor) {
        for (double& z : row) z = static_cast<float>(1.5 * normal(random));
      }
    }
    for (std::size_t r = 0; r < rows; ++r) {
      old_logprobs.push_back(static_cast<float>(-2.5 + 0.5 * normal(random)));
      advantages.push_back(static_cast<float>(normal(random)));
    }
  }
  bool counts(std::size_t r) const { return mask[r] != 0 && labels[r] >= 0; }
};

double lse(const std::vector<double>& u) {
  const double max = *std::max_element(u.begin(), u.end());
  double sum = 0;
  for (double v : u) sum += std::exp(v - max);
  return max + std::log(sum);
}

double jsd(const Data& d, const Rows& z, double beta, double temperature) {
  double total = 0, n = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    if (!d.counts(r)) continue;
    std::vector<double> u = z[r], t = d.teacher[r];
    for (double& v : u) v /= temperature;
    for (double& v : t) v /= temperature;
    const double lse_u = lse(u), lse_t = lse(t);
    for (std::size_t k = 0; k < vocab; ++k) {
      const double p = std::exp(u[k] - lse_u), q = std::exp(t[k] - lse_t), m = beta * q + (1 - beta) * p;
      total += beta * q * std::log(q / m) + (1 - beta) * p * std::log(p / m);
    }
    n += 1;
  }
  return total / n;
}

// The weight is a constant of the derivative: it is taken from the unperturbed logits.
double cispo(const Data& d, const Rows& z, double cap) {
  double total = 0, n = 0;
  for (std::size_t r = 0; r < rows; ++r) {
    if (!d.counts(r)) continue;
    const auto y = static_cast<std::size_t>(d.labels[r]);
    const double fixed = d.logits[r][y] - lse(d.logits[r]);
    total += -d.advantages[r] * std::min(std::exp(fixed - d.old_logprobs[r]), cap) * (z[r][y] - lse(z[r]));
    n += 1;
  }
  return total / n;
}

double simpo(const Data& d, const Rows& z, double beta, double margin) {
  std::vector<double> sum(segments), count(segments);
  for (std::size_t r = 0; r < rows; ++r) {
    if (!d.counts(r) || d.segment[r] < 0) continue;
    const auto s = static_cast<std::size_t>(d.segment[r]);
    sum[s] += z[r][static_cast<std::size_t>(d.labels[r])] - lse(z[r]);
    count[s] += 1;
  }
  double total = 0, n = 0;
  for (const auto& pair : d.pairs) {
    const auto c = static_cast<std::size_t>(pair[0]), l = static_cast<std::size_t>(pair[1]);
    if (count[c] == 0 || count[l] == 0) continue;
    total += std::log1p(std::exp(-(beta * (sum[c] / count[c] - sum[l] / count[l]) - margin)));
    n += 1;
  }
  return total / n;
}

Rows derivative(const Data& d, const std::function<double(const Rows&)>& loss) {
  constexpr double step = 1e-5;
  Rows gradient(rows, std::vector<double>(vocab)), z = d.logits;
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t k = 0; k < vocab; ++k) {
      z[r][k] = d.logits[r][k] + step;
      const double above = loss(z);
      z[r][k] = d.logits[r][k] - step;
      gradient[r][k] = (above - loss(z)) / (2 * step);
      z[r][k] = d.logits[r][k];
    }
  }
  return gradient;
}

// The figures here are of size 1 or below, their sums of a few dozen terms: 200 roundings bound each result,
// and the central difference adds h^2 + 2^-52 / h.
constexpr double tolerance = 200 * unit + 1e-9;

void check(const std::string& child, const Data& d, const std::function<double(const Rows&)>& loss,
           const std::map<std::string, double>& parameters, bool teacher, bool policy, bool pairs) {
  const LossRegistry registry = extended();
  const std::string text =
      R"({"version": 1, "logits": {"dtype": "fp32", "vocab": 11}, "losses": {"own": )" + child + "}}";
  for (const std::string& device : {std::string("cpu"), std::string("interpreter")}) {
    INFO(device << " " << child);
    CompileOptions options;
    options.registry = &registry;
    options.device = device;
    std::unique_ptr<Execution> compiled;
    try {
      compiled = std::make_unique<Execution>(Program::compile(Spec::parse(text, registry), options));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::unsupported) throw;
      continue;  // this build has no such device
    }
    Execution& execution = *compiled;
    for (const auto& [name, value] : parameters) execution.set(name, value);
    std::vector<float> z, t, gradient(rows * vocab, NAN);
    for (std::size_t r = 0; r < rows; ++r) {
      z.insert(z.end(), d.logits[r].begin(), d.logits[r].end());
      t.insert(t.end(), d.teacher[r].begin(), d.teacher[r].end());
    }
    Data copy = d;
    std::int64_t num_segments = segments;
    execution.bind("logits", tensor(z, {rows, vocab}));
    execution.bind("grad_logits", tensor(gradient, {rows, vocab}));
    execution.bind("labels", tensor(copy.labels));
    execution.bind("mask", tensor(copy.mask));
    if (teacher) execution.bind("teacher_logits", tensor(t, {rows, vocab}));
    if (policy) {
      execution.bind("old_logprobs", tensor(copy.old_logprobs));
      execution.bind("advantages", tensor(copy.advantages));
    }
    if (pairs) {
      execution.bind("segment_ids", tensor(copy.segment));
      execution.bind("num_segments", tensor(&num_segments, {}));
      execution.bind("pairs",
                     tensor(copy.pairs.data()->data(), {static_cast<std::int64_t>(d.pairs.size()), 2}));
    }
    execution.run();
    CHECK(std::abs(execution.value("loss") - loss(d.logits)) <= tolerance);
    const Rows right = derivative(d, loss);
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t k = 0; k < vocab; ++k) {
        INFO("gradient[" << r << ", " << k << "]");
        CHECK(std::abs(gradient[r * vocab + k] - right[r][k]) <= tolerance);
      }
    }
  }
}

TEST_CASE("a generalised Jensen-Shannon divergence") {
  for (std::uint64_t seed : {1, 2}) {
    const Data d(seed);
    check(R"({"type": "jsd"})", d, [&](const Rows& z) { return jsd(d, z, 0.5, 1); }, {}, true, false, false);
    check(
        R"({"type": "jsd", "beta": 0.5, "temperature": 1})", d,
        [&](const Rows& z) { return jsd(d, z, 0.2, 1.7); }, {{"own.beta", 0.2}, {"own.temperature", 1.7}},
        true, false, false);
  }
}

TEST_CASE("CISPO: a policy gradient whose ratio is a constant of the derivative") {
  for (std::uint64_t seed : {3, 4}) {
    const Data d(seed);
    check(R"({"type": "cispo"})", d, [&](const Rows& z) { return cispo(d, z, 1.5); }, {}, false, true, false);
    check(
        R"({"type": "cispo", "cap": 1})", d, [&](const Rows& z) { return cispo(d, z, 0.8); },
        {{"own.cap", 0.8}}, false, true, false);
  }
}

TEST_CASE("a pairwise loss of length-normalised log-probabilities") {
  for (std::uint64_t seed : {5, 6}) {
    const Data d(seed);
    check(
        R"({"type": "simpo"})", d, [&](const Rows& z) { return simpo(d, z, 2, 0.5); }, {}, false, false,
        true);
    check(
        R"({"type": "simpo", "beta": 1, "margin": 0})", d,
        [&](const Rows& z) { return simpo(d, z, 3, -0.25); }, {{"own.beta", 3}, {"own.margin", -0.25}}, false,
        false, true);
  }
}

TEST_CASE("an own loss stands beside built-in ones in one program") {
  const LossRegistry registry = extended();
  const Data d(7);
  CompileOptions options;
  options.registry = &registry;
#ifndef LOSSC_HAS_LLVM
  options.device = "interpreter";
#endif
  const auto gradient_of = [&](const std::string& children) {
    const std::string text =
        R"({"version": 1, "logits": {"dtype": "fp32", "vocab": 11}, "losses": {)" + children + "}}";
    Execution execution(Program::compile(Spec::parse(text, registry), options));
    std::vector<float> z, gradient(rows * vocab, NAN);
    for (const auto& row : d.logits) z.insert(z.end(), row.begin(), row.end());
    Data copy = d;
    execution.bind("logits", tensor(z, {rows, vocab}));
    execution.bind("grad_logits", tensor(gradient, {rows, vocab}));
    execution.bind("labels", tensor(copy.labels));
    execution.bind("mask", tensor(copy.mask));
    if (children.find("cispo") != children.npos) {
      execution.bind("old_logprobs", tensor(copy.old_logprobs));
      execution.bind("advantages", tensor(copy.advantages));
    }
    execution.run();
    return gradient;
  };
  const std::string own = R"("own": {"type": "cispo", "weight": 0.5})",
                    ce = R"("ce": {"type": "cross_entropy"})";
  const auto a = gradient_of(own), b = gradient_of(ce), both = gradient_of(own + ", " + ce);
  for (std::size_t i = 0; i < both.size(); ++i) {
    CHECK(std::abs(both[i] - (a[i] + b[i])) <= 16 * unit * (std::abs(a[i]) + std::abs(b[i]) + 1.0 / rows));
  }
}

}  // namespace
}  // namespace lossc::test
