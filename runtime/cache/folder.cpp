#include "runtime/cache/folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "lossc/error.h"

namespace lossc {
namespace {

constexpr mode_t kPrivateFolder = 0700;
constexpr int kOpenFolder = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorCode::io, fmt::format("{} {}", path, why));
}

// mkdir -p; folders that are there stay as they are.
void make_folders(const std::string& path) {
  for (std::size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
    const std::string part = path.substr(0, end);
    if (::mkdir(part.c_str(), kPrivateFolder) != 0 && errno != EEXIST) {
      // A folder above that may not be written to can be there all the same (EROFS, EACCES).
      const int reason = errno;
      struct stat status = {};
      if (::stat(part.c_str(), &status) != 0) {
        refuse(part, fmt::format("cannot be made: {}", std::strerror(reason)));
      }
    }
    if (end == std::string::npos) return;
  }
}

}  // namespace

FileIdentity FileIdentity::of(const struct stat& status) {
  return {status.st_dev, status.st_ino, status.st_mtim, status.st_size};
}

bool FileIdentity::operator==(const FileIdentity& other) const {
  return device == other.device && inode == other.inode && modified.tv_sec == other.modified.tv_sec &&
         modified.tv_nsec == other.modified.tv_nsec && size == other.size;
}

std::string CacheFolder::complaint(const struct stat& status) const {
  if (status.st_uid != ::geteuid() && !(readonly_ && status.st_uid == 0)) {
    return fmt::format("belongs to another user (uid {})", status.st_uid);
  }
  if ((status.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    return fmt::format("can be written to by others (mode {:04o}); chmod go-w makes it usable",
                       status.st_mode & 07777U);
  }
  return "";
}

void CacheFolder::check_file(const struct stat& status) const {
  if (!S_ISREG(status.st_mode)) throw Error(ErrorCode::io, "it is no ordinary file");
  if (const std::string why = complaint(status); !why.empty()) throw Error(ErrorCode::io, "it " + why);
}

FileDescriptor CacheFolder::open_checked(int parent, const std::string& name, const std::string& full) const {
  const int descriptor = ::openat(parent, name.c_str(), kOpenFolder);
  if (descriptor < 0) {
    const int reason = errno;
    struct stat status = {};
    if (reason == ENOENT) return FileDescriptor(-1);
    if (::fstatat(parent, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0) {
      if (S_ISLNK(status.st_mode)) refuse(full, "is a symbolic link; name the folder that it leads to");
      if (!S_ISDIR(status.st_mode)) refuse(full, "is no folder");
    }
    refuse(full, fmt::format("cannot be opened: {}", std::strerror(reason)));
  }
  FileDescriptor folder(descriptor);
  struct stat status = {};
  if (::fstat(descriptor, &status) != 0) {
    refuse(full, fmt::format("cannot be looked at: {}", std::strerror(errno)));
  }
  if (const std::string why = complaint(status); !why.empty()) refuse(full, why);
  return folder;
}

std::optional<FileDescriptor> CacheFolder::open() const {
  const FileDescriptor root = open_checked(AT_FDCWD, path_, path_);
  if (root.get() < 0) return std::nullopt;
  FileDescriptor layout = open_checked(root.get(), kLayoutFolder, path_ + "/" + kLayoutFolder);
  if (layout.get() < 0) return std::nullopt;
  return layout;
}

FileDescriptor CacheFolder::make() const {
  if (readonly_) throw Error(ErrorCode::internal, "a read-only cache folder is written to");
  if (std::optional<FileDescriptor> there = open()) return std::move(*there);
  make_folders(path_);
  const FileDescriptor root = open_checked(AT_FDCWD, path_, path_);
  if (root.get() < 0) refuse(path_, "vanished while it was made");
  if (::mkdirat(root.get(), kLayoutFolder, kPrivateFolder) != 0 && errno != EEXIST) {
    refuse(path_, fmt::format("cannot be written to: {}", std::strerror(errno)));
  }
  FileDescriptor layout = open_checked(root.get(), kLayoutFolder, path_ + "/" + kLayoutFolder);
  if (layout.get() < 0) refuse(path_, "vanished while it was made");
  return layout;
}

std::string folder_state(const std::string& path) {
  try {
    CacheFolder(path, false).open();
  } catch (const Error& error) {
    const std::string text = error.what();
    return text.substr(text.find(' ', path.size()) + 1);
  }
  struct stat status = {};
  if (::stat(path.c_str(), &status) != 0) return "does not exist yet";
  return ::access(path.c_str(), W_OK | X_OK) == 0 ? "good" : "cannot be written to";
}

}  // namespace lossc
