// What a child's expression sees (LossContext), and the tensors and conditions that children share.
#pragma once

#include <optional>
#include <set>
#include <string>

#include "ir/graph.h"
#include "lossc/loss.h"
#include "lossc/spec.h"

namespace lossc::ir {

/// Values of `segment_ids` after the runtime has checked a batch: >= 0 a segment, these otherwise.
inline constexpr int kNoSegment = -1;
inline constexpr int kBadSegment = -2;

/// Which of a batch's index tensors a spec's graph reads, and how. Known once the graph is built.
struct TensorUses {
  std::set<std::string> labels;         ///< Read to tell which rows count, or for their values.
  std::set<std::string> needed_labels;  ///< Read for their values: a batch cannot leave them out.
  bool segments = false;                ///< A batch must have segments.
  bool advantages = false;  ///< Segments, where a batch has them, may say whose advantage is read.

  bool operator==(const TensorUses&) const = default;
};

/// Tensors, parameters and conditions of one spec. A tensor is required if any user of it needs it. What is
/// read is learned while the graph is built, what is bad depends on all of it: `known` is what an earlier
/// build learned, uses() what this one did.
class SharedTensors {
 public:
  SharedTensors(Graph& graph, const Spec& spec, const LossRegistry& registry, const TensorUses& known);

  const TensorUses& uses() const { return uses_; }

  const Spec& spec() const { return spec_; }
  Graph& graph() { return graph_; }
  Expr logits();
  /// `needed`: for their values, not only to tell which rows count.
  Expr labels(const std::string& name, bool needed);
  Expr mask(const std::string& name);
  Expr segment_ids();
  /// One a row; a batch may hold one a segment instead, which the runtime spreads over the rows.
  Expr row_advantages(const std::string& name);
  /// An operation along a map of segments or pairs.
  Expr along(Op op, Expr a, std::string_view map);
  /// A label >= vocab or a segment id >= segments, in any tensor the program uses.
  Expr bad();
  /// A run-time parameter.
  Expr number(const Number& number);
  Expr transform(Expr z, const Transform& transform);

  Expr wrap(NodeId id) { return Expr(&graph_, id); }
  Expr constant(double value) { return wrap(graph_.constant(value)); }

 private:
  Expr labels_input(const std::string& name);
  Expr segment_ids_input();

  Graph& graph_;
  const Spec& spec_;
  TensorUses known_, uses_;
};

/// True when rows of this child must belong to a segment to count.
bool counts_by_segment(const ChildSpec& spec, const LossDefinition& definition);

/// The context of one child; of the logits block itself (metrics and outputs of no child) when spec is null.
class ChildContext final : public LossContext {
 public:
  ChildContext(SharedTensors& shared, const ChildSpec* spec, const LossDefinition* definition);

  Expr constant(double value) override { return shared_.constant(value); }
  std::int64_t vocab() const override { return shared_.spec().vocab; }
  Expr logits() override;
  Expr labels() override;
  Expr logprob() override;
  Expr lse() override;
  Expr teacher() override;
  Expr input(std::string_view name) override;
  Expr advantages() override;
  Expr parameter(std::string_view name) override;
  bool has_parameter(std::string_view name) const override;
  const std::string& option(std::string_view name) const override;
  bool flag(std::string_view name) const override;
  Expr counts() override;
  Expr segment_sum(Expr rows) override;
  Expr segment_count() override;
  Expr segment_mean(Expr rows) override;
  Expr segment_min(Expr rows) override;
  Expr segment_max(Expr rows) override;
  Expr to_rows(Expr segments) override;
  Expr chosen(Expr segments) override;
  Expr rejected(Expr segments) override;
  Expr batch_sum(Expr values) override;
  Expr batch_mean(Expr values) override;

  Expr row_count();       ///< scalar: rows that count
  Expr sequence_count();  ///< scalar: segments with a counting row; all of them with count_empty
  Expr pair_counts();     ///< pairs, condition: both segments hold a counting row
  /// rows: what multiplies each row's loss; empty where the child names no token_weights.
  Expr token_weights();
  Expr divisor();

 private:
  const Transform& transform() const;
  /// The tensor's name in the batch; nullopt when the child opted out of it.
  std::optional<std::string> tensor_name(std::string_view name) const;
  Expr masked(Expr rows);
  /// What an extremum over rows leaves out, `rest`, in place of rows that do not count.
  Expr extremum(Op op, Expr rows, double rest);
  bool count_empty() const;

  SharedTensors& shared_;
  const ChildSpec* spec_;
  const LossDefinition* definition_;
};

}  // namespace lossc::ir
