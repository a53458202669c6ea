#include "runtime/cache/archive.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>

#include "lossc/error.h"

namespace lossc {
namespace {

constexpr std::size_t kBlock = 512;

// Where the fields of a ustar header lie.
constexpr std::size_t kName = 0, kNameSize = 100, kMode = 100, kUser = 108, kGroup = 116, kSize = 124,
                      kTime = 136, kSum = 148, kSumSize = 8, kType = 156, kMagic = 257;

void put_text(std::string& block, std::size_t offset, const std::string& text) {
  std::copy(text.begin(), text.end(), block.begin() + static_cast<std::ptrdiff_t>(offset));
}

unsigned checksum(std::string block) {
  put_text(block, kSum, std::string(kSumSize, ' '));
  unsigned sum = 0;
  for (char c : block) sum += static_cast<unsigned char>(c);
  return sum;
}

std::string tar_header(const std::string& name, std::size_t size, std::int64_t time) {
  std::string block(kBlock, '\0');
  put_text(block, kName, name);
  put_text(block, kMode, "0000600");
  put_text(block, kUser, "0000000");
  put_text(block, kGroup, "0000000");
  put_text(block, kSize, fmt::format("{:011o}", size));
  put_text(block, kTime, fmt::format("{:011o}", time));
  put_text(block, kType, "0");
  put_text(block, kMagic,
           std::string("ustar\0"
                       "00",
                       8));
  put_text(block, kSum, fmt::format("{:06o}", checksum(block)) + std::string("\0 ", 2));
  return block;
}

std::uint64_t octal(const std::string& block, std::size_t offset, std::size_t size) {
  const std::size_t begin = block.find_first_not_of(' ', offset);
  std::uint64_t value = 0;
  const char* first = block.data() + std::min(begin, offset + size);
  if (std::from_chars(first, block.data() + offset + size, value, 8).ec != std::errc{}) {
    throw Error(ErrorCode::io, "a header in it is damaged");
  }
  return value;
}

/// A file read in order.
class Reader {
 public:
  explicit Reader(const std::string& path)
      : file_(path == "-" ? FileDescriptor(::dup(STDIN_FILENO)) : open_for_reading(path)) {}

  std::string read(std::size_t size) {
    std::string bytes(size, '\0');
    std::size_t done = 0;
    while (done < size) {
      const ssize_t count = ::read(file_.get(), bytes.data() + done, size - done);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) throw Error(ErrorCode::io, fmt::format("cannot read: {}", std::strerror(errno)));
      if (count == 0) throw Error(ErrorCode::io, "it ends too early");
      done += static_cast<std::size_t>(count);
    }
    return bytes;
  }

 private:
  FileDescriptor file_;
};

std::size_t padding(std::size_t size) {
  return (kBlock - size % kBlock) % kBlock;
}

void import_from(Reader& reader, DiskCache& cache, ImportResult& result) {
  while (true) {
    const std::string header = reader.read(kBlock);
    if (header.find_first_not_of('\0') == std::string::npos) return;
    if (header.compare(kMagic, 5, "ustar") != 0) throw Error(ErrorCode::io, "it is no tar file");
    if (octal(header, kSum, kSumSize) != checksum(header))
      throw Error(ErrorCode::io, "a header in it is damaged");
    const std::string name(header.c_str(), ::strnlen(header.c_str(), kNameSize));
    const std::uint64_t size = octal(header, kSize, 12);
    if (size > static_cast<std::uint64_t>(kMaxEntryBytes)) {
      throw Error(ErrorCode::io, fmt::format("{} in it is larger than any kernel", name));
    }
    const std::string content = reader.read(size);
    reader.read(padding(size));
    const bool is_entry = (header[kType] == '0' || header[kType] == '\0') && name.ends_with(".lossc");
    if (!is_entry) continue;  // a folder, or what tar keeps beside files
    CacheEntry entry;
    try {
      entry = decode_entry(content);
    } catch (const Error& error) {
      result.refused.push_back(fmt::format("{}: {}", name, error.what()));
      continue;
    }
    if (cache.load(entry.head.key).entry) {
      ++result.present;
    } else {
      cache.store_bytes(entry.head.key, content);
      ++result.added;
    }
  }
}

}  // namespace

ExportResult export_entries(const DiskCache& cache, const std::vector<StoredEntry>& entries,
                            const std::string& path, const std::function<void(std::size_t)>& progress) {
  ExportResult result;
  FileWriter writer(path);
  const auto write = [&](const std::string& bytes) { writer.write(bytes.data(), bytes.size()); };
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const StoredEntry& entry = entries[i];
    if (progress) progress(i);
    std::string bytes;
    std::int64_t created = 0;
    try {
      const FileDescriptor file(::open(entry.path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
      if (file.get() < 0) throw Error(ErrorCode::io, std::strerror(errno));
      bytes = read_entry_file(file.get(), &cache.folder(), nullptr);
      const CacheEntry decoded = decode_entry(bytes);
      if (decoded.head.key != entry.key) throw Error(ErrorCode::io, "it is the entry of another key");
      created = std::max<std::int64_t>(decoded.head.created, 0);
    } catch (const Error& error) {
      result.refused.push_back(fmt::format("{}: {}", entry.key, error.what()));
      continue;
    }
    write(tar_header(entry.path.substr(cache.folder().path().size() + 1), bytes.size(), created));
    write(bytes);
    write(std::string(padding(bytes.size()), '\0'));
    ++result.entries;
    result.bytes += static_cast<std::int64_t>(bytes.size());
  }
  write(std::string(2 * kBlock, '\0'));
  writer.commit();
  return result;
}

ImportResult import_entries(DiskCache& cache, const std::string& path) {
  ImportResult result;
  try {
    Reader reader(path);
    import_from(reader, cache, result);
  } catch (const Error& error) {
    const std::string text = error.what();
    throw Error(ErrorCode::io, fmt::format("{}{}; {} entries were added before",
                                           text.starts_with(path) ? "" : path + ": ", text, result.added));
  }
  return result;
}

}  // namespace lossc
