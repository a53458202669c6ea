#include "runtime/cache/entry.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <chrono>

#include "compiler/little_endian.h"
#include "lossc/error.h"

namespace lossc {
namespace {

constexpr std::string_view kMagic = "lossckrn";
constexpr std::uint32_t kFormat = 1;
// More than any header needs; a wrong size must not make a reader allocate without bound.
constexpr std::uint32_t kMaxHeader = 16U << 20;

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::io, why);
}

std::string digest_of(std::string_view bytes) {
  std::string digest(kEntryDigest, '\0');
  if (EVP_Digest(bytes.data(), bytes.size(), reinterpret_cast<unsigned char*>(digest.data()), nullptr,
                 EVP_sha256(), nullptr) != 1) {
    throw Error(ErrorCode::internal, "SHA-256 failed");
  }
  return digest;
}

}  // namespace

std::string encode_entry(const KeyFields& fields, const KernelImage& image) {
  using Json = nlohmann::ordered_json;
  const std::string key_bytes = fields.bytes();
  std::vector<std::pair<std::string, const std::string*>> sections = {{"key", &key_bytes}};
  for (const auto& [name, blob] : image.blobs) {
    if (name.empty() || name == "key" || name == "source" || name == "log") {
      throw Error(ErrorCode::internal, fmt::format("a blob of a kernel is named \"{}\"", name));
    }
    sections.emplace_back(name, &blob);
  }
  if (!image.source.empty()) sections.emplace_back("source", &image.source);
  if (!image.log.empty()) sections.emplace_back("log", &image.log);

  const auto now = std::chrono::system_clock::now().time_since_epoch();
  Json head = {{"key", fields.digest()},
               {"kind", image.kind},
               {"created", std::chrono::duration_cast<std::chrono::seconds>(now).count()},
               {"lossc", LOSSC_VERSION},
               {"info", image.info},
               {"sections", Json::array()}};
  std::size_t size = 0;
  for (const auto& [name, content] : sections) {
    head["sections"].push_back({{"name", name}, {"size", content->size()}});
    size += content->size();
  }
  const std::string header = head.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string file(kMagic);
  file.reserve(kEntryPrefix + header.size() + size + kEntryDigest);
  put<std::uint32_t>(file, kFormat);
  put<std::uint32_t>(file, static_cast<std::uint32_t>(header.size()));
  file += header;
  for (const auto& section : sections) file += *section.second;
  file += digest_of(file);
  if (header.size() > kMaxHeader || file.size() > static_cast<std::size_t>(kMaxEntryBytes)) {
    throw Error(ErrorCode::internal, fmt::format("a kernel of {} bytes is too large to keep", file.size()));
  }
  return file;
}

std::size_t header_size(std::string_view prefix, std::uint64_t file_size) {
  if (prefix.size() < kEntryPrefix || file_size < kEntryPrefix + kEntryDigest) refuse("it is too short");
  if (!prefix.starts_with(kMagic)) refuse("it does not begin as a kernel does");
  if (const auto format = get<std::uint32_t>(prefix, kMagic.size()); format != kFormat) {
    refuse(fmt::format("its format is {}, this version reads {}", format, kFormat));
  }
  const auto size = get<std::uint32_t>(prefix, kMagic.size() + sizeof(std::uint32_t));
  if (size > kMaxHeader || size > file_size - kEntryPrefix - kEntryDigest) refuse("it is truncated");
  return size;
}

EntryHead decode_head(std::string_view header, std::uint64_t file_size) {
  EntryHead head;
  std::uint64_t rest = file_size - kEntryPrefix - kEntryDigest - header.size();
  try {
    const nlohmann::json json = nlohmann::json::parse(header);
    head.key = json.at("key").get<std::string>();
    head.kind = json.at("kind").get<std::string>();
    head.library = json.at("lossc").get<std::string>();
    head.created = json.at("created").get<std::int64_t>();
    head.info = json.at("info");
    for (const auto& section : json.at("sections")) {
      head.sections.emplace_back(section.at("name").get<std::string>(),
                                 section.at("size").get<std::uint64_t>());
      if (head.sections.back().second > rest) refuse("it is truncated");
      rest -= head.sections.back().second;
    }
  } catch (const nlohmann::json::exception&) {
    refuse("its header is damaged");
  }
  if (rest != 0) refuse("it is longer than its header says");
  if (head.sections.empty() || head.sections.front().first != "key") refuse("its header is damaged");
  return head;
}

CacheEntry decode_entry(std::string_view file) {
  const std::size_t size = header_size(file, file.size());
  const std::string_view body = file.substr(0, file.size() - kEntryDigest);
  if (digest_of(body) != file.substr(body.size())) refuse("its checksum is wrong");
  CacheEntry entry;
  entry.head = decode_head(file.substr(kEntryPrefix, size), file.size());
  std::size_t offset = kEntryPrefix + size;
  for (const auto& [name, length] : entry.head.sections) {
    const std::string_view content = file.substr(offset, length);
    offset += length;
    if (name == "key") {
      entry.fields = KeyFields::parse(content);
      if (sha256_hex(content) != entry.head.key) refuse("its key is not that of its fields");
    } else if (name == "source") {
      entry.image.source = content;
    } else if (name == "log") {
      entry.image.log = content;
    } else {
      entry.image.blobs[name] = content;
    }
  }
  entry.image.kind = entry.head.kind;
  entry.image.info = entry.head.info;
  return entry;
}

}  // namespace lossc
