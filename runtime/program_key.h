// What names a program's kernels on a device.
#pragma once

#include <string>

#include "compiler/kernel_key.h"
#include "compiler/layout.h"

namespace lossc {

/// The fields of the key, for "cpu" and "interpreter". Where the CPU backend is not in this build, the fields
/// that only LLVM can tell are unknown. Throws Error(unsupported) for another device.
KeyFields program_key(const Plan& plan, const Layout& layout, const Spec& spec, const std::string& device);

/// One line that says what the kernels compute: "gspo + z_loss, bf16, vocab 131072".
std::string program_title(const Spec& spec);

}  // namespace lossc
