// What several verbs take: a spec, and run-time parameters.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lossc/program.h"
#include "lossc/spec.h"

namespace lossc::cli {

/// The spec in a file; "-" is standard input. Throws Error(invalid_spec | io), naming the file.
Spec load_spec(const std::string& path);

/// `--set NAME=VALUE`, in order. Throws Error(invalid_argument) for what is no assignment of a number.
std::vector<std::pair<std::string, double>> parse_assignments(const std::vector<std::string>& texts);

/// The value of every parameter: the spec's, replaced where it is set. Throws Error(invalid_argument) for a
/// name that the spec does not have, with the nearest, and for a value out of range.
std::map<std::string, double> parameter_values(
    const std::vector<ParameterInfo>& known, const std::vector<std::pair<std::string, double>>& assignments);

}  // namespace lossc::cli
