#include "runtime/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>

#include "lossc/error.h"

namespace lossc {
namespace {

constexpr std::size_t buffer_size = std::size_t{1} << 20;

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw Error(ErrorCode::io, fmt::format("{}: {}", path, what));
}

bool is_special(const std::string& path) {
  struct stat status = {};
  return ::stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode) && !S_ISDIR(status.st_mode);
}

// Where a name leads when it is a symbolic link, so that replacing the file keeps the link.
std::string resolved(const std::string& path) {
  std::error_code error;
  const std::filesystem::path target = std::filesystem::canonical(path, error);
  return error ? path : target.string();
}

FileDescriptor open_for_writing(const std::string& path, const std::string& temporary) {
  const int flags = temporary.empty() ? O_WRONLY | O_CLOEXEC : O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
  const int descriptor = ::open((temporary.empty() ? path : temporary).c_str(), flags, 0666);
  if (descriptor < 0) fail(path, fmt::format("cannot write: {}", std::strerror(errno)));
  return FileDescriptor(descriptor);
}

std::string temporary_name(const std::string& path) {
  if (is_special(path)) return "";
  std::random_device random;
  return fmt::format("{}.{:08x}{:08x}.tmp", path, random(), random());
}

}  // namespace

FileDescriptor::~FileDescriptor() {
  close();
}

bool FileDescriptor::close() {
  const int descriptor = descriptor_;
  descriptor_ = -1;
  return descriptor < 0 || ::close(descriptor) == 0;
}

std::size_t FileDescriptor::regular_size(const std::string& path) const {
  struct stat status = {};
  if (::fstat(descriptor_, &status) != 0) fail(path, std::strerror(errno));
  if (S_ISDIR(status.st_mode)) fail(path, "is a folder");
  if (!S_ISREG(status.st_mode)) fail(path, "is no ordinary file");
  return static_cast<std::size_t>(status.st_size);
}

FileDescriptor open_for_reading(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) fail(path, fmt::format("cannot open: {}", std::strerror(errno)));
  return FileDescriptor(descriptor);
}

std::string read_text(const std::string& path) {
  const bool standard_input = path == "-";
  FileDescriptor opened = standard_input ? FileDescriptor(-1) : open_for_reading(path);
  const int descriptor = standard_input ? STDIN_FILENO : opened.get();
  std::string text;
  std::vector<char> buffer(buffer_size);
  while (true) {
    const ssize_t count = ::read(descriptor, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0)
      fail(standard_input ? "standard input" : path, fmt::format("cannot read: {}", std::strerror(errno)));
    if (count == 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

std::shared_ptr<std::byte> allocate_bytes(std::size_t size) {
  constexpr std::size_t alignment = 64;
  const std::size_t rounded = (size / alignment + 1) * alignment;
  void* memory = rounded < size ? nullptr : std::aligned_alloc(alignment, rounded);
  if (memory == nullptr)
    throw Error(ErrorCode::invalid_argument, fmt::format("not enough memory for {} bytes", size));
  return {static_cast<std::byte*>(memory), [](std::byte* address) { std::free(address); }};
}

FileWriter::FileWriter(std::string path)
    : path_(resolved(path)), temporary_(temporary_name(path_)), file_(open_for_writing(path_, temporary_)) {
  buffer_.reserve(buffer_size);
}

FileWriter::~FileWriter() {
  if (!committed_ && !temporary_.empty()) ::unlink(temporary_.c_str());
}

void FileWriter::fail(const std::string& what) const {
  lossc::fail(path_, fmt::format("{}: {}", what, std::strerror(errno)));
}

void FileWriter::write(const void* data, std::size_t size) {
  const auto* bytes = static_cast<const std::byte*>(data);
  while (size > 0) {
    const std::size_t part = std::min(size, buffer_size - buffer_.size());
    buffer_.insert(buffer_.end(), bytes, bytes + part);
    bytes += part;
    size -= part;
    if (buffer_.size() == buffer_size) flush();
  }
}

void FileWriter::flush() {
  std::size_t done = 0;
  while (done < buffer_.size()) {
    const ssize_t count = ::write(file_.get(), buffer_.data() + done, buffer_.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) fail("cannot write");
    done += static_cast<std::size_t>(count);
  }
  buffer_.clear();
}

void FileWriter::commit() {
  flush();
  if (!temporary_.empty() && ::fsync(file_.get()) != 0) fail("cannot write to the disk");
  if (!file_.close()) fail("cannot write");
  if (!temporary_.empty() && ::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot replace");
  committed_ = true;
}

void write_text(const std::string& path, std::string_view text) {
  FileWriter writer(path);
  writer.write(text.data(), text.size());
  writer.commit();
}

}  // namespace lossc
