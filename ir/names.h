// Names in messages: what is a legal name, how to print one that is not, and which known name was probably
// meant.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lossc::ir {

/// The longest name: it bounds messages, and nobody types more.
inline constexpr std::size_t max_name_length = 128;

/// True for [A-Za-z_][A-Za-z0-9_]* of at most max_name_length characters.
bool is_name(std::string_view text);

/// The text in double quotes for a message: control characters and bytes that are not UTF-8 escaped, long
/// text cut.
std::string in_quotes(std::string_view text);

/// As `in_quotes` without the quotes, and cut in the middle at about `limit` bytes.
std::string printable(std::string_view text, std::size_t limit);

/// `a, b, c`; of a long list the first 32 and how many are left.
std::string comma_list(const std::vector<std::string>& items);

/// The known name nearest to `found` by edit distance (a swap of neighbours counts once, case counts nothing
/// extra unless all else is equal), or "" when none is near: at most half of the longer name's characters may
/// differ.
std::string nearest_name(std::string_view found, const std::vector<std::string>& known);

/// `; did you mean "epsilon_low"?` to append to a message, or "" when no known name is near.
std::string did_you_mean(std::string_view found, const std::vector<std::string>& known);

}  // namespace lossc::ir
