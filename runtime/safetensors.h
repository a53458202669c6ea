// Files of named tensors (the safetensors format): 8 bytes of header length, a JSON header, the tensors'
// bytes.
//
// A file is checked in full before anything of it is handed out: the header's length and JSON (no key twice),
// dtypes, shapes (no overflow), and offsets that cover the data exactly, without overlap or hole.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "lossc/tensor.h"

namespace lossc {

using TensorMap = std::map<std::string, TensorView, std::less<>>;
using MetadataMap = std::map<std::string, std::string, std::less<>>;

/// The tensors of one file. Copies share the memory, which lives as long as the last of them.
class SafetensorsFile {
 public:
  /// Maps the file privately: writing to a tensor changes this process's pages and never the file. Tensors
  /// that are not aligned to their element are copied. Throws Error(io) that names the file and what is wrong
  /// with it.
  static SafetensorsFile read(const std::string& path);

  /// The same from memory, which is copied; `name` stands for the file in messages.
  static SafetensorsFile parse(std::string_view bytes, const std::string& name);

  const TensorMap& tensors() const { return tensors_; }
  /// nullptr when the file has no such tensor.
  const TensorView* find(std::string_view name) const;
  const MetadataMap& metadata() const { return metadata_; }

 private:
  SafetensorsFile() = default;
  /// Fills in tensors and metadata from `size` bytes at `bytes`, which `memory_` keeps alive.
  void read_header(std::byte* bytes, std::size_t size, const std::string& name);

  TensorMap tensors_;
  MetadataMap metadata_;
  std::shared_ptr<void> memory_;
};

/// Writes the tensors (with any strides) to `path`: whole or not at all, by a temporary file in the same
/// folder that takes the name at the end. Something that is no ordinary file (a pipe, a device) is written to
/// directly. Throws Error(io) that names the file.
void write_safetensors(const std::string& path, const TensorMap& tensors, const MetadataMap& metadata = {});

}  // namespace lossc
