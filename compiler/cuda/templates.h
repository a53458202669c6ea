// The files of templates/, embedded at build time.
#pragma once

#include <string_view>

namespace lossc::cuda {

/// The text of a file of templates/; throws Error(internal) for another name.
std::string_view template_text(std::string_view file);

}  // namespace lossc::cuda
