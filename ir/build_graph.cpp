#include "ir/build_graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "ir/child_context.h"
#include "lossc/error.h"

namespace lossc::ir {

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

bool ends_with(const std::string& text, std::string_view suffix) {
  return text.size() > suffix.size() && text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

/// A figure summarised over rows, segments or pairs: its sum (or extremum) and what a mean divides it by.
struct Figure {
  Expr total, count;
};

class GraphBuilder {
 public:
  GraphBuilder(const Spec& spec, const LossRegistry& registry, const TensorUses& known)
      : spec_(spec), registry_(registry) {
    Graph& g = loss_.graph;
    g.add_map({"segment_ids", Space::rows, Space::segments});
    g.add_map({"pairs.chosen", Space::pairs, Space::segments});
    g.add_map({"pairs.rejected", Space::pairs, Space::segments});
    shared_ = std::make_unique<SharedTensors>(g, spec, registry, known);
    loss_.logits = shared_->logits().node();
    loss_.vocab = spec.vocab;
  }

  LossGraph build() {
    std::vector<const ChildSpec*> order;
    for (const ChildSpec& child : spec_.losses) order.push_back(&child);
    std::stable_sort(order.begin(), order.end(),
                     [](const ChildSpec* a, const ChildSpec* b) { return structure(*a) < structure(*b); });
    base_ = std::make_unique<ChildContext>(*shared_, nullptr, nullptr);
    for (const ChildSpec* child : order) add_child(*child);
    add_total();
    for (const MetricSpec& metric : spec_.metrics) add_metric(metric);
    for (const std::string& output : spec_.outputs) add_output(output);
    finish_row_conditions();
    return std::move(loss_);
  }

  const TensorUses& uses() const { return shared_->uses(); }

 private:
  struct Child {
    const ChildSpec* spec;
    std::unique_ptr<ChildContext> context;
    Expr value;  // per row, segment or pair; what does not count is 0
    Expr loss, weight, guard;
  };

  // All that shapes a child's kernels, without names or numbers.
  static std::string structure(const ChildSpec& child) {
    std::string text = child.type + "|" + child.reduction + (child.weight ? "|w" : "|");
    for (const auto& [name, number] : child.numbers) text += "|" + name;
    for (const auto& [name, value] : child.options) text += "|" + name + "=" + value;
    for (const auto& [name, value] : child.flags) text += "|" + name + (value ? "+" : "-");
    if (child.transform) {
      text +=
          fmt::format("|T{}{}{}{}", child.transform->scale.has_value(), child.transform->softcap.has_value(),
                      child.transform->temperature.has_value(), child.transform->cap_first);
    }
    for (const auto& [name, target] : child.inputs) text += "|" + name + (target ? ">" : "!");
    return text;
  }

  Graph& graph() { return loss_.graph; }
  Expr wrap(NodeId id) { return Expr(&loss_.graph, id); }
  Expr constant(double value) { return wrap(graph().constant(value)); }
  Expr sum(Expr a) {
    return graph().node(a.node()).space == Space::scalar ? a : wrap(graph().apply(Op::reduce_sum, a.node()));
  }
  Space space(Expr a) { return graph().node(a.node()).space; }

  // The value where it counts, NaN where the row is bad, 0 elsewhere.
  Expr row_value(ChildContext& c, Expr value) {
    return select(c.counts(), select(shared_->bad(), constant(kNaN), value), 0.0);
  }

  // 0, and NaN where a row that counts is bad: a row with a bad segment id is in no segment, so that sums
  // over segments and pairs do not see it.
  Expr bad_guard(ChildContext& c) { return sum(row_value(c, constant(0))); }

  Expr at_least_one(Expr count) { return max(count, 1.0); }

  void add_child(const ChildSpec& spec) {
    const LossDefinition& definition = registry_.at(spec.type);
    Child child{&spec, std::make_unique<ChildContext>(*shared_, &spec, &definition), {}, {}, {}, {}};
    ChildContext& c = *child.context;
    Expr raw = definition.value(c);
    const Space domain = definition.domain == LossDomain::rows       ? Space::rows
                         : definition.domain == LossDomain::segments ? Space::segments
                                                                     : Space::pairs;
    const Space found = space(raw);
    if (found != domain && found != Space::scalar) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("loss type \"{}\": its value lives in space {}, its domain is {}", spec.type,
                              graph().space_name(found), graph().space_name(domain)));
    }
    const std::string& reduction = spec.reduction;
    Expr total;
    Expr weights = c.token_weights();
    if (domain == Space::rows) {
      child.value = row_value(c, weights.empty() ? raw : zero_mul(weights, raw));
      if (reduction == "token_mean") {
        total = sum(child.value) / at_least_one(c.row_count());
      } else if (reduction == "sum" || reduction == "none") {
        total = sum(child.value);
      } else if (reduction == "divisor") {
        total = sum(child.value) / c.divisor();
      } else if (reduction == "sequence_mean") {
        total = sum(c.segment_mean(child.value)) / at_least_one(c.sequence_count());
      } else if (reduction == "sequence_sum_mean") {
        total = sum(c.segment_sum(child.value)) / at_least_one(c.sequence_count());
      } else if (reduction == "sequence_sum_norm") {
        total = sum(c.segment_sum(child.value)) / (at_least_one(c.sequence_count()) * c.divisor());
      }
      if (counts_by_segment(spec, definition)) total = total + bad_guard(c);
    } else if (domain == Space::segments) {
      Expr n = c.segment_count();
      // A segment's loss is that of each of its tokens: `tokens` adds up their weights.
      Expr tokens = weights.empty() ? n : c.segment_sum(weights);
      Expr mean_weight = weights.empty() ? constant(1) : c.segment_mean(weights);
      child.value = select(n > 0.0, raw, 0.0);
      Expr weighted = select(n > 0.0, zero_mul(tokens, raw), 0.0);
      if (reduction == "token_mean") {
        total = sum(weighted) / at_least_one(c.row_count());
      } else if (reduction == "sum" || reduction == "none") {
        total = sum(weighted);
      } else if (reduction == "divisor") {
        total = sum(weighted) / c.divisor();
      } else if (reduction == "sequence_mean") {
        total = sum(select(n > 0.0, zero_mul(mean_weight, raw), 0.0)) / at_least_one(c.sequence_count());
      } else if (reduction == "sequence_sum_mean") {
        total = sum(weighted) / at_least_one(c.sequence_count());
      } else if (reduction == "sequence_sum_norm") {
        total = sum(weighted) / (at_least_one(c.sequence_count()) * c.divisor());
      }
      total = total + bad_guard(c);
    } else {
      child.value = select(c.pair_counts(), raw, 0.0);
      if (reduction == "pair_mean") {
        total = sum(child.value) / at_least_one(sum(indicator(c.pair_counts())));
      } else if (reduction == "sum" || reduction == "none") {
        total = sum(child.value);
      } else if (reduction == "divisor") {
        total = sum(child.value) / c.divisor();
      }
      total = total + bad_guard(c);
    }
    if (total.empty())
      throw Error(ErrorCode::internal, fmt::format("reduction \"{}\" is not built", reduction));
    child.loss = total;
    child.weight = spec.weight ? shared_->number(*spec.weight) : constant(1);
    child.guard = c.counts() && child.weight > 0.0;
    loss_.children.push_back({spec.name, total.node(), child.weight.node(), child.guard.node()});
    loss_.scalars.push_back({"loss." + spec.name, total.node()});
    children_.push_back(std::move(child));
  }

  void add_total() {
    Expr total = constant(0);
    for (Child& child : children_) total = total + zero_mul(child.weight, child.loss);
    loss_.scalars.insert(loss_.scalars.begin(), {"loss", total.node()});
  }

  Child& child_named(const std::string& name) {
    for (Child& child : children_) {
      if (child.spec->name == name) return child;
    }
    throw Error(ErrorCode::invalid_spec, fmt::format("no child loss is called \"{}\"", name));
  }

  // entropy and token_accuracy exist for the logits block and for every child.
  static Expr common_metric(ChildContext& c, const std::string& name) {
    if (name == "entropy") return entropy(c.logits());
    if (name == "token_accuracy") return indicator(equal(argmax(c.logits()), c.labels()));
    return {};
  }

  void add_metric(const MetricSpec& metric) {
    std::string name = metric.name;
    const bool as_sum = ends_with(name, ".sum"), as_count = ends_with(name, ".count");
    if (as_sum || as_count) name = name.substr(0, name.rfind('.'));
    const std::size_t dot = name.find('.');
    ChildContext* c = base_.get();
    Expr value;
    MetricDefinition form;
    if (dot == std::string::npos) {
      base_counts_ = true;
      value = common_metric(*c, name);
    } else {
      Child& child = child_named(name.substr(0, dot));
      c = child.context.get();
      const std::string figure = name.substr(dot + 1);
      for (const MetricDefinition& definition : registry_.at(child.spec->type).metrics) {
        if (definition.name != figure) continue;
        form = definition;
        value = definition.value(*c);
      }
      if (value.empty()) value = common_metric(*c, figure);
    }
    if (value.empty())
      throw Error(ErrorCode::invalid_spec, fmt::format("metrics: no metric is called \"{}\"", metric.name));
    if ((space(value) == Space::pairs) != form.of_pairs) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("metric \"{}\": its value lives in space {}, its definition says {}pairs",
                              metric.name, graph().space_name(space(value)), form.of_pairs ? "" : "not "));
    }
    Expr result = summarise(*c, value, form.summary, metric.per_document, as_sum, as_count);
    loss_.scalars.push_back({"metric." + metric.name, result.node()});
  }

  Expr summarise(ChildContext& c, Expr value, MetricDefinition::Summary summary, bool per_document,
                 bool as_sum, bool as_count) {
    using Summary = MetricDefinition::Summary;
    const Space where = space(value);
    if (summary == Summary::total) return sum(value) + bad_guard(c);
    if (summary == Summary::min || summary == Summary::max) {
      const bool is_min = summary == Summary::min;
      Expr rest = constant(is_min ? kInfinity : -kInfinity);
      Expr counting = where == Space::segments ? c.segment_count() > 0.0 : c.counts();
      Expr values = select(counting, value, rest);
      return wrap(graph().apply(is_min ? Op::reduce_min : Op::reduce_max, values.node())) + bad_guard(c);
    }
    Figure figure;
    if (per_document) {
      Expr rows = where == Space::segments ? c.to_rows(value) : value;
      figure = {sum(c.segment_mean(row_value(c, rows))) + bad_guard(c), c.sequence_count()};
    } else if (where == Space::segments) {
      Expr n = c.segment_count();
      figure = {sum(select(n > 0.0, n * value, 0.0)) + bad_guard(c), c.row_count()};
    } else if (where == Space::pairs) {
      figure = {sum(select(c.pair_counts(), value, 0.0)) + bad_guard(c), sum(indicator(c.pair_counts()))};
    } else {
      figure = {sum(row_value(c, value)), c.row_count()};
    }
    if (as_count) return figure.count;
    if (as_sum || summary == Summary::sum) return figure.total;
    return figure.total / at_least_one(figure.count);
  }

  void add_output(const std::string& name) {
    Expr value;
    if (ends_with(name, ".loss")) {
      Child& child = child_named(name.substr(0, name.rfind('.')));
      const Space where = space(child.value);
      if (where == Space::pairs) {
        throw Error(ErrorCode::invalid_spec,
                    fmt::format("outputs: \"{}\" asks for losses of rows, but a {} loss is one of pairs",
                                name, child.spec->type));
      }
      value = child.value;
      if (where == Space::segments) {
        Expr rows = child.context->to_rows(value), weights = child.context->token_weights();
        value = row_value(*child.context, weights.empty() ? rows : zero_mul(weights, rows));
      }
    } else {
      base_counts_ = true;
      if (name == "logprobs") value = base_->logprob();
      if (name == "entropy") value = entropy(base_->logits());
      if (name == "lse") value = base_->lse();
      if (value.empty())
        throw Error(ErrorCode::invalid_spec, fmt::format("outputs: no output is called \"{}\"", name));
      value = row_value(*base_, value);
    }
    loss_.rows.push_back({"output." + name, value.node()});
  }

  void finish_row_conditions() {
    Expr active, live;
    for (Child& child : children_) {
      Expr counts = child.context->counts();
      active = active.empty() ? counts : active || counts;
      live = live.empty() ? child.guard : live || child.guard;
    }
    if (base_counts_) active = active.empty() ? base_->counts() : active || base_->counts();
    if (active.empty()) active = wrap(graph().boolean(false));
    if (live.empty()) live = wrap(graph().boolean(false));
    loss_.active = active.node();
    loss_.live = live.node();
    loss_.bad = shared_->bad().node();
    loss_.grad_scale = graph().optional_input("grad_scale", Space::rows, Kind::real, 1.0);
  }

  const Spec& spec_;
  const LossRegistry& registry_;
  LossGraph loss_;
  std::unique_ptr<SharedTensors> shared_;
  std::unique_ptr<ChildContext> base_;  // what counts for metrics and outputs that belong to no child
  std::vector<Child> children_;
  bool base_counts_ = false;
};

}  // namespace

LossGraph build_graph(const Spec& spec, const LossRegistry& registry) {
  // Each build learns which tensors are read, the next marks their bad rows everywhere.
  TensorUses known;
  while (true) {
    GraphBuilder builder(spec, registry, known);
    LossGraph loss = builder.build();
    if (builder.uses() == known) return loss;
    known = builder.uses();
  }
}

}  // namespace lossc::ir
