// A plan as one page that needs nothing else: no script, no font, no image from elsewhere.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace lossc::cli {

/// From the JSON of `lossc plan --json`; what it does not hold is left out of the page. Beyond that JSON,
/// `math` and `spec_json` are texts shown at the end, and a child's `formula` and `summary` stand in the
/// table of losses.
std::string plan_page(const nlohmann::ordered_json& plan);

}  // namespace lossc::cli
