// Part three: the last batch goes through files and the lossc command, and must give the same bits.
#pragma once

#include <filesystem>
#include <string>

#include "policy_training.h"

namespace demo {

enum class ReplayResult { same, different, no_command };

/// The lossc command of the build that this program belongs to.
std::filesystem::path lossc_command();

/// Writes spec.json, batch.safetensors and expected.safetensors to `folder`, runs `lossc run` on them and
/// compares loss and gradient bit by bit; prints what it does and finds.
ReplayResult replay(const std::filesystem::path& command, const std::filesystem::path& folder,
                    const std::string& spec, PolicyResult& result);

}  // namespace demo
