#include "tools/arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "ir/names.h"
#include "ir/spec_parameters.h"
#include "lossc/error.h"
#include "runtime/file.h"

namespace lossc::cli {

Spec load_spec(const std::string& path) {
  if (path != "-") return Spec::parse_file(path);
  try {
    return Spec::parse(read_text(path));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_spec) throw;
    throw Error(error.code(), fmt::format("standard input: {}", error.what()));
  }
}

std::vector<std::pair<std::string, double>> parse_assignments(const std::vector<std::string>& texts) {
  std::vector<std::pair<std::string, double>> assignments;
  for (const std::string& text : texts) {
    const std::size_t equals = text.find('=');
    double value = 0;
    const char* begin = text.data() + (equals == std::string::npos ? text.size() : equals + 1);
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(begin, end, value);
    if (equals == std::string::npos || equals == 0 || begin == end || stop != end || error != std::errc{}) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("--set {}: allowed is NAME=NUMBER, for example --set policy.epsilon_low=0.1",
                              ir::in_quotes(text)));
    }
    assignments.emplace_back(text.substr(0, equals), value);
  }
  return assignments;
}

std::map<std::string, double> parameter_values(
    const std::vector<ParameterInfo>& known, const std::vector<std::pair<std::string, double>>& assignments) {
  std::map<std::string, double> values;
  std::vector<std::string> names;
  for (const ParameterInfo& parameter : known) {
    values[parameter.name] = parameter.value;
    names.push_back(parameter.name);
  }
  for (const auto& [name, value] : assignments) {
    const auto parameter = std::find_if(
        known.begin(), known.end(), [&, &wanted = name](const ParameterInfo& p) { return p.name == wanted; });
    if (parameter == known.end()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("the spec names no parameter {}{}; it names: {}", ir::in_quotes(name),
                              ir::did_you_mean(name, names), names.empty() ? "none" : ir::comma_list(names)));
    }
    if (!ir::in_range(value, parameter->range)) {
      throw Error(ErrorCode::invalid_argument, fmt::format("{} = {} is refused; allowed: {}", name, value,
                                                           ir::range_text(parameter->range)));
    }
    values[name] = value;
  }
  return values;
}

}  // namespace lossc::cli
