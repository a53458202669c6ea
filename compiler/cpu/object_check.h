// Object files are run: what is linked is what this backend writes, and nothing else.
#pragma once

#include <string_view>

namespace lossc::cpu {

/// Checks an object file of this machine before it is linked: its header, that every relocation lies inside
/// its section, is of a kind that the backend's code has and names a symbol of the object or a function on
/// the short list that code generators call (memcpy and its like), and that nothing runs by being loaded.
/// Throws Error(compile_failed) that says what was found.
void check_object(std::string_view bytes);

}  // namespace lossc::cpu
