// Text in pages: escaping, wrapping, and reading a plan's JSON without insisting on any key.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace lossc::cli {

/// The text with &, <, >, " and ' as entities.
std::string escape(std::string_view text);

/// Characters, not bytes.
std::size_t length(std::string_view text);

/// Lines of at most `columns` characters, broken behind spaces, operators and commas; at most `lines` of
/// them, the last one then ending in an ellipsis.
std::vector<std::string> wrap(std::string_view text, std::size_t columns, std::size_t lines);

/// The value under a key, or null.
const nlohmann::ordered_json& member(const nlohmann::ordered_json& object, const char* key);

/// A string, or what else stands there in short; "" for null.
std::string text_of(const nlohmann::ordered_json& value);

/// The lines that describe a value: a string is one; a list those of its items; an object those of its
/// `text`, `values` or `statistics`, or its `name`.
std::vector<std::string> lines_of(const nlohmann::ordered_json& value);

}  // namespace lossc::cli
