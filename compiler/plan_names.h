// Short names for the values of a graph, so that its formulas read like mathematics.
//
// Promise: a value has one name, no two values share one, none is called like a tensor or parameter; names
// depend on the order of use alone.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ir/loss_graph.h"

namespace lossc {

/// `name = text`; a value that is its own name (`logits[labels]`) has no text.
struct Line {
  std::string name, text;
  bool helper = false;  ///< Not a value of its own, but part of the lines that follow.
  std::string joined() const { return text.empty() ? name : name + " = " + text; }
};

class PlanNames {
 public:
  /// `roots` are the values that will be printed: what several of them use gets a line of its own.
  PlanNames(const ir::Graph& graph, const std::vector<ir::NodeId>& roots);

  /// The node, unless it is a leaf, has this name from now on, or `name2`, `name3`, ... where it is taken.
  void bind(ir::NodeId id, std::string_view name);
  /// The same with a name by what the node is: m, s, p for the anchor, log_sum and softmax of a student, N
  /// for a count of rows, r1, r2, ... for values of rows, ...
  void bind(ir::NodeId id);
  /// The node gets a line and this name (or one by what it is) where it is first used, however short it is.
  void prefer(ir::NodeId id, std::string_view name = {});
  /// The nodes that the roots need, operands first.
  std::vector<ir::NodeId> reached() const;
  bool named(ir::NodeId id) const { return names_.count(id) > 0; }

  /// Lines for the operands that these values share with others or that are too long to stand inside of a
  /// formula, those not yet shown.
  std::vector<Line> operands(const std::vector<ir::NodeId>& ids);
  /// The name, or else the formula.
  std::string text(ir::NodeId id) const;
  /// The formula. A softmax is written with its anchor and log_sum where they have names.
  std::string definition(ir::NodeId id) const;
  Line line(ir::NodeId id) const;

  /// True for a value of the vocabulary that reads tensors but not the logits.
  bool is_teacher(ir::NodeId element) const;

 private:
  std::string stem(ir::NodeId id) const;
  const ir::Graph& graph_;
  std::vector<int> uses_;
  std::map<ir::NodeId, std::string> names_, preferred_;
  std::set<std::string, std::less<>> taken_;
};

/// Prefers names for what a reader knows: conditions of rows (counts, guards), transformed logits and
/// softmaxes.
void name_concepts(PlanNames& names, const ir::LossGraph& loss);

}  // namespace lossc
