#include "compiler/cuda/step_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "compiler/cuda/value_printer.h"
#include "lossc/error.h"

namespace lossc::cuda {

using ir::NodeId;
using ir::Op;
using ir::Space;

namespace {

/// Steps that share a kernel. Maps stand before a reduction of the same positions, and behind the sums of
/// segments that they go on from; without either they are a kernel of their own.
struct Group {
  Space domain = Space::scalar;
  std::vector<const Step*> maps;
  const Step* fold = nullptr;  // a reduction, or sums of segments
  std::vector<const Step*> tail;
};

class StepGenerator {
 public:
  StepGenerator(const SourceContext& context, StepSource& source) : c_(context), source_(source) {}

  void generate(const Group& group, const std::string& name, bool last, int& tickets) {
    StepKernel kernel;
    kernel.name = name;
    kernel.space = group.domain;
    const bool reduces = group.fold != nullptr && group.fold->kind == Step::Kind::reduce;
    const bool has_tail = last || !group.tail.empty() || reduces;
    std::string body;
    const char* function = "scalar_step";
    if (group.fold != nullptr) kernel.values = static_cast<int>(group.fold->values.size());
    if (reduces) {
      kernel.kind = StepKernel::Kind::reduce;
      function = "reduce_step";
      body = fold(*group.fold, group.domain, group.maps);
    } else if (group.fold != nullptr) {
      kernel.kind = StepKernel::Kind::segment;
      function = "segment_step";
      body = fold(*group.fold, c_.graph().map(group.fold->map).from, {}) + store(*group.fold) +
             map(group.maps, group.domain) +
             fmt::format("  static constexpr int kMap = {};\n  static constexpr bool kMaps = {};\n",
                         c_.layout.map_index(group.fold->map), !group.maps.empty());
    } else if (!group.maps.empty()) {
      kernel.kind = StepKernel::Kind::map;
      function = "map_step";
      body = map(group.maps, group.domain);
    }
    if (has_tail) kernel.ticket = tickets++;
    source_.text += fmt::format(
        "struct {0}_values {{\n  static constexpr int kSpace = {1}, kTicket = {2}, kValues = {3};\n"
        "  static constexpr bool kTail = {4};\n{5}{6}}};\n"
        "extern \"C\" __global__ void __launch_bounds__(kStepThreads) {0}(const __grid_constant__ Args a) "
        "{{\n"
        "  begin_kernel();\n  {7}<{0}_values>(a);\n}}\n\n",
        name, static_cast<int>(kernel.space), kernel.ticket, kernel.values, has_tail, body, tail(group, last),
        function);
    source_.kernels.push_back(kernel);
  }

 private:
  ValuePrinter printer(const std::string& position, Space space) const {
    return ValuePrinter(
        c_, position, space,
        [this, position](NodeId id) {
          const std::string stored = fmt::format("a.buffers[{}][{}]", c_.layout.buffer_of.at(id), position);
          return c_.node(id).kind == ir::Kind::index ? fmt::format("static_cast<int>({})", stored) : stored;
        },
        "    ");
  }
  static std::string real(const SourceContext& c, NodeId id, const std::string& v) {
    return c.node(id).kind == ir::Kind::real ? v : fmt::format("static_cast<float>({})", v);
  }

  // Stores the values of maps; what is printed behind them takes them from there.
  void maps(ValuePrinter& values, const std::vector<const Step*>& steps,
            std::map<NodeId, std::string>& made) const {
    values.known = known(made);
    for (const Step* step : steps) {
      for (NodeId id : step->values) {
        const std::string computed = is_statistic(c_.graph(), id) ? values.value(id) : values.compute(id);
        made[id] = computed;
        const std::string v = real(c_, id, computed);
        if (auto outputs = c_.layout.outputs_of.find(id);
            c_.layout.buffer_of.count(id) == 0 && outputs != c_.layout.outputs_of.end()) {
          for (int tensor : outputs->second) {
            values.line(fmt::format("*reinterpret_cast<float*>(address(a.tensors[{}], i)) = {};", tensor, v));
          }
        } else {
          values.line(fmt::format("a.buffers[{}][i] = {};", c_.layout.buffer_of.at(id), v));
        }
      }
    }
  }

  std::string map(const std::vector<const Step*>& steps, Space domain) const {
    ValuePrinter values = printer("i", domain);
    std::map<NodeId, std::string> made;
    maps(values, steps, made);
    return "  LOSSC_INLINE void map(const Args& a, i64 i) {\n" + values.statements() + "  }\n";
  }

  // The operands of a step's reductions at a position of `from`, and how they are reduced.
  std::string fold(const Step& step, Space from, const std::vector<const Step*>& before) const {
    ValuePrinter values = printer("i", from);
    std::map<NodeId, std::string> made;
    maps(values, before, made);
    std::string folds;
    int k = 0;
    for (NodeId id : step.values) {
      const ir::Node& n = c_.node(id);
      values.line(fmt::format("v[{}] = {};", k, values.value(n.in[0])));
      const bool min = n.op == Op::reduce_min || n.op == Op::segment_min;
      const bool max = n.op == Op::reduce_max || n.op == Op::segment_max;
      if (min || max) folds += fmt::format("k == {} ? Fold::{} : ", k, min ? "min" : "max");
      ++k;
    }
    return "  LOSSC_INLINE void values(const Args& a, i64 i, float* v) {\n" + values.statements() + "  }\n" +
           fmt::format("  static __device__ constexpr Fold fold_of(int k) {{ return {}Fold::sum; }}\n",
                       folds);
  }

  std::string store(const Step& step) const {
    std::string text = "  LOSSC_INLINE void store(const Args& a, i64 s, int k, float v) {\n";
    for (std::size_t k = 0; k < step.values.size(); ++k) {
      text +=
          fmt::format("    if (k == {}) a.buffers[{}][s] = v;\n", k, c_.layout.buffer_of.at(step.values[k]));
    }
    return text + "  }\n";
  }

  std::string tail(const Group& group, bool last) const {
    ValuePrinter values = printer("0", Space::scalar);
    std::map<NodeId, std::string> made;
    values.known = known(made);
    const auto store = [&](NodeId id, const std::string& v) {
      values.line(fmt::format("a.head.scalars[{}] = {};", c_.layout.scalar_of.at(id), v));
    };
    if (group.fold != nullptr && group.fold->kind == Step::Kind::reduce) {
      int k = 0;
      for (NodeId id : group.fold->values) {
        made[id] = fmt::format("v[{}]", k++);
        store(id, made[id]);
      }
    }
    for (const Step* step : group.tail) {
      for (NodeId id : step->values) {
        made[id] = values.compute(id);
        store(id, real(c_, id, made[id]));
      }
    }
    if (last) {
      int k = 0;
      for (const ir::NamedNode& result : c_.plan.loss.scalars) {
        values.line(fmt::format("if (a.results[{0}]) *a.results[{0}] = {1};", k++,
                                real(c_, result.node, values.value(result.node))));
      }
    }
    return "  LOSSC_INLINE void tail(const Args& a, const float* v) {\n" + values.statements() + "  }\n";
  }

  // Where a printer finds what its kernel has computed already.
  static std::function<std::string(NodeId)> known(const std::map<NodeId, std::string>& made) {
    return [&made](NodeId id) {
      const auto found = made.find(id);
      return found == made.end() ? std::string() : found->second;
    };
  }

  const SourceContext& c_;
  StepSource& source_;
};

// Whether a value reads, at another position than its own, one that the steps compute. `seen` is left out.
bool gathers(const SourceContext& c, NodeId id, const std::set<NodeId>& made, std::set<NodeId>& seen) {
  if (!seen.insert(id).second) return false;
  const ir::Node& n = c.node(id);
  return std::any_of(n.in.begin(), n.in.end(), [&](NodeId in) {
    if (in == ir::no_node) return false;
    if (made.count(in) > 0) return n.op == Op::gather;
    return gathers(c, in, made, seen);
  });
}

// Whether a step can go on where the group's kernel stands: at the same positions, with what one thread or
// block computed there itself.
bool joins(const SourceContext& c, const Group& group, const Step& step) {
  if (group.domain != step.domain || !group.tail.empty() || step.kind == Step::Kind::segment) return false;
  if (group.fold != nullptr && (group.fold->kind == Step::Kind::reduce || step.kind == Step::Kind::reduce))
    return false;
  std::set<NodeId> made, seen;
  for (const Step* map : group.maps) made.insert(map->values.begin(), map->values.end());
  if (group.fold != nullptr) made.insert(group.fold->values.begin(), group.fold->values.end());
  return std::none_of(step.values.begin(), step.values.end(),
                      [&](NodeId id) { return gathers(c, id, made, seen); });
}

}  // namespace

StepSource step_source(const SourceContext& context, const std::vector<Step>& steps, const std::string& name,
                       bool last, int& tickets) {
  std::vector<Group> groups;
  for (const Step& step : steps) {
    if (step.domain == Space::scalar) {
      if (groups.empty()) groups.emplace_back();
      groups.back().tail.push_back(&step);
      continue;
    }
    if (groups.empty() || !joins(context, groups.back(), step))
      groups.push_back({step.domain, {}, nullptr, {}});
    Group& group = groups.back();
    if (step.kind == Step::Kind::map) {
      group.maps.push_back(&step);
    } else {
      group.fold = &step;
    }
  }
  if (groups.empty() && last && !context.plan.loss.scalars.empty()) groups.emplace_back();
  StepSource source;
  StepGenerator generator(context, source);
  for (std::size_t i = 0; i < groups.size(); ++i) {
    generator.generate(groups[i], fmt::format("{}_{}", name, i), last && i + 1 == groups.size(), tickets);
  }
  return source;
}

}  // namespace lossc::cuda
