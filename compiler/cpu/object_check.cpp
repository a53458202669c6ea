#include "compiler/cpu/object_check.h"

#include <fmt/format.h>
#include <llvm/BinaryFormat/ELF.h>
#include <llvm/Object/ELF.h>

#include <algorithm>
#include <array>
#include <string>

#include "lossc/error.h"

namespace lossc::cpu {
namespace {

// Its functions return errors; those of llvm::object::ObjectFile end the process on damaged input.
using Object = llvm::object::ELFFile<llvm::object::ELF64LE>;
using Section = Object::Elf_Shdr;

// What LLVM calls for code that has no call: copies and fills of memory, and functions of the C library's
// mathematics.
constexpr std::array<std::string_view, 17> kAllowed = {
    "memcpy", "memmove", "memset", "expf",  "exp",   "exp2f", "logf",  "log",   "log2f",
    "fmaf",   "fmodf",   "powf",   "tanhf", "sqrtf", "fminf", "fmaxf", "ldexpf"};

[[noreturn]] void refuse(const std::string& why) {
  throw Error(ErrorCode::compile_failed, "an object file is not linked: " + why);
}

template <class T>
T value(llvm::Expected<T> expected) {
  if (!expected) refuse(llvm::toString(expected.takeError()));
  return std::move(*expected);
}

constexpr std::uint16_t host_machine() {
#if defined(__x86_64__)
  return llvm::ELF::EM_X86_64;
#elif defined(__aarch64__)
  return llvm::ELF::EM_AARCH64;
#else
  return llvm::ELF::EM_NONE;
#endif
}

// How many bytes a relocation writes; 0 for kinds that code without thread-local and imported data does not
// have. Elsewhere than on x86 the linker alone judges the kind.
std::uint64_t relocation_width(std::uint64_t type) {
#if defined(__x86_64__)
  switch (type) {
    case llvm::ELF::R_X86_64_64:
    case llvm::ELF::R_X86_64_PC64:
      return 8;
    case llvm::ELF::R_X86_64_PC32:
    case llvm::ELF::R_X86_64_PLT32:
    case llvm::ELF::R_X86_64_32:
    case llvm::ELF::R_X86_64_32S:
      return 4;
    default:
      return 0;
  }
#else
  return type == 0 ? 0 : 4;
#endif
}

void check_section(const Object& object, const Section& section) {
  const std::string name = value(object.getSectionName(section)).str();
  const bool runs = section.sh_type == llvm::ELF::SHT_INIT_ARRAY ||
                    section.sh_type == llvm::ELF::SHT_FINI_ARRAY ||
                    section.sh_type == llvm::ELF::SHT_PREINIT_ARRAY || name == ".init" || name == ".fini" ||
                    name.starts_with(".ctors") || name.starts_with(".dtors");
  if (runs) refuse(fmt::format("the section {} would run when it is loaded", name));
  if (section.sh_type != llvm::ELF::SHT_NOBITS)
    static_cast<void>(value(object.getSectionContents(section)));  // lies in the file
}

// Returns the number of symbols.
std::size_t check_symbols(const Object& object, const Section& table) {
  const auto symbols = value(object.symbols(&table));
  const llvm::StringRef names = value(object.getStringTableForSymtab(table));
  for (const auto& symbol : symbols) {
    const std::string name = value(symbol.getName(names)).str();
    if (symbol.getType() == llvm::ELF::STT_GNU_IFUNC || symbol.getType() == llvm::ELF::STT_TLS) {
      refuse(fmt::format("the symbol {} is of a kind that no kernel has", name));
    }
    if (symbol.st_shndx != llvm::ELF::SHN_UNDEF || name.empty() || name == "_GLOBAL_OFFSET_TABLE_") continue;
    if (std::find(kAllowed.begin(), kAllowed.end(), name) == kAllowed.end()) {
      refuse(fmt::format("it calls {}, which no kernel does", name));
    }
  }
  return symbols.size();
}

void check_relocations(const Object& object, const Section& section, std::size_t symbols) {
  const std::uint64_t size = value(object.getSection(section.sh_info))->sh_size;
  for (const auto& relocation : value(object.relas(section))) {
    const std::uint32_t type = relocation.getType(false);
    const std::uint64_t width = relocation_width(type), offset = relocation.r_offset;
    if (width == 0) refuse(fmt::format("a relocation of type {} is of a kind that no kernel has", type));
    if (size < width || offset > size - width) refuse("a relocation lies outside of its section");
    if (relocation.getSymbol(false) >= symbols) refuse("a relocation names no symbol");
  }
}

}  // namespace

void check_object(std::string_view bytes) {
  if (bytes.size() < sizeof(llvm::ELF::Elf64_Ehdr) || !bytes.starts_with("\177ELF") ||
      bytes[llvm::ELF::EI_CLASS] != llvm::ELF::ELFCLASS64 ||
      bytes[llvm::ELF::EI_DATA] != llvm::ELF::ELFDATA2LSB) {
    refuse("it is no ELF file of 64 bits, little endian");
  }
  const Object object = value(Object::create(llvm::StringRef(bytes.data(), bytes.size())));
  const auto& header = object.getHeader();
  if (header.e_type != llvm::ELF::ET_REL) refuse("it is no relocatable object");
  if (header.e_machine != host_machine()) {
    refuse(fmt::format("it is for machine {}, this one is {}", static_cast<unsigned>(header.e_machine),
                       host_machine()));
  }
  const auto sections = value(object.sections());
  std::size_t symbols = 0;
  for (const Section& section : sections) {
    check_section(object, section);
    if (section.sh_type == llvm::ELF::SHT_SYMTAB) symbols = check_symbols(object, section);
    if (section.sh_type == llvm::ELF::SHT_REL) refuse("it has relocations of another form");
  }
  for (const Section& section : sections) {
    if (section.sh_type == llvm::ELF::SHT_RELA) check_relocations(object, section, symbols);
  }
}

}  // namespace lossc::cpu
