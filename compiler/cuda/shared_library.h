// Shared libraries that are opened at run time: which file one came from and which build it is.
#pragma once

#include <string>

namespace lossc::cuda {

/// An open library. It is never closed: what it handed out may be in use anywhere.
struct SharedLibrary {
  void* handle = nullptr;  ///< Null where opening failed; `failure` then says why.
  std::string path;        ///< The file, as the loader calls it.
  std::string failure;

  explicit operator bool() const { return handle != nullptr; }
  void* symbol(const char* name) const;
};

/// Opens a file or searches for a soname as dlopen does. With `only_loaded` it finds a library alone that is
/// in the process already.
SharedLibrary open_library(const std::string& name, bool only_loaded = false);

/// Closes a library that turned out to be of no use.
void close_library(SharedLibrary& library);

/// The ELF build-id in hexadecimal, or, for a library without one, a digest of its file.
std::string build_id(const SharedLibrary& library);

}  // namespace lossc::cuda
