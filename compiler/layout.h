// Where every value of a plan lives at run time: the indices that generated code and the runtime share.
//
// Order is that of first use in the plan, so that two specs that differ in names alone have the same layout.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compiler/plan.h"

namespace lossc {

/// A tensor of the caller, or its fallback. Element and row tensors are addressed by row, others by position.
struct TensorSlot {
  std::string name;
  ir::Space space = ir::Space::rows;
  ir::Kind kind = ir::Kind::real;
  DType dtype = DType::fp32;  ///< As kernels read it: indices are i32, conditions u8.
  bool required = true;
  double fallback = 0;
};

struct Layout {
  std::vector<TensorSlot> tensors;      ///< Inputs, then "output.*" rows, then "grad_logits".
  std::map<ir::NodeId, int> tensor_of;  ///< input node -> tensor
  std::map<ir::NodeId, std::vector<int>>
      outputs_of;                   ///< row result -> tensors: two outputs may simplify to one value
  int gradient = -1;                ///< tensor index, or -1
  std::vector<ir::NodeId> buffers;  ///< Materialised values that are no scalars: one float array each.
  std::map<ir::NodeId, int> buffer_of;
  std::vector<ir::NodeId> scalars;  ///< Materialised scalars: one float each.
  std::map<ir::NodeId, int> scalar_of;
  std::vector<std::string> parameters;  ///< Run-time parameters in the order kernels read them.
  std::map<ir::NodeId, int> parameter_of;
  std::vector<std::string> maps;  ///< Index maps that segment steps walk.

  int map_index(const std::string& name) const;
};

Layout make_layout(const Plan& plan, const Spec& spec);

/// Every node that the plan computes, operands first, in the order of use: two plans that differ in names
/// alone have the same order.
std::vector<ir::NodeId> plan_order(const Plan& plan);

/// All of a plan that generated code depends on, without names: on one machine, equal texts mean equal
/// kernels.
std::string canonical_text(const Plan& plan, const Layout& layout, const Spec& spec);

}  // namespace lossc
