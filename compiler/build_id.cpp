#include "compiler/build_id.h"

#include <elf.h>
#include <fmt/format.h>
#include <link.h>

#include <cstdint>
#include <cstring>

namespace lossc {
namespace {

struct Search {
  std::uintptr_t address;
  std::string id;
};

std::string id_in_notes(const unsigned char* notes, std::size_t size) {
  const auto aligned = [](std::size_t n) { return (n + 3) / 4 * 4; };
  while (size >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note;
    std::memcpy(&note, notes, sizeof(note));
    const std::size_t name = aligned(note.n_namesz), content = aligned(note.n_descsz);
    if (sizeof(note) + name + content > size) break;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == 4 &&
        std::memcmp(notes + sizeof(note), "GNU", 4) == 0) {
      std::string id;
      for (std::size_t i = 0; i < note.n_descsz; ++i)
        id += fmt::format("{:02x}", notes[sizeof(note) + name + i]);
      return id;
    }
    notes += sizeof(note) + name + content;
    size -= sizeof(note) + name + content;
  }
  return "";
}

int visit(dl_phdr_info* info, std::size_t, void* data) {
  auto& search = *static_cast<Search*>(data);
  bool here = false;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& part = info->dlpi_phdr[i];
    const std::uintptr_t begin = info->dlpi_addr + part.p_vaddr;
    here =
        here || (part.p_type == PT_LOAD && search.address >= begin && search.address - begin < part.p_memsz);
  }
  if (!here) return 0;
  for (int i = 0; i < info->dlpi_phnum && search.id.empty(); ++i) {
    const auto& part = info->dlpi_phdr[i];
    if (part.p_type != PT_NOTE) continue;
    search.id =
        id_in_notes(reinterpret_cast<const unsigned char*>(info->dlpi_addr + part.p_vaddr), part.p_memsz);
  }
  return 1;
}

}  // namespace

std::string build_id_of(const void* address) {
  Search search{reinterpret_cast<std::uintptr_t>(address), ""};
  ::dl_iterate_phdr(visit, &search);
  return search.id.empty() ? "none" : search.id;
}

}  // namespace lossc
