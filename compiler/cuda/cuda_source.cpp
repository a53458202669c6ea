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

// A row that fits into the registers of a block, or of a cluster of blocks, stays there; a longer one is read
// again by every sweep. 32-bit words of the row a thread holds, at most: with 512 threads and two blocks a
// multiprocessor, a thread has 64 registers.
constexpr std::int64_t kWords = 32;

Variant registers(std::int64_t vectors, int index, int threads, int cluster, int relax) {
  Variant v;
  const std::int64_t rounds = (vectors + threads * cluster - 1) / (threads * cluster);
  v.kernel.threads = threads;
  v.kernel.cluster = cluster;
  v.kernel.blocks_per_sm = std::max(1, (1024 / threads) >> relax);
  v.source = fmt::format("Registers<Region{}, {}, {}, {}>", index, threads, rounds, cluster);
  v.kernel.description = fmt::format("registers, {} threads, {} vectors a thread, {} block{} a row", threads,
                                     rounds, cluster, cluster == 1 ? "" : "s");
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

Variant choose(const RegionShape& shape, std::int64_t vocab, int index, bool clusters, int relax) {
  const std::int64_t vectors = (vocab + shape.width - 1) / shape.width;
  const int sweeps = shape.phases + (shape.emits ? 1 : 0);
  Variant v = streaming(shape, vectors, index, relax);
  if (sweeps > 1) {
    const int threads = threads_for(vectors, 512);
    const int most = clusters && threads == 512 ? 8 : 1;
    const std::int64_t words = shape.row_register_words * shape.width / vocab;  // of one vector
    // Where registers did not suffice, first over twice as many blocks, then with one block a multiprocessor.
    int cluster = 0;
    for (int c = 1; c <= most && cluster == 0; c *= 2) {
      if (words * ((vectors + threads * c - 1) / (threads * c)) <= kWords) cluster = c;
    }
    const bool split = relax == 1 && cluster > 0 && 2 * cluster <= most;
    if (cluster > 0) v = registers(vectors, index, threads, split ? 2 * cluster : cluster, split ? 0 : relax);
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

CudaSource cuda_source(const Plan& plan, const Layout& layout, const Spec& spec, bool clusters, int relax) {
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
    const Variant variant = choose(region.shape, spec.vocab, static_cast<int>(r), clusters, relax);
    source.text += region.text + "\n" + region_kernel(variant, region.shape, static_cast<int>(r));
    source.regions.push_back(variant.kernel);
    if (r < plan.seams.size()) source.seams.push_back(steps(plan.seams[r], fmt::format("seam{}", r), false));
  }
  source.epilogue = steps(plan.epilogue, "epilogue", true);
  source.text += "}  // namespace lossc::cuda\n";
  return source;
}

}  // namespace lossc::cuda
