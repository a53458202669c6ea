// What the source generators of the CUDA backend share: the plan, and short names for its nodes.
#pragma once

#include <map>
#include <string>

#include "compiler/layout.h"

namespace lossc::cuda {

struct SourceContext {
  SourceContext(const Plan& p, const Layout& l, const Spec& s);

  const Plan& plan;
  const Layout& layout;
  const Spec& spec;
  std::map<ir::NodeId, int> number;         ///< by order of use, so that names depend on the structure alone
  std::map<std::string, int> index_tensor;  ///< map -> the tensor that holds its indices

  const ir::Graph& graph() const { return plan.loss.graph; }
  const ir::Node& node(ir::NodeId id) const { return plan.loss.graph.node(id); }
  /// "v12"
  std::string name(ir::NodeId id, std::string_view prefix = "v") const;
  DType dtype(ir::NodeId element_input) const;
};

/// The device type of an element type: "bf16".
std::string_view element_type(DType dtype);

}  // namespace lossc::cuda
