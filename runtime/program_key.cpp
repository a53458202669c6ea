#include "runtime/program_key.h"

#include <fmt/format.h>

#include "generator_digest.h"
#include "lossc/error.h"
#ifdef LOSSC_HAS_LLVM
#include "compiler/cpu/cpu_compiler.h"
#endif
#ifdef LOSSC_HAS_CUDA
#include "runtime/cuda/cuda_images.h"
#include "runtime/cuda/cuda_kernels.h"
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

// "cuda:N": the GPU's architecture; "cuda:sm_90a": that one, whatever is in this machine.
void add_cuda_device(KeyFields& key, const std::string& device) {
#ifdef LOSSC_HAS_CUDA
  if (device.rfind("cuda:sm_", 0) == 0) {
    cuda::add_cuda_fields(key, cuda::card_arch(device.substr(5)));
    return;
  }
  if (const int ordinal = cuda::cuda_ordinal(device); ordinal >= 0) {
    cuda::add_cuda_fields(key, cuda::Device::get(ordinal).arch());
    return;
  }
  throw Error(ErrorCode::unsupported,
              fmt::format("device \"{}\" is none; allowed: cuda:N, or cuda:sm_90a for a key alone", device));
#else
  (void)device;
  for (const char* name : {"generator", "compiler", "target", "options", "environment"})
    key.add_unknown(name);
#endif
}

}  // namespace

KeyFields program_key(const Plan& plan, const Layout& layout, const Spec& spec, const std::string& device) {
  KeyFields key;
  const bool cuda = device == "cuda" || device.rfind("cuda:", 0) == 0;
  key.add("schema", kKeySchema).add("backend", cuda ? "cuda" : device);
  if (cuda) {
    add_cuda_device(key, device);
  } else if (device == "cpu") {
    key.add("generator", kGeneratorDigest);
    add_cpu_fields(key);
  } else if (device != "interpreter") {
    throw Error(ErrorCode::unsupported,
                fmt::format("device \"{}\" has no kernel key; allowed: cpu, cuda:N, cuda:sm_90a, interpreter",
                            device));
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
