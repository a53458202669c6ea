// What names a kernel: everything its code depends on, in named fields, and their digest.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lossc {

/// One thing that generated code depends on.
struct KeyField {
  std::string name;
  std::string value;
  bool known =
      true;  ///< false: this build or machine cannot tell (no LLVM, no NVRTC); only for people's eyes.
};

/// An ordered list of fields. Equal lists, and only those, have equal bytes and so equal digests. Never put a
/// size that varies from batch to batch, a path, a time, a device's number or a host's name into one.
class KeyFields {
 public:
  /// Throws Error(internal) for a name that is empty or there already.
  KeyFields& add(std::string name, std::string value);
  /// A field whose value cannot be told here. Fields with one have no digest.
  KeyFields& add_unknown(std::string name);

  const std::vector<KeyField>& fields() const { return fields_; }
  /// Null when there is no such field.
  const KeyField* find(std::string_view name) const;
  bool complete() const;

  /// Each field framed by the lengths of its name (u32) and value (u64), little endian.
  std::string bytes() const;
  /// The inverse of bytes(); throws Error(io) for what is none.
  static KeyFields parse(std::string_view bytes);
  /// SHA-256 of bytes(), 64 hex digits. Throws Error(internal) when a field is unknown.
  std::string digest() const;

 private:
  std::vector<KeyField> fields_;
};

/// SHA-256 in 64 hex digits.
std::string sha256_hex(std::string_view bytes);

}  // namespace lossc
