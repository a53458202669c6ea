#include "compiler/kernel_key.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <algorithm>

#include "compiler/little_endian.h"
#include "lossc/error.h"

namespace lossc {

KeyFields& KeyFields::add(std::string name, std::string value) {
  if (name.empty() || find(name) != nullptr) {
    throw Error(ErrorCode::internal, fmt::format("key field \"{}\" is empty or there already", name));
  }
  fields_.push_back({std::move(name), std::move(value)});
  return *this;
}

KeyFields& KeyFields::add_unknown(std::string name) {
  add(std::move(name), "");
  fields_.back().known = false;
  return *this;
}

const KeyField* KeyFields::find(std::string_view name) const {
  const auto it = std::find_if(fields_.begin(), fields_.end(), [&](const auto& f) { return f.name == name; });
  return it == fields_.end() ? nullptr : &*it;
}

bool KeyFields::complete() const {
  return std::all_of(fields_.begin(), fields_.end(), [](const KeyField& field) { return field.known; });
}

std::string KeyFields::bytes() const {
  std::string bytes;
  for (const KeyField& field : fields_) {
    put<std::uint32_t>(bytes, static_cast<std::uint32_t>(field.name.size()));
    put<std::uint64_t>(bytes, field.value.size());
    bytes += field.name + field.value;
  }
  return bytes;
}

KeyFields KeyFields::parse(std::string_view bytes) {
  constexpr std::size_t frame = sizeof(std::uint32_t) + sizeof(std::uint64_t);
  KeyFields result;
  while (!bytes.empty()) {
    if (bytes.size() < frame) throw Error(ErrorCode::io, "key fields end too early");
    const std::uint64_t name = get<std::uint32_t>(bytes, 0);
    const auto value = get<std::uint64_t>(bytes, sizeof(std::uint32_t));
    bytes.remove_prefix(frame);
    if (name > bytes.size() || value > bytes.size() - name) {
      throw Error(ErrorCode::io, "a key field is longer than what is there");
    }
    std::string field(bytes.substr(0, name));
    if (field.empty() || result.find(field) != nullptr) {
      throw Error(ErrorCode::io, "a key field has no name or is there twice");
    }
    result.add(std::move(field), std::string(bytes.substr(name, value)));
    bytes.remove_prefix(name + value);
  }
  return result;
}

std::string KeyFields::digest() const {
  for (const KeyField& field : fields_) {
    if (!field.known) {
      throw Error(ErrorCode::internal, fmt::format("the key field \"{}\" is not known here", field.name));
    }
  }
  return sha256_hex(bytes());
}

std::string sha256_hex(std::string_view bytes) {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  if (EVP_Digest(bytes.data(), bytes.size(), digest, &size, EVP_sha256(), nullptr) != 1) {
    throw Error(ErrorCode::internal, "SHA-256 failed");
  }
  std::string hex;
  for (unsigned int i = 0; i < size; ++i) hex += fmt::format("{:02x}", digest[i]);
  return hex;
}

}  // namespace lossc
