#include "runtime/program_key.h"

#include <fmt/format.h>

#include "generator_digest.h"
#include "lossc/error.h"
#ifdef LOSSC_HAS_LLVM
#include "compiler/cpu/cpu_compiler.h"
#endif

namespace lossc {
namespace {

// Another meaning of the fields gets another number.
constexpr const char* kKeySchema = "1";

void add_cpu_fields(KeyFields& key) {
#ifdef LOSSC_HAS_LLVM
  const cpu::CpuDescription cpu = cpu::describe_cpu();
  key.add("compiler", cpu.compiler)
      .add("triple", cpu.triple)
      .add("cpu", cpu.name)
      .add("features", cpu.features)
      .add("data_layout", cpu.data_layout)
      .add("options", cpu.options);
#else
  for (const char* name : {"compiler", "triple", "cpu", "features", "data_layout", "options"}) {
    key.add_unknown(name);
  }
#endif
}

}  // namespace

KeyFields program_key(const Plan& plan, const Layout& layout, const Spec& spec, const std::string& device) {
  KeyFields key;
  key.add("schema", kKeySchema).add("backend", device);
  if (device == "cpu") {
    key.add("generator", kGeneratorDigest);
    add_cpu_fields(key);
  } else if (device != "interpreter") {
    throw Error(ErrorCode::unsupported,
                fmt::format("device \"{}\" has no kernel key; allowed: cpu, interpreter", device));
  }
  key.add("plan", canonical_text(plan, layout, spec));
  return key;
}

std::string program_title(const Spec& spec) {
  std::string text;
  for (const ChildSpec& child : spec.losses) text += (text.empty() ? "" : " + ") + child.type;
  if (text.empty()) text = "outputs and metrics";
  return fmt::format("{}, {}, vocab {}", text, dtype_name(spec.logits_dtype), spec.vocab);
}

}  // namespace lossc
