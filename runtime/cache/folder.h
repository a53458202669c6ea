// A cache folder as the file system has it: who may write to it is checked before anything in it is believed,
// since what it holds is run.
#pragma once

#include <sys/stat.h>

#include <optional>
#include <string>

#include "runtime/file.h"

namespace lossc {

/// What a file was when it was looked at.
struct FileIdentity {
  dev_t device = 0;
  ino_t inode = 0;
  timespec modified = {};
  off_t size = 0;

  static FileIdentity of(const struct stat& status);
  bool operator==(const FileIdentity& other) const;
};

class CacheFolder {
 public:
  /// `readonly`: never written to; the administrator (root) may own it too.
  CacheFolder(std::string path, bool readonly) : path_(std::move(path)), readonly_(readonly) {}

  const std::string& path() const { return path_; }
  bool readonly() const { return readonly_; }

  /// The subfolder that entries of this layout live in; none when it is not there. Throws Error(io) when it
  /// cannot be used: it is a symbolic link, of another user, writable for others, not readable.
  std::optional<FileDescriptor> open() const;
  /// The same, made where it is missing. Throws Error(io).
  FileDescriptor make() const;

  /// Throws Error(io) that says why a file must not be believed: no ordinary file, of another user, writable
  /// for others.
  void check_file(const struct stat& status) const;

 private:
  FileDescriptor open_checked(int parent, const std::string& name, const std::string& full) const;
  std::string complaint(const struct stat& status) const;

  std::string path_;
  bool readonly_;
};

/// "good", "does not exist yet", or what speaks against the folder.
std::string folder_state(const std::string& path);

/// The name of the layout's subfolder: another layout gets another.
inline constexpr const char* kLayoutFolder = "v1";

}  // namespace lossc
