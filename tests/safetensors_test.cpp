#include "runtime/safetensors.h"

#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "lossc/error.h"
#include "runtime/file.h"
#include "tests/catch.h"

namespace {

using lossc::DType;
using lossc::SafetensorsFile;
using lossc::TensorMap;
using lossc::TensorView;
namespace fs = std::filesystem;

/// A folder of this test's own, removed at the end.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "lossc-safetensors-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(path_), fs::directory_iterator()));
  }

 private:
  fs::path path_;
};

std::string content(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// A file with this header and `data_size` bytes 0, 1, 2, ...
std::string bytes(const std::string& header, std::size_t data_size) {
  const std::uint64_t length = header.size();
  std::string result(8, '\0');
  std::memcpy(result.data(), &length, 8);
  result += header;
  for (std::size_t i = 0; i < data_size; ++i) result.push_back(static_cast<char>(i));
  return result;
}

/// The message with which the content is refused; "" when it is accepted.
std::string refusal(const std::string& content) {
  try {
    SafetensorsFile::parse(content, "batch.safetensors");
  } catch (const lossc::Error& error) {
    CHECK(error.code() == lossc::ErrorCode::io);
    CHECK(std::string(error.what()).starts_with("batch.safetensors: "));
    return error.what();
  }
  return "";
}

template <class T>
std::vector<T> values(const TensorView& tensor) {
  const T* data = static_cast<const T*>(tensor.data);
  return {data, data + tensor.size()};
}

}  // namespace

TEST_CASE("what is written is read back", "[safetensors]") {
  const Folder folder;
  const std::string path = folder.file("all.safetensors");
  std::vector<float> logits{0.5F, -1.0F, 3.25F, 1e30F, -0.0F, 7.0F};
  std::vector<std::uint16_t> halves{0x3f80, 0xff80, 0x0001};
  std::vector<double> doubles{1e300};
  std::vector<std::int32_t> labels{-100, 5};
  std::vector<std::int64_t> offsets{0, 1LL << 40};
  std::vector<std::uint8_t> mask{1, 0, 1};
  float nothing = 0;
  const TensorMap written{
      {"logits", lossc::tensor(logits, {2, 3})},
      {"teacher", TensorView{halves.data(), DType::bf16, {3}, {}}},
      {"half", TensorView{halves.data(), DType::fp16, {3, 1}, {}}},
      {"grad_scale", TensorView{doubles.data(), DType::fp64, {}, {}}},
      {"labels", lossc::tensor(labels)},
      {"cu_seqlens", lossc::tensor(offsets)},
      {"mask", lossc::tensor(mask)},
      {"keep", TensorView{mask.data(), DType::boolean, {3}, {}}},
      {"empty", lossc::tensor(&nothing, {0, 128})},
  };
  const lossc::MetadataMap metadata{{"made by", "a test"}, {"\xce\xb5", "\"quoted\"\n"}};
  lossc::write_safetensors(path, written, metadata);
  CHECK(folder.files() == 1);

  const SafetensorsFile file = SafetensorsFile::read(path);
  CHECK(file.metadata() == metadata);
  REQUIRE(file.tensors().size() == written.size());
  for (const auto& [name, tensor] : written) {
    INFO(name);
    const TensorView* read = file.find(name);
    REQUIRE(read != nullptr);
    CHECK(read->dtype == tensor.dtype);
    CHECK(read->shape == tensor.shape);
    CHECK(reinterpret_cast<std::uintptr_t>(read->data) % lossc::dtype_size(read->dtype) == 0);
    const std::size_t size = static_cast<std::size_t>(tensor.size()) * lossc::dtype_size(tensor.dtype);
    CHECK(std::memcmp(read->data, tensor.data, size) == 0);
  }
  CHECK(file.find("logit") == nullptr);
}

TEST_CASE("strided tensors are written without their gaps", "[safetensors]") {
  const Folder folder;
  const std::string path = folder.file("strided.safetensors");
  std::vector<std::int32_t> data(24);
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<std::int32_t>(i);
  lossc::write_safetensors(path, {
                                     {"padded", TensorView{data.data(), DType::i32, {2, 2, 3}, {12, 4, 1}}},
                                     {"transposed", TensorView{data.data(), DType::i32, {3, 2}, {1, 4}}},
                                     {"repeated", TensorView{data.data() + 5, DType::i32, {3}, {0}}},
                                     {"scalar", TensorView{data.data() + 7, DType::i32, {}, {}}},
                                 });
  const SafetensorsFile file = SafetensorsFile::read(path);
  using Values = std::vector<std::int32_t>;
  CHECK(values<std::int32_t>(*file.find("padded")) == Values{0, 1, 2, 4, 5, 6, 12, 13, 14, 16, 17, 18});
  CHECK(values<std::int32_t>(*file.find("transposed")) == Values{0, 4, 1, 5, 2, 6});
  CHECK(values<std::int32_t>(*file.find("repeated")) == Values{5, 5, 5});
  CHECK(values<std::int32_t>(*file.find("scalar")) == Values{7});
}

TEST_CASE("tensors that a file does not align are copied", "[safetensors]") {
  const std::string file_bytes = bytes(R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},)"
                                       R"("b":{"dtype":"I32","shape":[2],"data_offsets":[1,9]},)"
                                       R"("c":{"dtype":"BF16","shape":[1],"data_offsets":[9,11]}})",
                                       11);
  const SafetensorsFile copy = [&] {
    const SafetensorsFile file = SafetensorsFile::parse(file_bytes, "odd");
    return file;  // The tensors must outlive the first owner.
  }();
  const TensorView& b = *copy.find("b");
  REQUIRE(reinterpret_cast<std::uintptr_t>(b.data) % 4 == 0);
  CHECK(values<std::int32_t>(b) == std::vector<std::int32_t>{0x04030201, 0x08070605});
  CHECK(values<std::uint8_t>(*copy.find("a")) == std::vector<std::uint8_t>{0});
  CHECK(values<std::uint16_t>(*copy.find("c")) == std::vector<std::uint16_t>{0x0a09});
}

TEST_CASE("a damaged file is refused with a message that says why", "[safetensors]") {
  struct Case {
    const char* header;
    std::size_t data;
    const char* expected;
  };
  const Case cases[] = {
      {R"([])", 0, "does not begin with '{'"},
      {R"({)", 0, "not valid JSON"},
      {"{\"\xff\":0}", 0, "not valid JSON"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}} x)", 1, "not valid JSON"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})",
       1, "the key 'a' twice"},
      {R"({"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1, "the key 'dtype' twice"},
      {R"({"a":[[[[[[0]]]]]]})", 0, "nested deeper"},
      {R"({"a":1})", 0, "tensor 'a': its header entry is not an object"},
      {R"({"a":{"shape":[1],"data_offsets":[0,1]}})", 1, "'dtype' is missing"},
      {R"({"a":{"dtype":"U8","data_offsets":[0,1]}})", 1, "'shape' is missing"},
      {R"({"a":{"dtype":"U8","shape":[1]}})", 1, "'data_offsets' is missing"},
      {R"({"a":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}})", 1,
       "dtype \"F8_E4M3\" is not one of F32, BF16"},
      {R"({"a":{"dtype":7,"shape":[1],"data_offsets":[0,1]}})", 1, "dtype 7 is not one of"},
      {R"({"a":{"dtype":"U8","shape":1,"data_offsets":[0,1]}})", 1, "its shape is not a list"},
      {R"({"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}})", 1, "the dimension -1"},
      {R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1, "the dimension 1.0"},
      {R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]}})", 1,
       "not a whole number in"},
      {R"({"a":{"dtype":"U8","shape":[99999999999999999999999],"data_offsets":[0,1]}})", 1,
       "not a whole number in"},
      {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
       "more elements than 2^63"},
      {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296,0],"data_offsets":[0,0]}})", 0,
       "more elements than 2^63"},
      {R"({"a":{"dtype":"F64","shape":[4611686018427387904],"data_offsets":[0,0]}})", 0,
       "more bytes than a file"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}})", 1, "are not [begin, end]"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}})", 1, "are not [begin, end]"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", 1, "lie outside"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", 1, "lie outside of the 1 bytes"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", 4,
       "span 4 bytes, but its dtype and shape need 8"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})",
       3, "tensor 'b': it overlaps"},
      {R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
       2, "overlaps"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}})", 2,
       "the bytes [0, 1) of its data belong to no tensor"},
      {R"({"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 3,
       "the bytes [1, 3) of its data belong to no tensor"},
      {R"({"__metadata__":[]})", 0, "__metadata__ is not an object"},
      {R"({"__metadata__":{"a":1}})", 0, "the value of 'a' is not a string"},
  };
  for (const Case& damaged : cases) {
    INFO(damaged.header);
    const std::string message = refusal(bytes(damaged.header, damaged.data));
    INFO(message);
    CHECK(message.find(damaged.expected) != std::string::npos);
  }
  for (const std::string& header : {std::string("{}\0", 3), std::string("{}  \0 ", 6)}) {
    CHECK(refusal(bytes(header, 0)).find("a NUL byte at " + std::to_string(header.find('\0'))) !=
          std::string::npos);
  }
  // Blanks around the JSON, a key this version does not know, and tensors without a byte are fine.
  CHECK(refusal(bytes("{}   \n", 0)).empty());
  CHECK(refusal(bytes(R"({"a":{"dtype":"U8","shape":[0,5],"data_offsets":[0,0],"note":"x"}})", 0)).empty());
}

TEST_CASE("a wrong header length is refused", "[safetensors]") {
  std::string file = bytes("{}", 0);
  CHECK(refusal(file).empty());
  const std::uint64_t lengths[] = {0, 3, 1000, 100'000'001, ~std::uint64_t{0}, ~std::uint64_t{0} - 7};
  for (const std::uint64_t length : lengths) {
    std::memcpy(file.data(), &length, 8);
    CHECK_FALSE(refusal(file).empty());
  }
  CHECK(refusal("").find("it has 0 bytes") != std::string::npos);
}

TEST_CASE("every truncation of a file is refused, and no damaged bit does harm", "[safetensors]") {
  const std::string whole =
      bytes(R"({"__metadata__":{"k":"v"},"a":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]},)"
            R"("b":{"dtype":"F16","shape":[1],"data_offsets":[16,18]}})",
            18);
  REQUIRE(refusal(whole).empty());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    INFO("the first " << size << " bytes");
    CHECK_FALSE(refusal(whole.substr(0, size)).empty());
  }
  CHECK_FALSE(refusal(whole + "x").empty());
  // A flipped bit may spell another valid name or shape; then every byte of each tensor can be read.
  int accepted = 0;
  unsigned sum = 0;
  for (std::size_t bit = 0; bit < (whole.size() - 18) * 8; ++bit) {
    std::string damaged = whole;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    try {
      const SafetensorsFile file = SafetensorsFile::parse(damaged, "damaged");
      ++accepted;
      for (const auto& [name, tensor] : file.tensors()) {
        const auto* data = static_cast<const unsigned char*>(tensor.data);
        const std::size_t size = static_cast<std::size_t>(tensor.size()) * lossc::dtype_size(tensor.dtype);
        for (std::size_t i = 0; i < size; ++i) sum += data[i];
      }
    } catch (const lossc::Error&) {
    }
  }
  CHECK(accepted > 0);
  CHECK(sum > 0);
}

TEST_CASE("writing to a tensor that was read leaves the file alone", "[safetensors]") {
  const Folder folder;
  const std::string path = folder.file("batch.safetensors");
  std::vector<float> data{1, 2, 3};
  lossc::write_safetensors(path, {{"x", lossc::tensor(data)}});
  const std::string before = content(path);
  const SafetensorsFile file = SafetensorsFile::read(path);
  static_cast<float*>(file.find("x")->data)[1] = 9;
  CHECK(values<float>(*file.find("x")) == std::vector<float>{1, 9, 3});
  CHECK(content(path) == before);
}

TEST_CASE("files that are not there or cannot be files", "[safetensors]") {
  const Folder folder;
  const auto message = [](const auto& action) -> std::string {
    try {
      action();
    } catch (const lossc::Error& error) {
      CHECK(error.code() == lossc::ErrorCode::io);
      return error.what();
    }
    return "";
  };
  const std::string missing = folder.file("missing.safetensors");
  CHECK(message([&] { SafetensorsFile::read(missing); }) ==
        missing + ": cannot open: No such file or directory");
  CHECK(message([&] { SafetensorsFile::read(folder.file("")); }).find("is a folder") != std::string::npos);
  CHECK(message([&] { SafetensorsFile::read("/dev/null"); }).find("no ordinary file") != std::string::npos);
  std::ofstream(folder.file("empty")).flush();
  CHECK(message([&] { SafetensorsFile::read(folder.file("empty")); }).find("is empty") != std::string::npos);
  CHECK(message([&] { lossc::write_safetensors(folder.file("no/such/folder"), {}); }).find("cannot write") !=
        std::string::npos);
  CHECK(message([&] {
          lossc::write_safetensors(folder.file("x"), {{"__metadata__", TensorView{}}});
        }).find("no tensor") != std::string::npos);
  CHECK(message([&] {
          lossc::write_safetensors(folder.file("x"), {}, {{"k", "\xff"}});
        }).find("cannot be written") != std::string::npos);
  CHECK(message([&] { lossc::write_safetensors("/dev/null", {}); }).empty());
  CHECK(fs::is_character_file("/dev/null"));
  CHECK(folder.files() == 1);
}

TEST_CASE("a file is replaced whole or not at all", "[safetensors]") {
  const Folder folder;
  const std::string path = folder.file("result");
  lossc::write_text(path, "old");
  {
    lossc::FileWriter writer(path);
    writer.write("new", 3);
    CHECK(folder.files() == 2);
  }
  CHECK(content(path) == "old");
  CHECK(folder.files() == 1);

  fs::create_symlink("result", folder.file("link"));
  lossc::write_text(folder.file("link"), std::string(3'000'000, 'x'));
  CHECK(fs::is_symlink(folder.file("link")));
  CHECK(content(path) == std::string(3'000'000, 'x'));
  CHECK(folder.files() == 2);
}
