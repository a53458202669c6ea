#include "compiler/plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include "compiler/step_schedule.h"
#include "ir/build_graph.h"
#include "ir/differentiate.h"
#include "ir/simplify.h"
#include "lossc/error.h"

namespace lossc {

using ir::Graph;
using ir::no_node;
using ir::Node;
using ir::NodeId;
using ir::Op;
using ir::Space;

bool is_statistic(const Graph& graph, NodeId id) {
  const Node& n = graph.node(id);
  if (ir::is_sweep_reduction(n.op)) return n.space == Space::rows;
  return n.op == Op::pick && graph.node(n.in[0]).space == Space::element;
}

namespace {

// Walks an element expression; calls `row` for each operand in a smaller space and `leaf` for each element
// input.
void walk_element(const Graph& g, NodeId id, std::set<NodeId>& seen, const std::function<void(NodeId)>& row,
                  const std::function<void(NodeId)>& leaf) {
  const Node& n = g.node(id);
  if (n.space != Space::element) {
    if (n.space != Space::vocab) row(id);
    return;
  }
  if (!seen.insert(id).second) return;
  if (n.op == Op::input) return leaf(id);
  for (NodeId in : n.in) {
    if (in != no_node) walk_element(g, in, seen, row, leaf);
  }
}

// The anchor and log_sum nodes of a softmax argument, where the graph has them.
NodeId find_of(const Graph& g, Op op, NodeId x) {
  for (NodeId id = x + 1; id < g.size(); ++id) {
    if (g.node(id).op == op && g.node(id).in[0] == x) return id;
  }
  return no_node;
}

}  // namespace

std::vector<NodeId> element_inputs(const Graph& graph, const std::vector<NodeId>& roots) {
  std::set<NodeId> seen, inputs;
  for (NodeId root : roots) {
    walk_element(graph, root, seen, [](NodeId) {}, [&](NodeId leaf) { inputs.insert(leaf); });
  }
  return {inputs.begin(), inputs.end()};
}

std::vector<NodeId> row_operands(const Graph& graph, const std::vector<NodeId>& roots) {
  std::set<NodeId> seen, rows;
  for (NodeId root : roots)
    walk_element(graph, root, seen, [&](NodeId id) { rows.insert(id); }, [](NodeId) {});
  for (NodeId id : seen) {
    if (graph.node(id).op != Op::softmax) continue;
    for (Op op : {Op::anchor, Op::log_sum}) {
      if (NodeId found = find_of(graph, op, graph.node(id).in[0]); found != no_node) rows.insert(found);
    }
  }
  return {rows.begin(), rows.end()};
}

std::vector<NodeId> region_tensors(const Graph& graph, const Region& region) {
  std::set<NodeId> tensors(region.reads.begin(), region.reads.end());
  for (NodeId id : region.picks) tensors.insert(graph.node(id).in[0]);
  return {tensors.begin(), tensors.end()};
}

std::vector<bool> values_from_sweeps(const Graph& graph, const Region& region) {
  std::vector<bool> from(static_cast<std::size_t>(graph.size()), false);
  for (const Phase& phase : region.phases) {
    for (NodeId id : phase.statistics) from[static_cast<std::size_t>(id)] = true;
  }
  for (NodeId id = 0; id < graph.size(); ++id) {  // operands first
    for (NodeId in : graph.node(id).in) {
      if (in != no_node && graph.node(in).space == Space::rows && from[static_cast<std::size_t>(in)])
        from[static_cast<std::size_t>(id)] = true;
    }
  }
  return from;
}

namespace {

class Planner {
 public:
  Planner(ir::LossGraph loss, const Spec& spec) : spec_(spec) {
    plan_.loss = std::move(loss);
    plan_.gradient = spec.gradient_mode;
    complete_softmaxes();
    const auto size = static_cast<std::size_t>(g().size());
    epoch_.assign(size, 0);
    from_rows_.assign(size, false);
    operands_.resize(size);
  }

  Plan run() {
    find_needed();
    find_epochs();
    place_statistics();
    make_regions();
    make_steps();
    count_traffic();
    return std::move(plan_);
  }

 private:
  Graph& g() { return plan_.loss.graph; }
  const Node& node(NodeId id) { return g().node(id); }
  static std::size_t at(NodeId id) { return static_cast<std::size_t>(id); }

  // Every softmax that is evaluated needs its anchor and log_sum as nodes.
  void complete_softmaxes() {
    for (NodeId id = 0, end = g().size(); id < end; ++id) {
      const Node n = node(id);
      if (n.op == Op::softmax || n.op == Op::expect || n.op == Op::log_sum) {
        g().apply(Op::anchor, n.in[0]);
        g().apply(Op::log_sum, n.in[0]);
      }
    }
  }

  // What a node reads, as values of rows or smaller spaces: for a statistic, the row values its sweep uses.
  const std::vector<NodeId>& operands(NodeId id) {
    std::vector<NodeId>& list = operands_[at(id)];
    if (!list.empty()) return list;
    const Node n = node(id);
    std::set<NodeId> set;
    for (NodeId in : n.in) {
      if (in == no_node) continue;
      if (node(in).space == Space::element) {
        for (NodeId row : row_operands(g(), {in})) set.insert(row);
      } else {
        set.insert(in);
      }
    }
    if (n.op == Op::expect || n.op == Op::log_sum) set.insert(find_of(g(), Op::anchor, n.in[0]));
    list.assign(set.begin(), set.end());
    return list;
  }

  std::vector<NodeId> gradient_roots() {
    std::vector<NodeId> roots;
    if (plan_.gradient == GradientMode::none) return roots;
    for (const ir::DenseTerm& t : plan_.loss.dense) {
      roots.push_back(t.coefficient);
      if (node(t.basis).space == Space::element) {
        for (NodeId row : row_operands(g(), {t.basis})) roots.push_back(row);
      }
    }
    for (NodeId id : sparse_values()) roots.push_back(id);
    return roots;
  }

  std::vector<NodeId> sparse_values() {
    std::vector<NodeId> values;
    for (const ir::SparseTerm& t : plan_.loss.sparse) {
      values.push_back(t.index);
      values.push_back(t.value);
    }
    return values;
  }

  void mark(NodeId id, std::set<NodeId>& set) {
    if (!set.insert(id).second) return;
    for (NodeId in : operands(id)) mark(in, set);
    // A mean under a softmax divides by the sum of its exponentials.
    if (node(id).op == Op::expect) mark(find_of(g(), Op::log_sum, node(id).in[0]), set);
  }

  void find_needed() {
    for (NodeId id : gradient_roots()) mark(id, for_gradient_);
    std::set<NodeId> all = for_gradient_;
    for (const auto& list : {plan_.loss.scalars, plan_.loss.rows}) {
      for (const ir::NamedNode& named : list) mark(named.node, all);
    }
    mark(plan_.loss.active, all);
    mark(plan_.loss.live, all);
    needed_.assign(all.begin(), all.end());
  }

  // A value's epoch is the number of seams before it. A reduction over rows is known in the seam behind the
  // last statistic that it reads; reductions that follow it without another statistic are steps of the same
  // seam.
  void find_epochs() {
    std::vector<int> last_statistic(epoch_.size(), -1);
    for (NodeId id : needed_) {  // increasing ids: operands first
      int epoch = 0, last = -1;
      for (NodeId in : operands(id)) {
        epoch = std::max(epoch, epoch_[at(in)]);
        last = std::max(last, last_statistic[at(in)]);
      }
      if (ir::is_cross_reduction(node(id).op)) epoch = std::max(epoch, last + 1);
      if (is_statistic(g(), id)) last = std::max(last, epoch);
      epoch_[at(id)] = epoch;
      last_statistic[at(id)] = last;
      from_rows_[at(id)] = last >= 0;
    }
  }

  std::vector<NodeId> inputs_of(NodeId statistic) {
    std::vector<NodeId> roots;
    for (NodeId in : node(statistic).in) {
      if (in != no_node && node(in).space == Space::element) roots.push_back(in);
    }
    return element_inputs(g(), roots);
  }

  void place_statistics() {
    // Cross-row values that the gradient reads must be ready before the last region; so must what they read.
    std::set<NodeId> before_seam;
    int last = 0;
    for (NodeId id : needed_) {
      if (is_statistic(g(), id)) last = std::max(last, epoch_[at(id)]);
    }
    for (NodeId id : for_gradient_) last = std::max(last, epoch_[at(id)]);
    for (NodeId id : needed_) {
      const bool feeds = for_gradient_.count(id) > 0 || is_statistic(g(), id);
      if (feeds && ir::is_cross_reduction(node(id).op)) mark(id, before_seam);
      if (is_statistic(g(), id) && epoch_[at(id)] > 0) {
        for (NodeId in : operands(id)) {
          if (epoch_[at(in)] == epoch_[at(id)] && !is_statistic(g(), in)) mark(in, before_seam);
        }
      }
    }
    last_region_ = last;
    std::vector<std::set<NodeId>> read(at(last) + 1);
    auto place = [&](NodeId id, int region) {
      region_of_[id] = region;
      // A pick reads a line, not a row; it makes no pass.
      if (node(id).op != Op::pick) {
        for (NodeId in : inputs_of(id)) read[at(region)].insert(in);
      }
    };
    for (NodeId id : needed_) {
      if (is_statistic(g(), id) && before_seam.count(id) > 0) place(id, epoch_[at(id)]);
    }
    std::map<NodeId, int>
        behind;                  // the last region whose statistics a value of the same row is computed from
    for (NodeId id : needed_) {  // increasing ids: operands first
      int earliest = 0;
      if (!ir::is_cross_reduction(node(id).op) && node(id).op != Op::gather) {
        for (NodeId in : operands(id)) earliest = std::max(earliest, behind[in]);
      }
      behind[id] = earliest;
      if (!is_statistic(g(), id)) continue;
      if (region_of_.count(id) == 0) {
        earliest = std::max(earliest, epoch_[at(id)]);
        int chosen = last;
        const std::vector<NodeId> inputs = inputs_of(id);
        for (int region = last - 1; region >= earliest; --region) {
          const auto& have = read[at(region)];
          if (std::all_of(inputs.begin(), inputs.end(), [&](NodeId in) { return have.count(in) > 0; }))
            chosen = region;
        }
        place(id, chosen);
      }
      behind[id] = region_of_.at(id);
    }
    // An anchor belongs to the region that sums with it.
    for (NodeId id : needed_) {
      if (node(id).op != Op::log_sum) continue;
      region_of_[find_of(g(), Op::anchor, node(id).in[0])] = region_of_[id];
    }
  }

  // A sweep's anchors are found when its row values are computed already: only its own element code knows
  // them. Row values and other anchors that read one belong behind the sweep.
  bool late(NodeId user, NodeId anchor, int region) {
    if (node(anchor).op != Op::anchor) return false;
    const auto placed = region_of_.find(anchor);
    return placed != region_of_.end() && placed->second == region &&
           (!is_statistic(g(), user) || node(user).op == Op::anchor);
  }

  // How many sweeps of its region must be done before the value is known.
  int available(NodeId id, int region, std::map<NodeId, int>& memo) {
    if (auto it = memo.find(id); it != memo.end()) return it->second;
    int sweeps = 0;
    const bool statistic = is_statistic(g(), id);
    const auto placed = region_of_.find(id);
    if (!statistic || placed == region_of_.end() || placed->second == region) {
      if (!ir::is_cross_reduction(node(id).op) && node(id).op != Op::gather) {
        for (NodeId in : operands(id)) {
          sweeps = std::max(sweeps, available(in, region, memo) + (late(id, in, region) ? 1 : 0));
        }
      }
      if (statistic && node(id).op != Op::pick && node(id).op != Op::anchor) ++sweeps;
    }
    memo[id] = sweeps;
    return sweeps;
  }

  void make_regions() {
    plan_.regions.resize(at(last_region_) + 1);
    for (std::size_t r = 0; r < plan_.regions.size(); ++r) {
      Region& region = plan_.regions[r];
      std::map<NodeId, int> memo;
      std::set<NodeId> reads;
      for (NodeId id : needed_) {
        auto placed = region_of_.find(id);
        if (placed == region_of_.end() || placed->second != static_cast<int>(r)) continue;
        if (node(id).op == Op::pick) {
          region.picks.push_back(id);
          continue;
        }
        // Anchors are chosen before the sweep that uses them: phase 1 of those available after 0 sweeps.
        const int sweeps = available(id, static_cast<int>(r), memo);
        const std::size_t phase = at(node(id).op == Op::anchor ? sweeps : sweeps - 1);
        if (region.phases.size() <= phase) region.phases.resize(phase + 1);
        region.phases[phase].statistics.push_back(id);
        for (NodeId in : inputs_of(id)) reads.insert(in);
      }
      if (r + 1 == plan_.regions.size() && plan_.gradient != GradientMode::none) {
        region.emit = true;
        for (const ir::DenseTerm& t : plan_.loss.dense) {
          if (node(t.basis).space != Space::element) continue;
          for (NodeId in : element_inputs(g(), {t.basis})) reads.insert(in);
        }
      }
      region.reads.assign(reads.begin(), reads.end());
    }
    find_stored();
  }

  // A statistic is stored when something outside of its region reads it.
  void find_stored() {
    std::set<NodeId> stored;
    auto outside = [&](NodeId user, NodeId in) {
      if (!is_statistic(g(), in)) return false;
      auto it = region_of_.find(user);
      return it == region_of_.end() || it->second != region_of_.at(in);
    };
    for (NodeId id : needed_) {
      if (node(id).space == Space::rows && !is_statistic(g(), id)) continue;  // recomputed where it is used
      std::set<NodeId> leaves;
      for (NodeId in : operands(id)) collect_statistics(in, leaves);
      if (node(id).op == Op::expect) leaves.insert(find_of(g(), Op::log_sum, node(id).in[0]));
      for (NodeId in : leaves) {
        if (outside(id, in)) stored.insert(in);
      }
    }
    std::set<NodeId> leaves;
    for (const ir::NamedNode& output : plan_.loss.rows) collect_statistics(output.node, leaves);
    stored.insert(leaves.begin(), leaves.end());
    leaves.clear();
    for (NodeId id : gradient_roots()) collect_statistics(id, leaves);
    for (NodeId id : leaves) {
      if (region_of_.at(id) != last_region_) stored.insert(id);
    }
    for (NodeId id : stored) plan_.regions[at(region_of_.at(id))].stored.push_back(id);
  }

  // The statistics that a row value is computed from, without going through other rows.
  void collect_statistics(NodeId id, std::set<NodeId>& out) {
    std::set<NodeId> seen;
    collect_statistics(id, out, seen);
  }
  void collect_statistics(NodeId id, std::set<NodeId>& out, std::set<NodeId>& seen) {
    if (!seen.insert(id).second) return;
    if (is_statistic(g(), id)) {
      out.insert(id);
      return;
    }
    if (ir::is_cross_reduction(node(id).op) || node(id).op == Op::gather) return;
    for (NodeId in : operands(id)) collect_statistics(in, out, seen);
  }

  bool is_leaf(NodeId id) {
    const Op op = node(id).op;
    return op == Op::constant || op == Op::parameter || op == Op::input || op == Op::space_size;
  }

  void make_steps() {
    // What is materialised: reductions over rows, operands of gathers, results.
    std::set<NodeId> results;
    for (const auto& list : {plan_.loss.scalars, plan_.loss.rows}) {
      for (const ir::NamedNode& named : list) results.insert(named.node);
    }
    std::set<NodeId> materialised = results;
    for (NodeId id : needed_) {
      const Op op = node(id).op;
      if (ir::is_cross_reduction(op)) materialised.insert(id);
      if ((op == Op::gather || op == Op::all_reduce) && !is_leaf(node(id).in[0]))
        materialised.insert(node(id).in[0]);
    }
    // Values that a region reads; the rest is for the epilogue.
    std::set<NodeId> for_regions;
    for (NodeId id : needed_) {
      if (for_gradient_.count(id) > 0) for_regions.insert(id);
      if (!is_statistic(g(), id)) continue;
      std::set<NodeId> set;
      for (NodeId in : operands(id)) mark(in, set);
      for_regions.insert(set.begin(), set.end());
    }
    std::set<NodeId> rows_conditions;
    mark(plan_.loss.active, rows_conditions);
    mark(plan_.loss.live, rows_conditions);

    plan_.seams.resize(plan_.regions.size() - 1);
    std::map<int, std::vector<NodeId>> stages;  // 0: the prologue; i: the seam before region i; the epilogue
    const int epilogue = last_region_ + 1;
    for (NodeId id : needed_) {
      if (materialised.count(id) == 0) continue;
      int stage = epilogue;
      if (!from_rows_[at(id)]) {
        stage = 0;
      } else if (for_regions.count(id) > 0) {
        stage = epoch_[at(id)];
      }
      // A row result is computed anew wherever it is used, and written when all its statistics are there.
      if (results.count(id) > 0 && node(id).space == Space::rows) stage = epilogue;
      stages[stage].push_back(id);
    }
    for (const auto& [stage, values] : stages) {
      auto& list = stage == 0          ? plan_.prologue
                   : stage == epilogue ? plan_.epilogue
                                       : plan_.seams[at(stage) - 1];
      list = schedule_steps(g(), values,
                            [this](NodeId id) -> const std::vector<NodeId>& { return operands(id); });
    }
  }

  void count_traffic() {
    auto bytes_of = [&](NodeId input) {
      const std::string& name = g().symbol_of(input);
      DType dtype = spec_.logits_dtype;
      if (auto it = spec_.tensors.find(name); it != spec_.tensors.end() && it->second.dtype)
        dtype = *it->second.dtype;
      return static_cast<double>(dtype_size(dtype)) * static_cast<double>(spec_.vocab);
    };
    const double gradient_bytes =
        static_cast<double>(dtype_size(spec_.gradient_dtype)) * static_cast<double>(spec_.vocab);
    std::set<NodeId> distinct;
    for (const Region& region : plan_.regions) {
      plan_.passes += static_cast<int>(region.reads.size());
      for (NodeId in : region.reads) {
        plan_.bytes_per_row += bytes_of(in);
        distinct.insert(in);
      }
      int sweeps = 0;
      for (const Phase& phase : region.phases) {
        std::set<NodeId> reads;
        for (NodeId id : phase.statistics) {
          for (NodeId in : inputs_of(id)) reads.insert(in);
        }
        sweeps += static_cast<int>(reads.size());
      }
      if (region.emit) {
        std::vector<NodeId> bases;
        for (const ir::DenseTerm& t : plan_.loss.dense) bases.push_back(t.basis);
        sweeps += static_cast<int>(element_inputs(g(), bases).size());
      }
      plan_.extra_reads += std::max(0, sweeps - static_cast<int>(region.reads.size()));
    }
    for (NodeId in : distinct) {
      plan_.bound_passes += 1;
      plan_.bound_bytes_per_row += bytes_of(in);
    }
    if (plan_.gradient != GradientMode::none) {
      const int writes = plan_.gradient == GradientMode::accumulate ? 2 : 1;
      plan_.passes += writes;
      plan_.bound_passes += writes;
      plan_.bytes_per_row += writes * gradient_bytes;
      plan_.bound_bytes_per_row += writes * gradient_bytes;
    }
    // Each seam on the way to a value of rows costs one more read of the logits: no cache holds them all.
    int seams = 0;
    for (const auto& seam : plan_.seams) seams += !seam.empty();
    plan_.bound_passes += seams;
    plan_.bound_bytes_per_row += seams * bytes_of(plan_.loss.logits);
  }

  const Spec& spec_;
  Plan plan_;
  std::vector<NodeId> needed_;
  std::set<NodeId> for_gradient_;
  std::vector<int> epoch_;
  std::vector<bool> from_rows_;
  std::vector<std::vector<NodeId>> operands_;
  std::map<NodeId, int> region_of_;
  int last_region_ = 0;
};

}  // namespace

Plan plan_graph(ir::LossGraph loss, const Spec& spec) {
  return Planner(std::move(loss), spec).run();
}

Plan plan_spec(const Spec& spec, const LossRegistry& registry) {
  ir::LossGraph loss = ir::build_graph(spec, registry);
  if (spec.gradient_mode != GradientMode::none) ir::differentiate(loss);
  return plan_graph(ir::simplify(loss), spec);
}

}  // namespace lossc
