// How a loss is defined: once, as an expression that reads like its formula. The built-in losses (ir/losses)
// and a user's own are written with what stands here; gradients are derived from it, kernels generated.
//
//   LossRegistry registry = LossRegistry::builtin();
//   registry.add({.name = "square_nll",
//                 .summary = "squared negative log-likelihood",
//                 .formula = "(logprob)^2",
//                 .inputs = {{"labels"}},
//                 .value = [](LossContext& c) { return square(c.logprob()); }});
//   Program program = Program::compile(Spec::parse(text, registry), {.registry = &registry});
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lossc {

namespace ir {
class Graph;
}

/// A value of the loss graph: a scalar, one number a segment, pair or row, or one an element (row x
/// vocabulary). Scalars broadcast to everything, rows and vocabulary vectors to elements; other spaces meet
/// only through the functions of LossContext. Operators throw Error(invalid_argument) where spaces do not
/// fit.
class Expr {
 public:
  Expr() = default;
  Expr(ir::Graph* graph, std::int32_t node) : graph_(graph), node_(node) {}
  ir::Graph& graph() const { return *graph_; }
  std::int32_t node() const { return node_; }
  /// True for Expr(), which is no value yet. There is no conversion to bool: `!a` is a condition of the
  /// graph.
  bool empty() const { return graph_ == nullptr; }
  Expr operator-() const;

 private:
  ir::Graph* graph_ = nullptr;
  std::int32_t node_ = -1;
};

Expr operator+(Expr a, Expr b);
Expr operator-(Expr a, Expr b);
Expr operator*(Expr a, Expr b);
Expr operator/(Expr a, Expr b);
Expr operator+(Expr a, double b);
Expr operator-(Expr a, double b);
Expr operator*(Expr a, double b);
Expr operator/(Expr a, double b);
Expr operator+(double a, Expr b);
Expr operator-(double a, Expr b);
Expr operator*(double a, Expr b);
Expr operator/(double a, Expr b);

// Conditions. `equal` is exact.
Expr operator<(Expr a, Expr b);
Expr operator<=(Expr a, Expr b);
Expr operator>(Expr a, Expr b);
Expr operator>=(Expr a, Expr b);
Expr operator<(Expr a, double b);
Expr operator<=(Expr a, double b);
Expr operator>(Expr a, double b);
Expr operator>=(Expr a, double b);
Expr equal(Expr a, Expr b);
Expr equal(Expr a, double b);
Expr operator&&(Expr a, Expr b);
Expr operator||(Expr a, Expr b);
Expr operator!(Expr a);
/// `condition ? a : b`; the branch not taken contributes nothing, not even a NaN.
Expr select(Expr condition, Expr a, Expr b);
Expr select(Expr condition, Expr a, double b);
/// 1 where the condition holds, else 0.
Expr indicator(Expr condition);

Expr exp(Expr a);
Expr log(Expr a);
Expr log1p(Expr a);
Expr expm1(Expr a);
Expr log1mexp(Expr a);  ///< log(1 - exp(a)), a <= 0
Expr tanh(Expr a);
Expr sigmoid(Expr a);
Expr log_sigmoid(Expr a);
Expr softplus(Expr a);
Expr sqrt(Expr a);
Expr abs(Expr a);
Expr square(Expr a);
Expr min(Expr a, Expr b);
Expr max(Expr a, Expr b);
Expr min(Expr a, double b);
Expr max(Expr a, double b);
/// Limits `a` to [low, high]; the derivative is 1 on the closed interval, 0 outside (PyTorch's clamp).
Expr clip(Expr a, Expr low, Expr high);
Expr clip(Expr a, double low, double high);
/// log(exp(a) + exp(b)); -inf where both are.
Expr logaddexp(Expr a, Expr b);
/// a * b, and 0 where a is 0 even if b is infinite or NaN. `zero_mul(advantage, ratio)`.
Expr zero_mul(Expr a, Expr b);
/// The value, seen as a constant by the derivative.
Expr stop_gradient(Expr a);

// Over the vocabulary: element -> rows.
Expr lse(Expr x);             ///< log sum_k exp(x_k)
Expr softmax(Expr x);         ///< element: exp(x - lse(x))
Expr expect(Expr x, Expr a);  ///< sum_k softmax(x)_k a_k, with 0 * log 0 = 0
Expr entropy(Expr x);         ///< of softmax(x): lse(x) - expect(x, x)
Expr vocab_sum(Expr a);
Expr vocab_mean(Expr a, std::int64_t vocab);
Expr vocab_max(Expr a);
Expr argmax(Expr a);            ///< an index
Expr pick(Expr a, Expr index);  ///< a[index] of each row

/// The numbers that a run-time parameter may take.
enum class Range { any, non_negative, positive, probability /* [0, 1) */ };

struct InputDefinition {
  std::string name;            ///< "labels", "old_logprobs", "teacher_logits"; a spec's child may rename it.
  std::string space = "rows";  ///< "rows", "segments", "pairs", "element"
  bool required = true;        ///< A batch may leave out an input that is not; it then reads `fallback`.
  double fallback = 0;
  std::string doc = {};
};

struct ParameterDefinition {
  std::string name;
  std::optional<double> fallback;  ///< Used when the spec does not name it; nullopt: the feature is off.
  Range range = Range::any;
  std::string doc = {};
};

struct OptionDefinition {
  std::string name;
  std::vector<std::string> allowed;  ///< The first is the default.
  std::string doc = {};
};

struct FlagDefinition {
  std::string name;
  bool fallback = false;
  std::string doc = {};
};

/// What a loss counts over.
enum class LossDomain { rows, segments, pairs };

class LossContext;

/// A named figure of a child, with the kind of summary that makes it one number.
struct MetricDefinition {
  /// mean, sum, min and max run over the child's counting rows (a segment's value is taken at each of its
  /// rows; pairs over pairs); total is the sum over the value's own space, once a segment. A mean alone has
  /// .sum and .count and a weighting by document.
  enum class Summary { mean, sum, min, max, total };
  std::string name, doc;
  std::function<Expr(LossContext&)> value;
  Summary summary = Summary::mean;
  bool of_pairs = false;  ///< The value lives in the space of pairs, and the figure runs over them.
};

struct LossDefinition {
  std::string name, summary, formula;
  LossDomain domain = LossDomain::rows;
  std::vector<InputDefinition> inputs = {};
  std::vector<ParameterDefinition> parameters = {};
  std::vector<OptionDefinition> options = {};
  std::vector<FlagDefinition> flags = {};
  /// Allowed reductions, the default first. Empty: those of the domain.
  std::vector<std::string> reductions = {};
  /// The loss of each row, segment or pair. What does not count is selected away afterwards.
  std::function<Expr(LossContext&)> value;
  std::vector<MetricDefinition> metrics = {};
};

/// What the expression of one child sees: its tensors, parameters and transform, as the spec names them.
/// All row values are those of the row's own softmax; segment functions sum over the rows that count for the
/// child.
class LossContext {
 public:
  virtual ~LossContext() = default;

  virtual Expr constant(double value) = 0;
  virtual std::int64_t vocab() const = 0;

  virtual Expr logits() = 0;   ///< element: u = transform(logits)
  virtual Expr labels() = 0;   ///< rows, an index
  virtual Expr logprob() = 0;  ///< rows: u[label] - lse(u)
  virtual Expr lse() = 0;      ///< rows: lse(u)
  virtual Expr teacher() = 0;  ///< element: t = transform(teacher_logits), as DESIGN of distillation says
  /// A tensor by the loss's own name for it, after renaming.
  virtual Expr input(std::string_view name) = 0;
  virtual Expr advantages() = 0;  ///< rows (a segment's advantage is read at each of its rows)

  /// A parameter's value: the spec's (a run-time parameter) or the fallback (a constant). Throws if it has
  /// neither.
  virtual Expr parameter(std::string_view name) = 0;
  virtual bool has_parameter(std::string_view name) const = 0;
  virtual const std::string& option(std::string_view name) const = 0;
  virtual bool flag(std::string_view name) const = 0;

  virtual Expr counts() = 0;                ///< rows, condition: the row counts for this child
  virtual Expr segment_sum(Expr rows) = 0;  ///< rows -> segments, over rows that count
  virtual Expr segment_count() = 0;         ///< segments: rows that count
  virtual Expr segment_mean(
      Expr rows) = 0;  ///< sum / max(count, 1); count from label_counts where a batch has them
  virtual Expr segment_min(Expr rows) = 0;   ///< over rows that count, +inf of none; no derivative
  virtual Expr segment_max(Expr rows) = 0;   ///< over rows that count, -inf of none; no derivative
  virtual Expr to_rows(Expr segments) = 0;   ///< segments -> rows
  virtual Expr chosen(Expr segments) = 0;    ///< segments -> pairs
  virtual Expr rejected(Expr segments) = 0;  ///< segments -> pairs
  /// rows, segments or pairs -> scalar, over those that count: rows by counts(), segments with a row that
  /// counts, pairs of two such segments.
  virtual Expr batch_sum(Expr values) = 0;
  virtual Expr batch_mean(Expr values) = 0;  ///< batch_sum divided by how many count; 0 when none does
};

/// The loss types that a spec may name.
class LossRegistry {
 public:
  /// The built-in losses.
  static const LossRegistry& builtin();
  /// Adds a definition; throws Error(invalid_argument) on a taken name or a definition without a value.
  void add(LossDefinition definition);
  /// nullptr when unknown.
  const LossDefinition* find(std::string_view name) const;
  const LossDefinition& at(std::string_view name) const;
  std::vector<std::string> names() const;

 private:
  std::map<std::string, LossDefinition, std::less<>> definitions_;
};

}  // namespace lossc
