// A plan drawn: its passes as a strip, and as a flow in which tensors of the logits' shape are rails beside
// the regions and seams.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace lossc::cli {

/// Both return an <svg> element, with classes of the page's style sheet.
std::string flow_drawing(const nlohmann::ordered_json& plan);
/// The passes in the order they run, one block each; "" when the plan does not say what regions read.
std::string pass_strip(const nlohmann::ordered_json& plan);

}  // namespace lossc::cli
