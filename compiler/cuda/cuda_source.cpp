#include "compiler/cuda/cuda_source.h"

#include <fmt/format.h>

#include <algorithm>

#include "compiler/cuda/region_source.h"
#include "compiler/cuda/templates.h"

namespace lossc::cuda {

namespace {

struct Variant {
  std::string source;  // "Registers<Region0, 512, 8>"
  RegionKernel kernel;
};

int threads_for(std::int64_t vectors, int most) {
  int threads = 32;
  while (threads < most && threads < vectors) threads *= 2;
  return threads;
}

// A row that fits into the registers of one block stays there; a longer one is read again by every sweep.
Variant choose(const RegionShape& shape, std::int64_t vocab, int index) {
  const std::int64_t vectors = (vocab + shape.width - 1) / shape.width;
  const int sweeps = shape.phases + (shape.emits ? 1 : 0);
  Variant v;
  v.kernel.name = fmt::format("region{}", index);
  if (sweeps > 1) {
    constexpr int kMost = 512;
    const int threads = threads_for(vectors, kMost);
    const std::int64_t rounds = (vectors + threads - 1) / threads;
    const std::int64_t words = shape.row_register_words / threads + 1;
    if (words <= 40 && rounds <= 8) {
      v.kernel.threads = threads;
      v.kernel.blocks_per_sm = std::max(1, words <= 36 ? 1024 / threads : 512 / threads);
      v.source = fmt::format("Registers<Region{}, {}, {}>", index, threads, rounds);
      v.kernel.description = fmt::format("registers, {} threads, {} vectors a thread", threads, rounds);
      return v;
    }
  }
  // Several sweeps: few rows at once, so that they stay in the second-level cache. A gradient alone streams best
  // with large blocks, statistics alone with many small ones.
  const bool gradient_only = shape.phases == 0;
  const int most = sweeps > 1 ? 1024 : 512;
  const int unroll = gradient_only || sweeps > 1 ? 4 : 2;
  v.kernel.threads = threads_for((vectors + unroll - 1) / unroll, most);
  const int resident = gradient_only || sweeps > 1 ? 1024 : 1536;
  v.kernel.blocks_per_sm = std::max(1, resident / v.kernel.threads);
  v.source = fmt::format("Streaming<Region{}, {}, {}>", index, v.kernel.threads, unroll);
  v.kernel.description = fmt::format("streaming, {} threads, {} vectors in flight", v.kernel.threads, unroll);
  return v;
}

std::string region_kernel(const Variant& v, const RegionShape& shape, int index) {
  std::string text = fmt::format(
      "extern \"C\" __global__ void __launch_bounds__({}, {}) {}(const __grid_constant__ Args a) {{\n"
      "  typedef RowProgram<Region{}, {}, Args> Program;\n"
      "  __shared__ typename Program::Shared shared;\n"
      "  Program program(a, a.head.row_begin + blockIdx.x, shared);\n"
      "  if (!program.begin()) return;\n",
      v.kernel.threads, v.kernel.blocks_per_sm, v.kernel.name, index, v.source);
  for (int k = 0; k < shape.phases; ++k) text += fmt::format("  program.phase<Region{}::Phase{}>();\n", index, k);
  if (shape.emits) text += "  program.emit();\n";
  return text + "}\n\n";
}

}  // namespace

std::vector<std::string> CudaSource::kernel_names() const {
  std::vector<std::string> names;
  auto add = [&](const std::vector<StepKernel>& steps) {
    for (const StepKernel& k : steps) names.push_back(k.name);
  };
  add(prologue);
  for (const RegionKernel& k : regions) names.push_back(k.name);
  for (const auto& seam : seams) add(seam);
  add(epilogue);
  return names;
}

CudaSource cuda_source(const Plan& plan, const Layout& layout, const Spec& spec) {
  const SourceContext context(plan, layout, spec);
  CudaSource source;
  source.text = std::string(template_text("abi.h")) + "\n" + std::string(template_text("base.cuh")) + "\n" +
                std::string(template_text("row.cuh")) + "\n" + std::string(template_text("steps.cuh")) + "\n";
  source.text += fmt::format(
      "// ---- generated from the plan\n\nnamespace lossc::cuda {{\n\nconstexpr int kVocab = {};\n"
      "typedef Arguments<{}, {}, {}, {}, {}> Args;\n\n",
      spec.vocab, layout.tensors.size(), layout.buffers.size(), layout.maps.size(), layout.parameters.size(),
      plan.loss.scalars.size());
  auto steps = [&](const std::vector<Step>& list, const std::string& name, bool last) {
    StepSource s = step_source(context, list, name, last, source.tickets);
    source.text += s.text;
    return s.kernels;
  };
  source.prologue = steps(plan.prologue, "prologue", false);
  for (std::size_t r = 0; r < plan.regions.size(); ++r) {
    const RegionSource region = region_source(context, static_cast<int>(r));
    const Variant variant = choose(region.shape, spec.vocab, static_cast<int>(r));
    source.text += region.text + "\n" + region_kernel(variant, region.shape, static_cast<int>(r));
    source.regions.push_back(variant.kernel);
    if (r < plan.seams.size()) source.seams.push_back(steps(plan.seams[r], fmt::format("seam{}", r), false));
  }
  source.epilogue = steps(plan.epilogue, "epilogue", true);
  source.text += "}  // namespace lossc::cuda\n";
  return source;
}

}  // namespace lossc::cuda
