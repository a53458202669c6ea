// What the functions of a region need, read off the plan's graph: the element expressions of each sweep, the
// exponentials that they form, and what one sweep leaves in scratch rows for the next. Emits nothing.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "compiler/plan.h"

namespace lossc::cpu {

class RegionShape {
 public:
  /// What the last phase leaves for the emit in a scratch row: exp(x - anchor), or that times `a`.
  struct Kept {
    ir::NodeId x, a;
    bool operator==(const Kept&) const = default;
  };

  RegionShape(const Plan& plan, const Region& region, std::int64_t vocab);

  const Region& region() const { return region_; }
  /// Element tensors, in the order of their addresses in a frame.
  const std::vector<ir::NodeId>& tensors() const { return tensors_; }

  /// A statistic or a pick of this region.
  bool owns(ir::NodeId id) const { return own_.count(id) > 0; }
  /// The phase of an own statistic.
  std::size_t phase_of(ir::NodeId id) const;
  /// Whether a row value is computed from a sweep of this region.
  bool from_sweep(ir::NodeId id) const { return from_sweeps_[static_cast<std::size_t>(id)]; }

  /// Element expressions of a phase, and of the emit.
  std::vector<ir::NodeId> phase_roots(std::size_t k) const;
  std::vector<ir::NodeId> emit_roots() const;
  /// Arguments of the softmaxes that expressions evaluate.
  std::set<ir::NodeId> softmaxes(const std::vector<ir::NodeId>& roots) const;
  /// Arguments whose exponentials a phase forms: its own statistics' and those its expressions evaluate.
  std::set<ir::NodeId> phase_exponentials(std::size_t k) const;
  /// Arguments whose anchors a phase chooses.
  std::set<ir::NodeId> anchors_of(std::size_t k) const;

  /// The raw form of a basis: softmax(x) and softmax(x) * a are formed from exp(x - anchor); the factor 1 /
  /// sum goes into the coefficient. x, or no_node.
  ir::NodeId softmax_of(ir::NodeId basis) const;
  ir::NodeId anchor_of(ir::NodeId x) const { return find(ir::Op::anchor, x); }
  ir::NodeId log_sum_of(ir::NodeId x) const { return find(ir::Op::log_sum, x); }
  bool summed_here(ir::NodeId x) const { return owns(log_sum_of(x)); }

  const std::vector<Kept>& kept() const { return kept_; }
  /// Floats from one scratch row to the next.
  std::int64_t kept_stride() const { return (vocab_ + 63) / 64 * 64 + 64; }
  std::int64_t kept_floats() const { return static_cast<std::int64_t>(kept_.size()) * kept_stride(); }

 private:
  const ir::Node& node(ir::NodeId id) const { return plan_.loss.graph.node(id); }
  ir::NodeId find(ir::Op op, ir::NodeId x) const;
  void find_kept();

  const Plan& plan_;
  const Region& region_;
  std::int64_t vocab_;
  std::set<ir::NodeId> own_;
  std::vector<ir::NodeId> tensors_;
  std::vector<bool> from_sweeps_;
  std::vector<Kept> kept_;
};

}  // namespace lossc::cpu
