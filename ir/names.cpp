#include "ir/names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace lossc::ir {
namespace {

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
char lower(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

// Bytes of the well-formed UTF-8 sequence at the front of `text`; 0 when there is none.
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  const std::size_t length = lead < 0x80   ? 1
                             : lead < 0xC2 ? 0
                             : lead < 0xE0 ? 2
                             : lead < 0xF0 ? 3
                             : lead < 0xF5 ? 4
                                           : 0;
  if (length == 0 || length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  if (length < 3) return length;
  const bool overlong = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xF0 && byte(1) < 0x90);
  const bool outside = (lead == 0xED && byte(1) > 0x9F) || (lead == 0xF4 && byte(1) > 0x8F);
  return overlong || outside ? 0 : length;
}

// Each element is one printable piece of the text: a character, or the escape of one.
std::vector<std::string> pieces(std::string_view text, std::size_t most) {
  std::vector<std::string> out;
  while (!text.empty() && out.size() < most) {
    const std::size_t length = utf8_length(text);
    const auto first = static_cast<unsigned char>(text[0]);
    if (length == 0 || first < 0x20 || first == 0x7F) {
      out.push_back(fmt::format("\\x{:02x}", first));
      text.remove_prefix(1);
    } else {
      out.emplace_back(text.substr(0, length));
      text.remove_prefix(length);
    }
  }
  return out;
}

// Optimal string alignment: insertions, deletions, substitutions and swaps of neighbours.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = lower(a[i - 1]) == lower(b[j - 1]) ? 0 : 1;
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + change});
      if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) && lower(a[i - 2]) == lower(b[j - 1])) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

}  // namespace

bool is_name(std::string_view text) {
  return !text.empty() && text.size() <= max_name_length && is_letter(text[0]) &&
         std::all_of(text.begin(), text.end(), [](char c) { return is_letter(c) || is_digit(c); });
}

std::string printable(std::string_view text, std::size_t limit) {
  std::string_view tail;
  if (text.size() > limit) {
    tail = text.substr(text.size() - limit / 3);
    // The tail starts at a character, not inside one.
    while (!tail.empty() && (static_cast<unsigned char>(tail[0]) & 0xC0) == 0x80) tail.remove_prefix(1);
    text = text.substr(0, limit - limit / 3);
    while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0x80) != 0) text.remove_suffix(1);
  }
  std::string out;
  for (const std::string& piece : pieces(text, text.size())) out += piece;
  if (!tail.empty()) {
    out += "...";
    for (const std::string& piece : pieces(tail, tail.size())) out += piece;
  }
  return out;
}

std::string in_quotes(std::string_view text) {
  constexpr std::size_t longest = 64;
  std::string out = "\"";
  std::size_t shown = 0;
  for (const std::string& piece : pieces(text, longest)) {
    if (piece == "\"" || piece == "\\") out += '\\';
    out += piece;
    ++shown;
  }
  if (shown == longest && text.size() > longest) out += "...";
  return out + "\"";
}

std::string comma_list(const std::vector<std::string>& items) {
  constexpr std::size_t most = 32;
  if (items.size() <= most) return fmt::format("{}", fmt::join(items, ", "));
  return fmt::format("{} and {} more", fmt::join(items.begin(), items.begin() + most, ", "),
                     items.size() - most);
}

std::string nearest_name(std::string_view found, const std::vector<std::string>& known) {
  constexpr std::size_t longest =
      128;  // A text this long is no misspelt name, and the distance costs its square.
  if (found.empty() || found.size() > longest) return "";
  const std::string* best = nullptr;
  std::size_t best_distance = 0;
  for (const std::string& name : known) {
    if (name.empty() || name.size() > longest) continue;
    const std::size_t distance = edit_distance(found, name);
    if (2 * distance > std::max(found.size(), name.size())) continue;
    if (best == nullptr || distance < best_distance || (distance == best_distance && name < *best)) {
      best = &name;
      best_distance = distance;
    }
  }
  return best == nullptr ? "" : *best;
}

std::string did_you_mean(std::string_view found, const std::vector<std::string>& known) {
  const std::string name = nearest_name(found, known);
  return name.empty() ? "" : fmt::format("; did you mean {}?", in_quotes(name));
}

}  // namespace lossc::ir
