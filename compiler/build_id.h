// Which build of a shared library this process runs: distributions replace libraries without a new version.
#pragma once

#include <string>

namespace lossc {

/// The GNU build-id, in hex, of the loaded library or program that holds `address`; "none" when it has none.
std::string build_id_of(const void* address);

}  // namespace lossc
