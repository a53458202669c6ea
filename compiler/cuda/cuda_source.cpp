#include "compiler/cuda/cuda_source.h"

#include <fmt/format.h>

#include <algorithm>

#include "compiler/cuda/card.h"
#include "compiler/cuda/region_source.h"
#include "compiler/cuda/templates.h"

namespace lossc::cuda {

namespace {

// Beside its part of the row, a block has the records of its warps, and the driver takes 1024 bytes.
constexpr int kFixedShared = 1024 + 1024;

struct Variant {
  std::string source;  // "Registers<Region0, 512, 8>"
  RegionKernel kernel;
};

int threads_for(std::int64_t vectors, int most) {
  int threads = 32;
  while (threads < most && threads < vectors) threads *= 2;
  return threads;
}

// Blocks of a cluster, and vectors that a thread holds.
struct Split {
  int threads, cluster;
  std::int64_t rounds;
};

// A row that fits into the shared memory of a block, or of a cluster of blocks, stays there, so long as every
// multiprocessor has room for two blocks: one is read while the other computes and writes. Longer rows are
// read again by every sweep.
constexpr int kResidentBlocks = 2;

Variant resident(const Split& split, int index, int block_bytes, const Card& card, int relax) {
  Variant v;
  v.kernel.threads = split.threads;
  v.kernel.cluster = split.cluster;
  v.kernel.shared_bytes = block_bytes;
  const int fit = card.shared_bytes / (block_bytes + kFixedShared);
  v.kernel.blocks_per_sm = std::max(1, std::min({fit, 1536 / split.threads, 8}) >> relax);
  v.source = fmt::format("Resident<Region{}, {}, {}, {}>", index, split.threads, split.rounds, split.cluster);
  v.kernel.description =
      fmt::format("resident, {} threads, {} vectors a thread, {} block{} a row", split.threads, split.rounds,
                  split.cluster, split.cluster == 1 ? "" : "s");
  return v;
}

Variant streaming(const RegionShape& shape, std::int64_t vectors, int index, int relax) {
  // Several sweeps: few rows at once, so that they stay in the second-level cache. A gradient alone streams
  // best with large blocks, statistics alone with many small ones.
  Variant v;
  const int sweeps = shape.phases + (shape.emits ? 1 : 0);
  const bool gradient_only = shape.phases == 0;
  const int most = sweeps > 1 ? 1024 : 512;
  const int unroll = std::max(1, (gradient_only || sweeps > 1 ? 4 : 2) >> relax);
  v.kernel.threads = threads_for((vectors + unroll - 1) / unroll, relax > 0 ? std::min(most, 512) : most);
  const int resident = gradient_only || sweeps > 1 || relax > 0 ? 1024 : 1536;
  v.kernel.blocks_per_sm = std::max(1, (resident / v.kernel.threads) >> std::max(0, relax - 1));
  v.source = fmt::format("Streaming<Region{}, {}, {}>", index, v.kernel.threads, unroll);
  v.kernel.description = fmt::format("streaming, {} threads, {} vectors in flight", v.kernel.threads, unroll);
  return v;
}

Variant choose(const RegionShape& shape, std::int64_t vocab, int index, const Card& card, int relax) {
  const std::int64_t vectors = (vocab + shape.width - 1) / shape.width;
  const int sweeps = shape.phases + (shape.emits ? 1 : 0);
  Variant v = streaming(shape, vectors, index, relax);
  if (sweeps > 1) {
    const int threads = threads_for(vectors, 512);
    const int most = card.clusters && threads == 512 ? 8 : 1;
    for (int cluster = 1; cluster <= most; cluster *= 2) {
      const std::int64_t rounds = (vectors + threads * cluster - 1) / (threads * cluster);
      const std::int64_t bytes = rounds * threads * shape.vector_bytes;
      if (kResidentBlocks * (bytes + kFixedShared) > card.shared_bytes) continue;
      v = resident({threads, cluster, rounds}, index, static_cast<int>(bytes), card, relax);
      break;
    }
  }
  v.kernel.name = fmt::format("region{}", index);
  return v;
}

std::string region_kernel(const Variant& v, const RegionShape& shape, int index) {
  const auto phase = [&](int k) {
    return k < shape.phases ? fmt::format("Region{}::Phase{}", index, k) : std::string("NoPhase");
  };
  std::string text = fmt::format(
      "extern \"C\" __global__ void {}__launch_bounds__({}, {}) {}(const __grid_constant__ Args a) {{\n"
      "  typedef RowProgram<Region{}, {}, Args> Program;\n"
      "  begin_kernel();\n"
      "  __shared__ typename Program::Shared shared;\n"
      "  Program program(a, shared);\n"
      "  {}program.begin<{}>(){}\n",
      v.kernel.cluster > 1 ? fmt::format("__cluster_dims__({}, 1, 1) ", v.kernel.cluster) : "",
      v.kernel.threads, v.kernel.blocks_per_sm, v.kernel.name, index, v.source,
      shape.emits ? "const bool active = " : "if (!", phase(0), shape.emits ? ";" : ") return;");
  if (shape.emits && shape.phases > 0) text += "  if (active) {\n";
  for (int k = 0; k < shape.phases; ++k) {
    text += fmt::format("  {}program.phase<{}, {}>();\n", shape.emits ? "  " : "", phase(k), phase(k + 1));
  }
  if (shape.emits && shape.phases > 0) text += "  }\n";
  if (shape.emits) text += "  program.emit(active);\n";
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

CudaSource cuda_source(const Plan& plan, const Layout& layout, const Spec& spec, std::string_view arch,
                       int relax) {
  const SourceContext context(plan, layout, spec);
  const Card card = card_of(arch);
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
    const Variant variant = choose(region.shape, spec.vocab, static_cast<int>(r), card, relax);
    source.text += region.text + "\n" + region_kernel(variant, region.shape, static_cast<int>(r));
    source.regions.push_back(variant.kernel);
    if (r < plan.seams.size()) source.seams.push_back(steps(plan.seams[r], fmt::format("seam{}", r), false));
  }
  source.epilogue = steps(plan.epilogue, "epilogue", true);
  source.text += "}  // namespace lossc::cuda\n";
  return source;
}

}  // namespace lossc::cuda
