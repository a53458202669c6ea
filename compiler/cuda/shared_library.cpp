#include "compiler/cuda/shared_library.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <openssl/evp.h>

#include <cstring>
#include <fstream>
#include <span>
#include <utility>
#include <vector>

namespace lossc::cuda {
namespace {

std::string hexadecimal(std::span<const unsigned char> bytes) {
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

// The description of the note NT_GNU_BUILD_ID in a segment of notes; empty if it is not there.
std::string build_id_in(std::span<const unsigned char> notes, std::size_t align) {
  const auto aligned = [align](std::size_t size) { return (size + align - 1) / align * align; };
  while (notes.size() >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) header;
    std::memcpy(&header, notes.data(), sizeof header);
    const std::size_t name = sizeof header, description = name + aligned(header.n_namesz);
    const std::size_t end = description + aligned(header.n_descsz);
    if (description + header.n_descsz > notes.size()) break;
    if (header.n_type == NT_GNU_BUILD_ID && header.n_namesz == 4 &&
        std::memcmp(notes.data() + name, "GNU", 4) == 0) {
      return hexadecimal(notes.subspan(description, header.n_descsz));
    }
    notes = notes.subspan(std::min(end, notes.size()));
  }
  return {};
}

struct Search {
  const link_map* map;
  std::string id;
};

int visit(dl_phdr_info* info, std::size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  if (info->dlpi_addr != search.map->l_addr || std::strcmp(info->dlpi_name, search.map->l_name) != 0)
    return 0;
  for (const ElfW(Phdr) & segment : std::span(info->dlpi_phdr, info->dlpi_phnum)) {
    if (segment.p_type != PT_NOTE) continue;
    const auto* begin = reinterpret_cast<const unsigned char*>(info->dlpi_addr + segment.p_vaddr);
    search.id = build_id_in({begin, segment.p_memsz}, segment.p_align == 8 ? 8 : 4);
    if (!search.id.empty()) break;
  }
  return 1;
}

std::string file_digest(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  EVP_DigestInit_ex(context, EVP_sha256(), nullptr);
  std::vector<char> block(1 << 20);
  while (file.read(block.data(), static_cast<std::streamsize>(block.size())), file.gcount() > 0) {
    EVP_DigestUpdate(context, block.data(), static_cast<std::size_t>(file.gcount()));
  }
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  EVP_DigestFinal_ex(context, digest, &size);
  EVP_MD_CTX_free(context);
  return "sha256:" + hexadecimal({digest, size});
}

}  // namespace

void* SharedLibrary::symbol(const char* name) const {
  return ::dlsym(handle, name);
}

SharedLibrary open_library(const std::string& name, bool only_loaded) {
  SharedLibrary library;
  library.handle = ::dlopen(name.c_str(), only_loaded ? RTLD_LAZY | RTLD_NOLOAD : RTLD_NOW | RTLD_LOCAL);
  if (library.handle == nullptr) {
    const char* failure = ::dlerror();
    library.failure = only_loaded ? "not loaded" : failure == nullptr ? "unknown failure" : failure;
    return library;
  }
  link_map* map = nullptr;
  library.path = ::dlinfo(library.handle, RTLD_DI_LINKMAP, &map) == 0 ? map->l_name : name;
  return library;
}

void close_library(SharedLibrary& library) {
  if (library.handle != nullptr) ::dlclose(std::exchange(library.handle, nullptr));
}

std::string build_id(const SharedLibrary& library) {
  link_map* map = nullptr;
  if (::dlinfo(library.handle, RTLD_DI_LINKMAP, &map) == 0) {
    Search search{map, {}};
    ::dl_iterate_phdr(visit, &search);
    if (!search.id.empty()) return search.id;
  }
  return file_digest(library.path);
}

}  // namespace lossc::cuda
