// Code that goes to the driver.
#pragma once

#include <string>

namespace lossc::cuda {

/// Whether `image` is PTX or a cubin all of whose parts lie inside it. Throws Error(io) that says what is
/// wrong: given less than an image says that it holds, the driver reads past its end.
void check_image(const std::string& image);

}  // namespace lossc::cuda
