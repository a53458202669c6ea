// The CUDA source of every loss compiles without spills for all architectures. Skipped where there is no
// NVRTC.
#include "compiler/cuda/cuda_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>

#include "catch.h"
#include "compiler/cuda/nvrtc.h"
#include "lossc/loss.h"
#include "tests/cases.h"
#include "tests/need_nvrtc.h"

using namespace lossc;
using namespace lossc::cuda;
using namespace lossc::test;

namespace {

CudaSource source_of(const Spec& spec, const char* arch = "sm_90a", int relax = 0) {
  const Plan plan = plan_spec(spec, LossRegistry::builtin());
  return cuda_source(plan, make_layout(plan, spec), spec, arch, relax);
}

struct Types {
  DType logits, teacher, gradient;
};
const std::vector<Types> kTypes = {{DType::bf16, DType::bf16, DType::bf16},
                                   {DType::fp32, DType::bf16, DType::fp16},
                                   {DType::fp16, DType::fp32, DType::bf16},
                                   {DType::fp32, DType::fp32, DType::fp32}};
// A row of one warp, one of a block's registers, an odd one, one of a cluster's registers.
const std::vector<std::int64_t> kVocabs = {13, 32768, 50257, 131072};
struct Arch {
  const char* name;
};
const std::vector<Arch> kArchs = {{"sm_80"}, {"sm_90a"}, {"sm_100a"}, {"sm_120"}};

// Every loss, and every `step`-th combination with an accumulated gradient.
std::vector<NamedCase> matrix(std::size_t step) {
  std::vector<NamedCase> all = all_cases();
  const std::vector<NamedCase> combinations = combination_cases();
  for (std::size_t i = 0; i < combinations.size(); i += step) {
    NamedCase named = combinations[i];
    named.spec.gradient_mode = "accumulate";
    named.name += ", accumulated";
    all.push_back(named);
  }
  return all;
}

Spec sized(const NamedCase& named, const Types& types, std::int64_t vocab) {
  LossCase c = named.spec;
  c.vocab = vocab;
  c.logits_dtype = types.logits;
  if (c.gradient_mode != "in_place") c.gradient_dtype = types.gradient;
  for (const Child& child : c.children) {
    if (child.type == "distillation") c.tensor_dtypes[child.input("teacher_logits")] = types.teacher;
  }
  return c.spec();
}

// Many losses share their steps, and what was compiled once need not be again.
const NvrtcResult& compiled(const CudaUnit& unit, const std::string& arch) {
  static std::map<std::pair<std::string, std::string>, NvrtcResult> known;
  const auto found = known.find({unit.text, arch});
  if (found != known.end()) return found->second;
  return known[{unit.text, arch}] = nvrtc_compile({unit.text, "test", arch, {}});
}

bool spills(const std::vector<KernelFigures>& kernels) {
  return std::any_of(kernels.begin(), kernels.end(), [](const KernelFigures& k) {
    return k.spill_store_bytes > 0 || k.spill_load_bytes > 0 || k.stack_bytes > 0;
  });
}

// Compiles as programs do: where kernels spill, again with more registers.
void check_compiles(const Spec& spec, const Arch& arch) {
  std::string text;
  for (int relax = 0; relax <= kMostRelaxed; ++relax) {
    const CudaSource source = source_of(spec, arch.name, relax);
    std::vector<std::string> names = source.kernel_names(), made;
    std::vector<KernelFigures> kernels;
    for (const CudaUnit& unit : source.units) {
      const NvrtcResult& result = compiled(unit, arch.name);
      kernels.insert(kernels.end(), result.kernels.begin(), result.kernels.end());
      for (const KernelFigures& k : result.kernels) {
        if (std::find(names.begin(), names.end(), k.name) == names.end()) continue;
        made.push_back(k.name);
        CHECK(k.name.starts_with(unit.name));
      }
    }
    std::sort(names.begin(), names.end());
    std::sort(made.begin(), made.end());
    if (!kernels.empty()) REQUIRE(made == names);
    if (!spills(kernels)) {
      if (relax > 0) std::printf("%s, vocab %d: relaxed %d times\n", arch.name, int(spec.vocab), relax);
      return;
    }
    for (const KernelFigures& k : kernels) {
      text += fmt::format("{} (relaxed {} times): {} registers, {} bytes spilled, {} bytes of stack\n",
                          k.name, relax, k.registers, k.spill_store_bytes, k.stack_bytes);
    }
  }
  FAIL(text);
}

Spec example(const std::string& name) {
  std::ifstream file(name);
  return Spec::parse(std::string(std::istreambuf_iterator<char>(file), {}));
}

}  // namespace

// One compilation a spec: types, vocabularies and architectures take turns, so that every pair of them
// occurs.
TEST_CASE("every kernel of every loss compiles without spills") {
  need_nvrtc();
  std::size_t i = 0;
  for (const NamedCase& named : matrix(4)) {
    const Types& types = kTypes[i % 4];
    const std::int64_t vocab = kVocabs[(i / 4 + i) % 4];
    const Arch& arch = kArchs[(i / 16 + i / 4 * 2 + i) % 4];
    CAPTURE(named.name, vocab, arch.name, dtype_name(types.logits), dtype_name(types.gradient));
    check_compiles(sized(named, types, vocab), arch);
    ++i;
  }
}

TEST_CASE("every kernel of the examples compiles without spills") {
  need_nvrtc();
  std::size_t i = 0;
  for (const auto& file : std::filesystem::directory_iterator("examples/specs")) {
    CAPTURE(file.path().string());
    check_compiles(example(file.path().string()), kArchs[i++ % 4]);
  }
  CHECK(i > 0);
}

// One more a spec, of other types, vocabulary and architecture.
TEST_CASE("more kernels of every loss compile without spills", "[slow]") {
  need_nvrtc();
  std::size_t i = 0;
  for (const NamedCase& named : matrix(2)) {
    const Types& types = kTypes[(i + 1) % 4];
    const std::int64_t vocab = kVocabs[(i / 4 + i + 2) % 4];
    const Arch& arch = kArchs[(i / 16 + i / 4 * 2 + i + 3) % 4];
    CAPTURE(named.name, vocab, arch.name, dtype_name(types.logits), dtype_name(types.gradient));
    check_compiles(sized(named, types, vocab), arch);
    ++i;
  }
}
