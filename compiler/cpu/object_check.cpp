#include "compiler/cpu/object_check.h"

#include <fmt/format.h>
#include <llvm/BinaryFormat/ELF.h>
#include <llvm/Object/ELFObjectFile.h>

#include <algorithm>
#include <array>
#include <string>

#include "lossc/error.h"

namespace lossc::cpu {
namespace {

using Object = llvm::object::ELF64LEObjectFile;

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

// The kinds of relocations that code without thread-local and imported data has. Elsewhere than on x86 the
// linker alone judges.
bool is_plain_relocation(std::uint64_t type) {
#if defined(__x86_64__)
  switch (type) {
    case llvm::ELF::R_X86_64_64:
    case llvm::ELF::R_X86_64_PC32:
    case llvm::ELF::R_X86_64_PLT32:
    case llvm::ELF::R_X86_64_32:
    case llvm::ELF::R_X86_64_32S:
    case llvm::ELF::R_X86_64_PC64:
      return true;
    default:
      return false;
  }
#else
  return type != 0;
#endif
}

void check_sections(const Object& object) {
  for (const llvm::object::ELFSectionRef section : object.sections()) {
    const std::string name = value(section.getName()).str();
    switch (section.getType()) {
      case llvm::ELF::SHT_INIT_ARRAY:
      case llvm::ELF::SHT_FINI_ARRAY:
      case llvm::ELF::SHT_PREINIT_ARRAY:
        refuse(fmt::format("the section {} would run when it is loaded", name));
      default:
        break;
    }
    if (name == ".init" || name == ".fini" || name.starts_with(".ctors") || name.starts_with(".dtors")) {
      refuse(fmt::format("the section {} would run when it is loaded", name));
    }
    if (!section.isBSS()) value(section.getContents());  // lies inside the file
  }
}

void check_symbols(const Object& object) {
  for (const llvm::object::ELFSymbolRef symbol : object.symbols()) {
    const std::uint32_t flags = value(symbol.getFlags());
    if (symbol.getELFType() == llvm::ELF::STT_GNU_IFUNC || symbol.getELFType() == llvm::ELF::STT_TLS) {
      refuse(fmt::format("the symbol {} is of a kind that no kernel has", value(symbol.getName()).str()));
    }
    if ((flags & llvm::object::SymbolRef::SF_Undefined) == 0) continue;
    const std::string name = value(symbol.getName()).str();
    if (name.empty() || name == "_GLOBAL_OFFSET_TABLE_") continue;
    if (std::find(kAllowed.begin(), kAllowed.end(), name) == kAllowed.end()) {
      refuse(fmt::format("it calls {}, which no kernel does", name));
    }
  }
}

void check_relocations(const Object& object) {
  for (const llvm::object::ELFSectionRef section : object.sections()) {
    const auto target = value(section.getRelocatedSection());
    if (target == object.section_end()) continue;
    for (const llvm::object::ELFRelocationRef relocation : section.relocations()) {
      if (!is_plain_relocation(relocation.getType())) {
        refuse(fmt::format("a relocation of type {} is of a kind that no kernel has", relocation.getType()));
      }
      const std::uint64_t width = 4, offset = relocation.getOffset(), size = target->getSize();
      if (size < width || offset > size - width) refuse("a relocation lies outside of its section");
      const auto symbol = relocation.getSymbol();
      if (symbol == object.symbol_end()) refuse("a relocation names no symbol");
      value(symbol->getName());  // the index lies inside the table
    }
  }
}

}  // namespace

void check_object(std::string_view bytes) {
  const llvm::MemoryBufferRef buffer(llvm::StringRef(bytes.data(), bytes.size()), "lossc");
  const Object object = value(Object::create(buffer));
  const auto& header = object.getELFFile().getHeader();
  if (header.e_type != llvm::ELF::ET_REL) refuse("it is no relocatable object");
  if (header.e_machine != host_machine()) {
    refuse(fmt::format("it is for machine {}, this one is {}", static_cast<unsigned>(header.e_machine),
                       host_machine()));
  }
  check_sections(object);
  check_symbols(object);
  check_relocations(object);
}

}  // namespace lossc::cpu
