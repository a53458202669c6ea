#include "tools/html_text.h"

#include <algorithm>

namespace lossc::cli {
namespace {

using Json = nlohmann::ordered_json;

bool is_start(char c) {
  return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
}

// The byte position of character `index`.
std::size_t byte_of(std::string_view text, std::size_t index) {
  std::size_t position = 0;
  for (; position < text.size(); ++position) {
    if (is_start(text[position]) && index-- == 0) break;
  }
  return position;
}

}  // namespace

std::string escape(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&':
        result += "&amp;";
        break;
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '"':
        result += "&quot;";
        break;
      case '\'':
        result += "&#39;";
        break;
      default:
        result += c;
    }
  }
  return result;
}

std::size_t length(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), is_start));
}

std::vector<std::string> wrap(std::string_view text, std::size_t columns, std::size_t lines) {
  std::vector<std::string> result;
  while (length(text) > columns && result.size() + 1 < lines) {
    const std::size_t limit = byte_of(text, columns);
    std::size_t end = text.substr(0, limit).find_last_of(" ,");
    // A line of less than half the width reads worse than a broken word.
    end = end == std::string_view::npos || end < limit / 2 ? limit : end + 1;
    result.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
    // What follows on is indented.
    if (result.size() == 1 && columns > 8) columns -= 2;
  }
  if (length(text) > columns) {
    result.push_back(std::string(text.substr(0, byte_of(text, columns - 1))) + "\u2026");
  } else if (!text.empty() || result.empty()) {
    result.emplace_back(text);
  }
  return result;
}

const Json& member(const Json& object, const char* key) {
  static const Json null;
  if (!object.is_object()) return null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

std::string text_of(const Json& value) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  return value.dump();
}

std::vector<std::string> lines_of(const Json& value) {
  if (value.is_null()) return {};
  std::vector<std::string> result;
  if (value.is_array()) {
    for (const Json& item : value) {
      for (std::string& line : lines_of(item)) result.push_back(std::move(line));
    }
    return result;
  }
  if (value.is_object()) {
    for (const char* key : {"text", "values", "statistics", "name"}) {
      if (const Json& inner = member(value, key); !inner.is_null()) return lines_of(inner);
    }
  }
  return {text_of(value)};
}

}  // namespace lossc::cli
