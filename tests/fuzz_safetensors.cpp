// Whatever the bytes, reading them ends in tensors that lie in memory, or in Error(io).
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "lossc/error.h"
#include "runtime/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    const auto file =
        lossc::SafetensorsFile::parse(std::string_view(reinterpret_cast<const char*>(data), size), "fuzz");
    std::size_t bytes = 0;
    volatile unsigned sum = 0;
    for (const auto& [name, tensor] : file.tensors()) {
      const auto* content = static_cast<const std::uint8_t*>(tensor.data);
      const std::size_t length = static_cast<std::size_t>(tensor.size()) * lossc::dtype_size(tensor.dtype);
      for (std::size_t i = 0; i < length; ++i) sum = sum + content[i];
      bytes += length;
    }
    if (bytes > size) std::abort();  // More tensor bytes than the input has: tensors overlap.
  } catch (const lossc::Error& error) {
    if (error.code() != lossc::ErrorCode::io) std::abort();
  }
  return 0;
}
