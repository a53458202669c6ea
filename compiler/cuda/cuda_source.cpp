#include "compiler/cuda/cuda_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "compiler/cuda/card.h"
#include "compiler/cuda/region_source.h"
#include "compiler/cuda/templates.h"

namespace lossc::cuda {

namespace {

struct Variant {
  std::string source;  // "Resident<Region0, 512, 8>"
  RegionKernel kernel;
  int fit = 0;  // blocks that a multiprocessor has room for
};

constexpr int round_up(std::int64_t n, int unit) {
  return static_cast<int>((n + unit - 1) / unit * unit);
}

// With 40 registers a thread, a multiprocessor runs 51 warps; some architectures take no more than 24 blocks.
constexpr int kResidentThreads = 51 * 32, kMostBlocks = 24;
// Beside its part of the row, a block has the records of its warps, and the driver takes 1024 bytes.
constexpr int kFixedShared = 1024 + 1024;
// Vectors that a thread holds: fewer mean more threads that wait for each other in every reduction.
constexpr int kFewestRounds = 8, kMostRounds = 16;
constexpr int kMostThreads = 512, kFewestThreadsOfCluster = 256;

// A row that fits into the shared memory of a block, or of a cluster of blocks, stays there, so long as every
// multiprocessor has room for two blocks: one is read while the other computes and writes. The more bytes
// stand in a multiprocessor, the nearer it comes to a copy; blocks of a cluster wait for each other, which
// takes some of it back. Without a row that is held, the kernel's name stays empty.
Variant resident(const RegionShape& shape, std::int64_t vectors, int index, const Card& card, int relax) {
  Variant best;
  double best_score = 0;
  for (int cluster = 1; cluster <= (card.clusters ? 8 : 1); cluster *= 2) {
    const std::int64_t part = (vectors + cluster - 1) / cluster;
    int rounds = static_cast<int>(std::clamp<std::int64_t>((part + 31) / 32, 1, kFewestRounds));
    while (rounds < kMostRounds && round_up((part + rounds - 1) / rounds, 32) > kMostThreads) ++rounds;
    const int threads = round_up((part + rounds - 1) / rounds, 32);
    if (threads > kMostThreads || (cluster > 1 && threads < kFewestThreadsOfCluster)) continue;
    const int bytes = threads * rounds * shape.vector_bytes;
    const int fit = card.shared_bytes / (bytes + kFixedShared);
    if (fit < 2) continue;
    const int blocks = std::min({fit, kResidentThreads / threads, kMostBlocks});
    const double score = static_cast<double>(blocks * part) * (1 - 0.1 * std::bit_width(unsigned(cluster)));
    if (score <= best_score) continue;
    best_score = score;
    best.kernel.name = fmt::format("region{}", index);
    best.kernel.threads = threads;
    best.kernel.cluster = cluster;
    best.kernel.shared_bytes = bytes;
    best.kernel.blocks_per_sm = std::max(1, blocks >> relax);
    best.fit = blocks;
    best.source = fmt::format("Resident<Region{}, {}, {}, {}>", index, threads, rounds, cluster);
    best.kernel.description = fmt::format("resident, {} threads, {} vectors a thread, {} block{} a row",
                                          threads, rounds, cluster, cluster == 1 ? "" : "s");
  }
  return best;
}

Variant streaming(const RegionShape& shape, std::int64_t vectors, int index, int relax) {
  // Several sweeps: few rows at once, so that they stay in the second-level cache. A gradient alone streams
  // best with large blocks, statistics alone with many small ones.
  Variant v;
  const int sweeps = shape.phases + (shape.emits ? 1 : 0);
  const int most = sweeps > 1 ? 1024 : shape.emits ? 512 : 256;
  // What is on its way fills 16 registers; where the rest does not suffice, a thread gets twice as many, and
  // then has less on its way.
  const int ahead = std::clamp((relax > 1 ? 32 : 64) / std::max(shape.vector_bytes, 1), 1, 4);
  const int resident = sweeps == 1 && !shape.emits ? 1280 : 1024;
  v.kernel.name = fmt::format("region{}", index);
  v.kernel.threads =
      std::clamp(round_up((vectors + ahead - 1) / ahead, 32), 32, relax > 0 ? std::min(most, 512) : most);
  v.kernel.blocks_per_sm = std::clamp((resident >> std::min(relax, 1)) / v.kernel.threads, 1, kMostBlocks);
  v.source = fmt::format("Streaming<Region{}, {}, {}>", index, v.kernel.threads, ahead);
  v.kernel.description = fmt::format("streaming, {} threads, {} vectors ahead", v.kernel.threads, ahead);
  return v;
}

Variant choose(const RegionShape& shape, std::int64_t vocab, int index, const Card& card, int relax) {
  const std::int64_t vectors = (vocab + shape.width - 1) / shape.width;
  // A gradient alone gains if whole rows are read while its coefficients are computed; statistics alone do
  // not.
  if (shape.emits || shape.phases > 1) {
    const Variant held = resident(shape, vectors, index, card, relax);
    const bool several_sweeps = shape.phases + (shape.emits ? 1 : 0) > 1;
    const bool many = held.kernel.cluster == 1 && held.fit > 2;
    if (!held.kernel.name.empty() && (several_sweeps || many)) return held;
  }
  return streaming(shape, vectors, index, relax);
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

std::string templates(std::initializer_list<std::string_view> files) {
  std::string text;
  for (const std::string_view file : files) text += std::string(template_text(file)) + "\n";
  return text;
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
  const std::string begin = fmt::format(
      "// ---- generated from the plan\n\nnamespace lossc::cuda {{\n\nconstexpr int kVocab = {};\n"
      "typedef Arguments<{}, {}, {}, {}, {}> Args;\n\n",
      spec.vocab, layout.tensors.size(), layout.buffers.size(), layout.maps.size(), layout.parameters.size(),
      plan.loss.scalars.size());
  const std::string end = "}  // namespace lossc::cuda\n";

  CudaSource source;
  std::string generated;
  auto add = [&](const std::string& name, std::string_view rows_or_steps, const std::string& text) {
    generated += text;
    source.units.push_back({name, templates({"abi.h", "base.cuh", rows_or_steps}) + begin + text + end});
  };
  auto steps = [&](const std::vector<Step>& list, const std::string& name, bool last) {
    StepSource s = step_source(context, list, name, last, source.tickets);
    if (!s.kernels.empty()) add(name, "steps.cuh", s.text);
    return s.kernels;
  };
  source.prologue = steps(plan.prologue, "prologue", false);
  for (std::size_t r = 0; r < plan.regions.size(); ++r) {
    const RegionSource region = region_source(context, static_cast<int>(r));
    const Variant variant = choose(region.shape, spec.vocab, static_cast<int>(r), card, relax);
    add(variant.kernel.name, "row.cuh",
        region.text + "\n" + region_kernel(variant, region.shape, static_cast<int>(r)));
    source.regions.push_back(variant.kernel);
    if (r < plan.seams.size()) source.seams.push_back(steps(plan.seams[r], fmt::format("seam{}", r), false));
  }
  source.epilogue = steps(plan.epilogue, "epilogue", true);
  source.text = templates({"abi.h", "base.cuh", "row.cuh", "steps.cuh"}) + begin + generated + end;
  return source;
}

}  // namespace lossc::cuda
