// The fusion planner: cuts a simplified loss graph into compiled regions and the seams between them.
//
// Promise: every sweep reduction is computed once, in the region where it costs least; what the gradient
// needs from other rows is ready before the region that uses it; all gradients are written in the last
// region; what does not depend on the logits is in the prologue, and what only results need is in the
// epilogue. A plan knows no backend.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/loss_graph.h"
#include "lossc/spec.h"

namespace lossc {

/// A small kernel over rows, segments, pairs or scalars. Its values are materialised: one buffer each.
struct Step {
  enum class Kind {
    map,      ///< point-wise values over `domain`
    reduce,   ///< reduce_* over `domain` to scalars
    segment,  ///< segment_* along `map`
  } kind = Kind::map;
  ir::Space domain = ir::Space::scalar;
  std::string map;
  std::vector<ir::NodeId> values;
};

/// One sweep over a row's vocabulary: accumulate its statistics, merge, finish.
struct Phase {
  std::vector<ir::NodeId> statistics;
};

/// One compiled kernel over rows.
struct Region {
  std::vector<ir::NodeId> picks;  ///< single elements read of each row
  std::vector<Phase> phases;
  bool emit = false;              ///< ends by writing the gradient
  std::vector<ir::NodeId> reads;  ///< element inputs
  std::vector<ir::NodeId>
      stored;  ///< statistics and picks that later steps or regions read: one row buffer each
};

struct Plan {
  ir::LossGraph loss;
  GradientMode gradient = GradientMode::none;
  std::vector<Step> prologue;
  std::vector<Region> regions;
  std::vector<std::vector<Step>> seams;  ///< seams[i] stands between regions i and i + 1
  std::vector<Step> epilogue;

  // Traffic of tensors of the logits' shape; all rows assumed to count.
  int passes = 0, bound_passes = 0;
  int extra_reads = 0;  ///< re-reads of a row that its cache serves
  double bytes_per_row = 0, bound_bytes_per_row = 0;
};

/// Builds, differentiates, simplifies and plans a spec.
Plan plan_spec(const Spec& spec, const LossRegistry& registry);

/// Plans a simplified graph.
Plan plan_graph(ir::LossGraph loss, const Spec& spec);

/// True for nodes that a region computes by reading element tensors: sweep reductions and picks of elements.
bool is_statistic(const ir::Graph& graph, ir::NodeId id);

/// The element inputs that an element expression reads.
std::vector<ir::NodeId> element_inputs(const ir::Graph& graph, const std::vector<ir::NodeId>& roots);

/// Element inputs that a region touches: those it sweeps and those it picks from.
std::vector<ir::NodeId> region_tensors(const ir::Graph& graph, const Region& region);

/// By node: whether a row value is computed from a sweep of this region.
std::vector<bool> values_from_sweeps(const ir::Graph& graph, const Region& region);

/// The nodes in row or smaller spaces that an element expression uses, each a value of the row while it is
/// swept; an anchored softmax counts as its anchor and log_sum.
std::vector<ir::NodeId> row_operands(const ir::Graph& graph, const std::vector<ir::NodeId>& roots);

}  // namespace lossc
