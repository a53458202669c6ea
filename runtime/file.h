// Files read and written whole, with errors that name them.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace lossc {

/// An open file, closed at the end of its life.
class FileDescriptor {
 public:
  explicit FileDescriptor(int descriptor) : descriptor_(descriptor) {}
  FileDescriptor(FileDescriptor&& other) noexcept : descriptor_(other.descriptor_) { other.descriptor_ = -1; }
  FileDescriptor& operator=(FileDescriptor&&) = delete;
  ~FileDescriptor();

  int get() const { return descriptor_; }
  /// Throws Error(io) when this is no ordinary file; `path` is for the message.
  std::size_t regular_size(const std::string& path) const;
  /// Closes now; false when the system reports that something was not written.
  bool close();

 private:
  int descriptor_;
};

/// Throws Error(io) that says why.
FileDescriptor open_for_reading(const std::string& path);

/// The whole content; "-" is standard input. Throws Error(io).
std::string read_text(const std::string& path);

/// Memory aligned for any element and vector access; zero bytes give a valid pointer too.
/// Throws Error(invalid_argument) when the machine has not enough.
std::shared_ptr<std::byte> allocate_bytes(std::size_t size);

/// Writes a file that appears under its name only when it is complete: commit() renames a temporary file in
/// the same folder. A path that already names something else than an ordinary file (a pipe, a device) is
/// written to directly. All functions throw Error(io).
class FileWriter {
 public:
  explicit FileWriter(std::string path);
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;
  /// Removes what was written, unless it was committed.
  ~FileWriter();

  void write(const void* data, std::size_t size);
  void commit();

 private:
  void flush();
  [[noreturn]] void fail(const std::string& what) const;

  std::string path_, temporary_;  ///< `temporary_` is empty when writing directly.
  FileDescriptor file_;
  std::vector<std::byte> buffer_;
  bool committed_ = false;
};

/// Writes a text file in the way of FileWriter.
void write_text(const std::string& path, std::string_view text);

}  // namespace lossc
