#include "runtime/cuda/image.h"

#include <elf.h>
#include <fmt/format.h>

#include <cstdint>
#include <cstring>

#include "lossc/error.h"

namespace lossc::cuda {
namespace {

[[noreturn]] void damaged(const std::string& what) {
  throw Error(ErrorCode::io, fmt::format("the GPU code is damaged: {}", what));
}

template <class Record>
Record read(const std::string& image, std::uint64_t offset) {
  Record record;
  std::memcpy(&record, image.data() + offset, sizeof record);
  return record;
}

void check_cubin(const std::string& image) {
  const std::uint64_t size = image.size();
  if (size < sizeof(Elf64_Ehdr)) damaged(fmt::format("{} bytes hold no ELF header", size));
  const auto header = read<Elf64_Ehdr>(image, 0);
  constexpr int kMachine = 190;  // EM_CUDA
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
      header.e_machine != kMachine) {
    damaged("its ELF header is not a cubin's");
  }
  const auto inside = [size](std::uint64_t offset, std::uint64_t bytes) {
    return offset <= size && bytes <= size - offset;
  };
  if (header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shnum == 0 ||
      !inside(header.e_shoff, std::uint64_t{header.e_shnum} * sizeof(Elf64_Shdr))) {
    damaged(fmt::format("its table of sections lies outside its {} bytes", size));
  }
  if (header.e_phnum > 0 && (header.e_phentsize != sizeof(Elf64_Phdr) ||
                             !inside(header.e_phoff, std::uint64_t{header.e_phnum} * sizeof(Elf64_Phdr)))) {
    damaged(fmt::format("its table of segments lies outside its {} bytes", size));
  }
  for (unsigned i = 0; i < header.e_shnum; ++i) {
    const auto section = read<Elf64_Shdr>(image, header.e_shoff + i * sizeof(Elf64_Shdr));
    switch (section.sh_type) {
      case SHT_PROGBITS:
      case SHT_SYMTAB:
      case SHT_STRTAB:
      case SHT_REL:
      case SHT_RELA:
      case SHT_NOTE:
        if (!inside(section.sh_offset, section.sh_size)) {
          damaged(fmt::format("its section {} lies outside its {} bytes", i, size));
        }
        break;
      default:  // Sections of other types may take no room in the image.
        break;
    }
  }
}

}  // namespace

void check_image(const std::string& image) {
  if (image.starts_with(ELFMAG)) {
    check_cubin(image);
    return;
  }
  if (image.empty()) damaged("it is empty");
  if (image.find('\0') != std::string::npos) damaged("it is no cubin, and no PTX: it holds a NUL");
  if (image.find(".version") == std::string::npos)
    damaged("it is no cubin, and no PTX: it names no .version");
}

}  // namespace lossc::cuda
