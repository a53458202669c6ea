#include "ir/child_context.h"

#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "lossc/error.h"

namespace lossc::ir {

namespace {

const InputDefinition* find_input(const LossDefinition* definition, std::string_view name) {
  if (definition == nullptr) return nullptr;
  for (const InputDefinition& input : definition->inputs) {
    if (input.name == name) return &input;
  }
  return nullptr;
}

}  // namespace

bool counts_by_segment(const ChildSpec& spec, const LossDefinition& definition) {
  return definition.domain != LossDomain::rows || spec.reduction == "sequence_mean" ||
         spec.reduction == "sequence_sum_mean";
}

SharedTensors::SharedTensors(Graph& graph, const Spec& spec, const LossRegistry& registry,
                             const TensorUses& known)
    : graph_(graph), spec_(spec), known_(known) {
  // A definition's own word counts, whether or not its expression reads the labels.
  for (const ChildSpec& child : spec.losses) {
    const InputDefinition* labels = find_input(&registry.at(child.type), "labels");
    if (labels == nullptr || !labels->required) continue;
    const auto rename = child.inputs.find("labels");
    const bool renamed = rename != child.inputs.end() && rename->second.has_value();
    uses_.needed_labels.insert(renamed ? *rename->second : "labels");
  }
}

Expr SharedTensors::logits() {
  return wrap(graph_.input("logits", Space::element));
}

Expr SharedTensors::labels_input(const std::string& name) {
  return wrap(known_.needed_labels.count(name) > 0
                  ? graph_.input(name, Space::rows, Kind::index)
                  : graph_.optional_input(name, Space::rows, Kind::index, 0));
}

Expr SharedTensors::labels(const std::string& name, bool needed) {
  uses_.labels.insert(name);
  if (needed) uses_.needed_labels.insert(name);
  return labels_input(name);
}

Expr SharedTensors::mask(const std::string& name) {
  return wrap(graph_.optional_input(name, Space::rows, Kind::boolean, 1));
}

Expr SharedTensors::segment_ids_input() {
  return wrap(known_.segments ? graph_.input("segment_ids", Space::rows, Kind::index)
                              : graph_.optional_input("segment_ids", Space::rows, Kind::index, 0));
}

Expr SharedTensors::segment_ids() {
  uses_.segments = true;
  return segment_ids_input();
}

Expr SharedTensors::along(Op op, Expr a, std::string_view map) {
  uses_.segments = true;
  return wrap(graph_.along(op, a.node(), map));
}

Expr SharedTensors::bad() {
  Expr any = wrap(graph_.boolean(false));
  for (const std::string& name : known_.labels)
    any = any || constant(static_cast<double>(spec_.vocab)) <= labels_input(name);
  if (known_.segments || known_.advantages) any = any || equal(segment_ids_input(), kBadSegment);
  return any;
}

Expr SharedTensors::row_advantages(const std::string& name) {
  uses_.advantages = true;
  return wrap(graph_.input(name, Space::rows));
}

Expr SharedTensors::number(const Number& number) {
  return wrap(graph_.parameter(number.parameter));
}

Expr SharedTensors::transform(Expr z, const Transform& transform) {
  Expr u = z;
  auto scale = [&] {
    if (transform.scale) u = u * number(*transform.scale);
  };
  auto cap = [&] {
    if (!transform.softcap) return;
    Expr c = number(*transform.softcap);
    // A raw -inf keeps probability 0: the cap would lift it to -c.
    const double minus_infinity = -std::numeric_limits<double>::infinity();
    u = select(equal(z, minus_infinity), constant(minus_infinity), c * tanh(u / c));
  };
  if (transform.cap_first) {
    cap();
    scale();
  } else {
    scale();
    cap();
  }
  if (transform.temperature) u = u / number(*transform.temperature);
  return u;
}

ChildContext::ChildContext(SharedTensors& shared, const ChildSpec* spec, const LossDefinition* definition)
    : shared_(shared), spec_(spec), definition_(definition) {}

const Transform& ChildContext::transform() const {
  return spec_ != nullptr && spec_->transform ? *spec_->transform : shared_.spec().logits;
}

std::optional<std::string> ChildContext::tensor_name(std::string_view name) const {
  if (spec_ != nullptr) {
    if (auto it = spec_->inputs.find(std::string(name)); it != spec_->inputs.end()) return it->second;
  }
  return std::string(name);
}

Expr ChildContext::logits() {
  return shared_.transform(shared_.logits(), transform());
}

Expr ChildContext::labels() {
  const auto name = tensor_name("labels");
  if (!name) {
    throw Error(
        ErrorCode::invalid_spec,
        fmt::format("losses.{}.inputs.labels: found null; allowed: a tensor's name, as {} or one of its "
                    "metrics in this spec reads labels",
                    spec_->name, definition_->name));
  }
  return shared_.labels(*name, true);
}

Expr ChildContext::logprob() {
  return pick(logits(), labels()) - lse();
}

Expr ChildContext::lse() {
  return lossc::lse(logits());
}

Expr ChildContext::teacher() {
  Expr t = input("teacher_logits");
  Transform own;
  auto named = [&](const char* key) -> std::optional<Number> {
    auto it = spec_->numbers.find(key);
    return it == spec_->numbers.end() ? std::nullopt : std::optional<Number>(it->second);
  };
  own.scale = named("teacher_scale");
  own.softcap = named("teacher_softcap");
  own.temperature = transform().temperature;
  t = shared_.transform(t, own);
  if (has_parameter("teacher_temperature")) t = t / parameter("teacher_temperature");
  return t;
}

Expr ChildContext::input(std::string_view name) {
  const InputDefinition* definition = find_input(definition_, name);
  if (definition == nullptr) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("loss type \"{}\" reads input \"{}\", which its definition does not list",
                            definition_ != nullptr ? definition_->name : "", name));
  }
  if (name == "labels") return labels();
  const auto tensor = tensor_name(name);
  if (!tensor) {
    throw Error(
        ErrorCode::invalid_spec,
        fmt::format("losses.{}.inputs.{}: null is allowed for labels and mask only", spec_->name, name));
  }
  static const std::map<std::string, Space, std::less<>> spaces = {
      {"rows", Space::rows},       {"segments", Space::segments}, {"pairs", Space::pairs},
      {"element", Space::element}, {"vocab", Space::vocab},       {"scalar", Space::scalar}};
  const auto space = spaces.find(definition->space);
  if (space == spaces.end()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("loss type \"{}\": input \"{}\" has unknown space \"{}\"", definition_->name,
                            name, definition->space));
  }
  if (space->second == Space::segments) shared_.segment_ids();
  Graph& g = shared_.graph();
  return shared_.wrap(definition->required
                          ? g.input(*tensor, space->second)
                          : g.optional_input(*tensor, space->second, Kind::real, definition->fallback));
}

Expr ChildContext::advantages() {
  const std::string name = tensor_name("advantages").value_or("advantages");
  const auto& tensors = shared_.spec().tensors;
  if (auto it = tensors.find(name); it != tensors.end() && it->second.space == "segments") {
    return to_rows(shared_.wrap(shared_.graph().input(name, Space::segments)));
  }
  return shared_.row_advantages(name);
}

Expr ChildContext::parameter(std::string_view name) {
  if (name == "temperature") {
    const auto& temperature = transform().temperature;
    return temperature ? shared_.number(*temperature) : constant(1);
  }
  if (spec_ != nullptr) {
    if (auto it = spec_->numbers.find(std::string(name)); it != spec_->numbers.end())
      return shared_.number(it->second);
  }
  if (definition_ != nullptr) {
    for (const ParameterDefinition& parameter : definition_->parameters) {
      if (parameter.name == name && parameter.fallback) return constant(*parameter.fallback);
    }
  }
  throw Error(
      ErrorCode::invalid_argument,
      fmt::format(
          "loss type \"{}\" reads parameter \"{}\", which is neither named in the spec nor has a default",
          definition_ != nullptr ? definition_->name : "", name));
}

bool ChildContext::has_parameter(std::string_view name) const {
  if (spec_ != nullptr && spec_->numbers.count(std::string(name)) > 0) return true;
  if (definition_ == nullptr) return false;
  for (const ParameterDefinition& parameter : definition_->parameters) {
    if (parameter.name == name && parameter.fallback) return true;
  }
  return false;
}

const std::string& ChildContext::option(std::string_view name) const {
  if (spec_ != nullptr) {
    if (auto it = spec_->options.find(std::string(name)); it != spec_->options.end()) return it->second;
  }
  if (definition_ != nullptr) {
    for (const OptionDefinition& option : definition_->options) {
      if (option.name == name) return option.allowed.front();
    }
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("unknown option \"{}\"", name));
}

bool ChildContext::flag(std::string_view name) const {
  if (spec_ != nullptr) {
    if (auto it = spec_->flags.find(std::string(name)); it != spec_->flags.end()) return it->second;
  }
  if (definition_ != nullptr) {
    for (const FlagDefinition& flag : definition_->flags) {
      if (flag.name == name) return flag.fallback;
    }
  }
  return false;
}

Expr ChildContext::counts() {
  Expr counts = shared_.wrap(shared_.graph().boolean(true));
  if (const auto mask = tensor_name("mask")) counts = counts && shared_.mask(*mask);
  if (const auto labels = tensor_name("labels")) counts = counts && !(shared_.labels(*labels, false) < 0.0);
  if (spec_ != nullptr && counts_by_segment(*spec_, *definition_)) {
    counts = counts && !equal(shared_.segment_ids(), kNoSegment);
  }
  return counts;
}

Expr ChildContext::masked(Expr rows) {
  return select(counts(), select(shared_.bad(), constant(std::numeric_limits<double>::quiet_NaN()), rows),
                0.0);
}

bool ChildContext::count_empty() const {
  return flag("count_empty");
}

Expr ChildContext::segment_sum(Expr rows) {
  return shared_.along(Op::segment_sum, masked(rows), "segment_ids");
}

Expr ChildContext::segment_count() {
  return shared_.along(Op::segment_sum, indicator(counts()), "segment_ids");
}

Expr ChildContext::segment_mean(Expr rows) {
  // label_counts: the labelled tokens of the row's whole document, when a document is split over batches.
  Graph& g = shared_.graph();
  Expr length = max(segment_count(), 1.0);
  if (const auto name = tensor_name("label_counts")) {
    Expr document = shared_.wrap(g.optional_input(*name, Space::rows, Kind::real, -1));
    Expr whole = shared_.along(Op::segment_max, select(counts(), document, -1.0), "segment_ids");
    length = select(whole > 0.0, whole, length);
  }
  return segment_sum(rows) / length;
}

Expr ChildContext::extremum(Op op, Expr rows, double rest) {
  Expr counting = select(
      counts(),
      select(shared_.bad(), constant(std::numeric_limits<double>::quiet_NaN()), stop_gradient(rows)), rest);
  return shared_.along(op, counting, "segment_ids");
}

Expr ChildContext::segment_min(Expr rows) {
  return extremum(Op::segment_min, rows, std::numeric_limits<double>::infinity());
}

Expr ChildContext::segment_max(Expr rows) {
  return extremum(Op::segment_max, rows, -std::numeric_limits<double>::infinity());
}

Expr ChildContext::to_rows(Expr segments) {
  return shared_.along(Op::gather, segments, "segment_ids");
}

Expr ChildContext::chosen(Expr segments) {
  return shared_.along(Op::gather, segments, "pairs.chosen");
}

Expr ChildContext::rejected(Expr segments) {
  return shared_.along(Op::gather, segments, "pairs.rejected");
}

Expr ChildContext::row_count() {
  return shared_.wrap(shared_.graph().apply(Op::reduce_sum, indicator(counts()).node()));
}

Expr ChildContext::batch_sum(Expr values) {
  Graph& g = shared_.graph();
  Expr counting;
  switch (g.node(values.node()).space) {
    case Space::scalar:
    case Space::rows:
      counting = masked(values);
      break;
    case Space::segments:
      counting = select(segment_count() > 0.0, values, 0.0);
      break;
    case Space::pairs:
      counting = select(pair_counts(), values, 0.0);
      break;
    default:
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("batch_sum needs one value a row, segment or pair, found one in the space '{}'",
                              g.space_name(g.node(values.node()).space)));
  }
  return shared_.wrap(g.apply(Op::reduce_sum, counting.node()));
}

Expr ChildContext::batch_mean(Expr values) {
  Graph& g = shared_.graph();
  Expr count;
  switch (g.node(values.node()).space) {
    case Space::segments:
      count = shared_.wrap(g.apply(Op::reduce_sum, indicator(segment_count() > 0.0).node()));
      break;
    case Space::pairs:
      count = shared_.wrap(g.apply(Op::reduce_sum, indicator(pair_counts()).node()));
      break;
    default:
      count = row_count();
  }
  return batch_sum(values) / max(count, 1.0);
}

Expr ChildContext::token_weights() {
  if (spec_ == nullptr || !spec_->inputs.contains("token_weights")) return {};
  const auto name = tensor_name("token_weights");
  return name ? shared_.wrap(shared_.graph().input(*name, Space::rows)) : Expr();
}

Expr ChildContext::sequence_count() {
  Graph& g = shared_.graph();
  if (count_empty()) {
    shared_.segment_ids();
    return shared_.wrap(g.space_size(Space::segments));
  }
  return shared_.wrap(g.apply(Op::reduce_sum, indicator(segment_count() > 0.0).node()));
}

Expr ChildContext::pair_counts() {
  Graph& g = shared_.graph();
  Expr chosen_index = shared_.wrap(g.input("pairs.chosen", Space::pairs, Kind::index));
  Expr rejected_index = shared_.wrap(g.input("pairs.rejected", Space::pairs, Kind::index));
  Expr named = !(chosen_index < 0.0) && !(rejected_index < 0.0);
  if (count_empty()) return named;
  Expr n = segment_count();
  return named && chosen(n) > 0.0 && rejected(n) > 0.0;
}

Expr ChildContext::divisor() {
  if (spec_ == nullptr || !spec_->divisor)
    throw Error(ErrorCode::internal, "reduction divisor without a divisor");
  return shared_.number(*spec_->divisor);
}

}  // namespace lossc::ir
