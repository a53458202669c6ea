// One kernel in one file, which says itself what it is:
//
//   "lossckrn" | u32 format | u32 header size | header (JSON) | sections, one behind the other | SHA-256
//
// The digest is that of all bytes before it. The first section is "key": the bytes of the key's fields, whose
// SHA-256 is the key. Then come the blobs by name, "source" and "log".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "compiler/kernel_image.h"
#include "compiler/kernel_key.h"

namespace lossc {

inline constexpr std::int64_t kMaxEntryBytes = std::int64_t{256} << 20;
inline constexpr std::size_t kEntryPrefix = 16;  ///< magic, format, header size
inline constexpr std::size_t kEntryDigest = 32;

/// What the header says.
struct EntryHead {
  std::string key, kind;
  std::string library;       ///< the version of lossc that wrote it
  std::int64_t created = 0;  ///< seconds since 1970
  nlohmann::json info = nlohmann::json::object();
  std::vector<std::pair<std::string, std::uint64_t>> sections;  ///< name, size
};

struct CacheEntry {
  EntryHead head;
  KeyFields fields;
  KernelImage image;
};

/// The file's bytes. Throws Error(internal) for blobs named as another section, or an image too large.
std::string encode_entry(const KeyFields& fields, const KernelImage& image);

/// All of it, checked: sizes against the file's, the digest, and the key against its fields. Throws Error(io)
/// that says what is wrong.
CacheEntry decode_entry(std::string_view file);

/// The size of the header that a file's first kEntryPrefix bytes announce. Throws Error(io).
std::size_t header_size(std::string_view prefix, std::uint64_t file_size);
/// The header alone; its sizes are checked against the file's, the digest is not. Throws Error(io).
EntryHead decode_head(std::string_view header, std::uint64_t file_size);

}  // namespace lossc
