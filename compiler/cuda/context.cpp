#include "compiler/cuda/context.h"

#include <fmt/format.h>

#include "lossc/error.h"

namespace lossc::cuda {

SourceContext::SourceContext(const Plan& p, const Layout& l, const Spec& s) : plan(p), layout(l), spec(s) {
  for (ir::NodeId id : plan_order(plan)) number.emplace(id, static_cast<int>(number.size()));
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    if (layout.tensors[i].kind == ir::Kind::index) index_tensor[layout.tensors[i].name] = static_cast<int>(i);
  }
}

std::string SourceContext::name(ir::NodeId id, std::string_view prefix) const {
  return fmt::format("{}{}", prefix, number.at(id));
}

DType SourceContext::dtype(ir::NodeId element_input) const {
  return layout.tensors[static_cast<std::size_t>(layout.tensor_of.at(element_input))].dtype;
}

std::string_view element_type(DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return "fp32";
    case DType::bf16:
      return "bf16";
    case DType::fp16:
      return "fp16";
    default:
      throw Error(ErrorCode::internal, fmt::format("no elements of type {}", dtype_name(dtype)));
  }
}

}  // namespace lossc::cuda
