// What doctor tells of the CUDA backend.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace lossc::cli {

/// {"headers", "driver", "devices", "nvrtc"}.
nlohmann::ordered_json doctor_cuda();

/// The same for a person: labels and texts, of one or more lines.
std::vector<std::pair<std::string, std::string>> doctor_cuda_lines(const nlohmann::ordered_json& found);

}  // namespace lossc::cli
