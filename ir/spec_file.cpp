// Specs from files, and specs over the built-in losses.
#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "ir/names.h"
#include "ir/spec_reader.h"
#include "lossc/error.h"
#include "lossc/loss.h"
#include "lossc/spec.h"

namespace lossc {
namespace {

std::string read_text(const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorCode::io, fmt::format("{}: cannot read the spec: {}", ir::printable(path, 300), why));
  };
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) refuse("it is a folder");
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) refuse(errno != 0 ? std::strerror(errno) : "it cannot be opened");
  // One byte more than a spec may have is enough for the reader to say so.
  std::string text(ir::max_spec_bytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) refuse("reading failed");
  text.resize(static_cast<std::size_t>(in.gcount()));
  return text;
}

}  // namespace

Spec Spec::parse(std::string_view json) {
  return parse(json, LossRegistry::builtin());
}

Spec Spec::parse_file(const std::string& path) {
  return parse_file(path, LossRegistry::builtin());
}

Spec Spec::parse_file(const std::string& path, const LossRegistry& registry) {
  const std::string text = read_text(path);
  try {
    return parse(text, registry);
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", ir::printable(path, 300), error.what()));
  }
}

}  // namespace lossc
