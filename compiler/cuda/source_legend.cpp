#include "compiler/cuda/source_legend.h"

#include <fmt/format.h>

#include "compiler/cuda/context.h"
#include "compiler/plan_description.h"

namespace lossc::cuda {

using ir::NodeId;

namespace {

std::string line(const std::string& name, const std::string& text) {
  return fmt::format("//   {:<14} {}\n", name, text);
}

}  // namespace

std::string source_legend(const Plan& plan, const Layout& layout, const Spec& spec) {
  const SourceContext context(plan, layout, spec);
  const PlanDescription described = describe(plan, spec);
  const auto name = [&](NodeId id) {
    const auto found = described.names.find(id);
    return found == described.names.end() ? context.name(id) : found->second;
  };
  std::string text =
      "// What the names below stand for: tensors and parameters of the spec, values of `lossc plan`.\n";
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    const TensorSlot& slot = layout.tensors[i];
    text += line(fmt::format("tensors[{}]", i), slot.required ? slot.name : slot.name + "?");
  }
  for (std::size_t i = 0; i < layout.buffers.size(); ++i) {
    text += line(fmt::format("buffers[{}]", i), name(layout.buffers[i]));
  }
  for (std::size_t i = 0; i < layout.scalars.size(); ++i) {
    text += line(fmt::format("scalar({})", i), name(layout.scalars[i]));
  }
  for (std::size_t i = 0; i < layout.parameters.size(); ++i) {
    text += line(fmt::format("parameter({})", i), layout.parameters[i]);
  }
  for (std::size_t i = 0; i < plan.loss.scalars.size(); ++i) {
    text += line(fmt::format("results[{}]", i), plan.loss.scalars[i].name);
  }
  for (NodeId id : plan_order(plan)) {
    const ir::Op op = context.node(id).op;
    if (op == ir::Op::constant || op == ir::Op::parameter || op == ir::Op::input) continue;
    text += line(context.name(id), name(id));
  }
  return text + "\n";
}

}  // namespace lossc::cuda
