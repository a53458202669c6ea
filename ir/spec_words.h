// The words of a spec that reader, writer and schema share.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lossc/spec.h"

namespace lossc::ir {

/// The dtypes of tensors of the logits' shape.
const std::vector<std::string>& element_dtypes();
DType to_element_dtype(std::string_view word);
std::string_view element_dtype_name(DType dtype);

const std::vector<std::string>& gradient_modes();
GradientMode to_gradient_mode(std::string_view word);
std::string_view gradient_mode_name(GradientMode mode);

/// Row outputs that need no child.
const std::vector<std::string>& batch_outputs();

}  // namespace lossc::ir
