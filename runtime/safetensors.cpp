#include "runtime/safetensors.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "lossc/error.h"
#include "runtime/file.h"

namespace lossc {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

using nlohmann::json;

// The longest header that the reference implementation accepts.
constexpr std::uint64_t max_header = 100'000'000;
constexpr std::size_t prefix_size = 8;

constexpr std::array<std::pair<std::string_view, DType>, 8> dtype_names{{{"F32", DType::fp32},
                                                                         {"BF16", DType::bf16},
                                                                         {"F16", DType::fp16},
                                                                         {"F64", DType::fp64},
                                                                         {"I32", DType::i32},
                                                                         {"I64", DType::i64},
                                                                         {"U8", DType::u8},
                                                                         {"BOOL", DType::boolean}}};

[[noreturn]] void fail(const std::string& file, const std::string& what) {
  throw Error(ErrorCode::io, fmt::format("{}: {}", file, what));
}

[[noreturn]] void fail(const std::string& file, std::string_view tensor, const std::string& what) {
  fail(file, fmt::format("tensor '{}': {}", tensor, what));
}

// Parses the header's JSON and refuses what the format has no place for: a key twice in one object, deep
// nesting.
json parse_json(std::string_view text, const std::string& file) {
  std::vector<std::set<std::string>> keys;
  const auto check = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth > 3) fail(file, "its header is nested deeper than the format allows");
    if (event == json::parse_event_t::object_start) keys.emplace_back();
    if (event == json::parse_event_t::object_end) keys.pop_back();
    if (event == json::parse_event_t::key && !keys.back().insert(parsed.get<std::string>()).second) {
      fail(file, fmt::format("its header has the key '{}' twice", parsed.get<std::string>()));
    }
    return true;
  };
  try {
    return json::parse(text.begin(), text.end(), check);
  } catch (const json::exception& error) {
    fail(file, fmt::format("its header is not valid JSON: {}", error.what()));
  }
}

const json& member(const json& object, const char* key, const std::string& file, std::string_view tensor) {
  const auto found = object.find(key);
  if (found == object.end()) fail(file, tensor, fmt::format("'{}' is missing from its header entry", key));
  return *found;
}

DType read_dtype(const json& entry, const std::string& file, std::string_view tensor) {
  const json& name = member(entry, "dtype", file, tensor);
  if (name.is_string()) {
    for (const auto& [text, dtype] : dtype_names) {
      if (name.get_ref<const std::string&>() == text) return dtype;
    }
  }
  std::string allowed;
  for (const auto& [text, dtype] : dtype_names)
    allowed += fmt::format("{}{}", allowed.empty() ? "" : ", ", text);
  fail(file, tensor, fmt::format("dtype {} is not one of {}", name.dump(), allowed));
}

std::vector<std::int64_t> read_shape(const json& entry, const std::string& file, std::string_view tensor) {
  const json& list = member(entry, "shape", file, tensor);
  if (!list.is_array()) fail(file, tensor, "its shape is not a list");
  std::vector<std::int64_t> shape;
  // Zeros are left out of the product, so that no order of multiplying the dimensions overflows.
  std::int64_t product = 1;
  for (const json& dimension : list) {
    if (!dimension.is_number_unsigned() ||
        dimension.get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) {
      fail(file, tensor,
           fmt::format("the dimension {} in its shape is not a whole number in [0, 2^63)", dimension.dump()));
    }
    shape.push_back(dimension.get<std::int64_t>());
    if (shape.back() != 0 && __builtin_mul_overflow(product, shape.back(), &product)) {
      fail(file, tensor, fmt::format("its shape {} has more elements than 2^63", list.dump()));
    }
  }
  return shape;
}

struct Entry {
  std::string name;
  DType dtype;
  std::vector<std::int64_t> shape;
  std::uint64_t begin, end;
};

Entry read_entry(const std::string& name, const json& value, std::uint64_t data_size,
                 const std::string& file) {
  if (!value.is_object()) fail(file, name, "its header entry is not an object");
  Entry entry{name, read_dtype(value, file, name), read_shape(value, file, name), 0, 0};

  const json& offsets = member(value, "data_offsets", file, name);
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    fail(file, name, fmt::format("its data_offsets {} are not [begin, end]", offsets.dump()));
  }
  entry.begin = offsets[0].get<std::uint64_t>();
  entry.end = offsets[1].get<std::uint64_t>();
  if (entry.begin > entry.end || entry.end > data_size) {
    fail(file, name,
         fmt::format("its data_offsets [{}, {}] lie outside of the {} bytes of data that the file has",
                     entry.begin, entry.end, data_size));
  }

  std::uint64_t bytes = dtype_size(entry.dtype);
  for (const std::int64_t dimension : entry.shape) {
    if (__builtin_mul_overflow(bytes, static_cast<std::uint64_t>(dimension), &bytes)) {
      fail(file, name, "its shape has more bytes than a file can hold");
    }
  }
  if (bytes != entry.end - entry.begin) {
    fail(file, name,
         fmt::format("its data_offsets span {} bytes, but its dtype and shape need {}",
                     entry.end - entry.begin, bytes));
  }
  return entry;
}

// Every byte of the data belongs to exactly one tensor.
void check_cover(std::vector<Entry>& entries, std::uint64_t data_size, const std::string& file) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::uint64_t covered = 0;
  for (const Entry& entry : entries) {
    if (entry.begin < covered) fail(file, entry.name, "it overlaps another tensor");
    if (entry.begin > covered) {
      fail(file, fmt::format("the bytes [{}, {}) of its data belong to no tensor", covered, entry.begin));
    }
    covered = entry.end;
  }
  if (covered != data_size) {
    fail(file, fmt::format("the bytes [{}, {}) of its data belong to no tensor", covered, data_size));
  }
}

MetadataMap read_metadata(const json& value, const std::string& file) {
  if (!value.is_object()) fail(file, "__metadata__ is not an object");
  MetadataMap metadata;
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) fail(file, fmt::format("__metadata__: the value of '{}' is not a string", key));
    metadata.emplace(key, text.get<std::string>());
  }
  return metadata;
}

std::string_view safetensors_dtype(DType dtype) {
  for (const auto& [text, value] : dtype_names) {
    if (value == dtype) return text;
  }
  throw Error(ErrorCode::internal, "a dtype without a name in safetensors files");
}

// Calls `write(data, bytes)` for the elements of a tensor in row-major order, in the longest contiguous runs.
template <class Write>
void for_each_run(const TensorView& tensor, const Write& write) {
  if (tensor.size() == 0) return;
  const std::vector<std::int64_t> strides = tensor.full_strides();
  std::size_t outer = tensor.shape.size();
  std::int64_t run = 1;
  while (outer > 0 && (strides[outer - 1] == run || tensor.shape[outer - 1] == 1))
    run *= tensor.shape[--outer];

  const std::size_t element = dtype_size(tensor.dtype);
  const auto* base = static_cast<const std::byte*>(tensor.data);
  std::vector<std::int64_t> index(outer, 0);
  while (true) {
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < outer; ++i) offset += index[i] * strides[i];
    write(base + offset * static_cast<std::int64_t>(element), static_cast<std::size_t>(run) * element);
    std::size_t i = outer;
    while (i > 0 && ++index[i - 1] == tensor.shape[i - 1]) index[--i] = 0;
    if (i == 0) return;
  }
}

}  // namespace

const TensorView* SafetensorsFile::find(std::string_view name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

void SafetensorsFile::read_header(std::byte* bytes, std::size_t size, const std::string& name) {
  if (size < prefix_size) fail(name, fmt::format("it has {} bytes; a safetensors file has at least 8", size));
  std::uint64_t header = 0;
  std::memcpy(&header, bytes, prefix_size);
  if (header > max_header || header > size - prefix_size) {
    fail(name,
         fmt::format(
             "it says that its header has {} bytes, but {}; this is no safetensors file, or a damaged one",
             header,
             header > size - prefix_size ? fmt::format("the file has {}", size)
                                         : fmt::format("at most {} are allowed", max_header)));
  }
  const std::string_view text(reinterpret_cast<const char*>(bytes) + prefix_size, header);
  if (!text.starts_with('{')) fail(name, "its header does not begin with '{'; this is no safetensors file");
  // The parser takes a NUL byte for the end of its input.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
    fail(name, fmt::format("its header has a NUL byte at {}; headers are padded with spaces", nul));
  }
  const json entries_json = parse_json(text, name);

  std::byte* data = bytes + prefix_size + header;
  const std::uint64_t data_size = size - prefix_size - header;
  std::vector<Entry> entries;
  for (const auto& [key, value] : entries_json.items()) {
    if (key == "__metadata__") {
      metadata_ = read_metadata(value, name);
    } else {
      entries.push_back(read_entry(key, value, data_size, name));
    }
  }
  check_cover(entries, data_size, name);

  std::vector<std::shared_ptr<void>> copies;
  for (Entry& entry : entries) {
    void* begin = data + entry.begin;
    const std::uint64_t length = entry.end - entry.begin;
    if (reinterpret_cast<std::uintptr_t>(begin) % dtype_size(entry.dtype) != 0) {
      const auto copy = allocate_bytes(length);
      std::memcpy(copy.get(), begin, length);
      begin = copy.get();
      copies.push_back(copy);
    }
    tensors_.emplace(std::move(entry.name), TensorView{begin, entry.dtype, std::move(entry.shape), {}});
  }
  if (!copies.empty()) {
    copies.push_back(std::move(memory_));
    memory_ = std::make_shared<std::vector<std::shared_ptr<void>>>(std::move(copies));
  }
}

SafetensorsFile SafetensorsFile::parse(std::string_view bytes, const std::string& name) {
  SafetensorsFile file;
  const auto copy = allocate_bytes(bytes.size());
  std::memcpy(copy.get(), bytes.data(), bytes.size());
  file.memory_ = copy;
  file.read_header(copy.get(), bytes.size(), name);
  return file;
}

SafetensorsFile SafetensorsFile::read(const std::string& path) {
  const FileDescriptor descriptor = open_for_reading(path);
  const std::size_t size = descriptor.regular_size(path);
  if (size == 0) fail(path, "it is empty");
  void* address = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE, descriptor.get(), 0);
  if (address == MAP_FAILED) fail(path, fmt::format("cannot map it into memory: {}", std::strerror(errno)));

  SafetensorsFile file;
  file.memory_ = std::shared_ptr<void>(address, [size](void* mapping) { ::munmap(mapping, size); });
  file.read_header(static_cast<std::byte*>(address), size, path);
  return file;
}

void write_safetensors(const std::string& path, const TensorMap& tensors, const MetadataMap& metadata) {
  // Larger elements first: every tensor is then aligned to its element.
  std::vector<const TensorMap::value_type*> order;
  for (const auto& item : tensors) order.push_back(&item);
  std::sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    const auto size_a = dtype_size(a->second.dtype), size_b = dtype_size(b->second.dtype);
    return size_a != size_b ? size_a > size_b : a->first < b->first;
  });

  json header = json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::uint64_t offset = 0;
  for (const auto* item : order) {
    const auto& [name, tensor] = *item;
    if (name == "__metadata__") fail(path, "no tensor can have the name '__metadata__'");
    const std::uint64_t end = offset + static_cast<std::uint64_t>(tensor.size()) * dtype_size(tensor.dtype);
    header[name] = {
        {"dtype", safetensors_dtype(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception& error) {
    fail(path, fmt::format("a name or a text of the metadata cannot be written: {}", error.what()));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > max_header) fail(path, "the names and shapes are too long for a header");

  FileWriter writer(path);
  const std::uint64_t length = text.size();
  writer.write(&length, prefix_size);
  writer.write(text.data(), text.size());
  for (const auto* item : order) {
    for_each_run(item->second, [&](const std::byte* data, std::size_t bytes) { writer.write(data, bytes); });
  }
  writer.commit();
}

}  // namespace lossc
