#include "runtime/cpu_executor.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <mutex>
#include <new>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "compiler/cpu/cpu_compiler.h"
#include "lossc/error.h"
#include "runtime/threads.h"

namespace lossc {

namespace {

// Positions whose sum is formed as one before it joins the others: part of the result's bits, so it is fixed.
constexpr std::int64_t kReductionBlock = 4096;
// A piece of rows pays for one sweep outside of the pipeline; this many rows make that cheap.
constexpr std::int64_t kMinRows = 8;
constexpr std::int64_t kMinElements = 1 << 16;
constexpr std::int64_t kScratchBytes = 48 << 20;
// A gradient of this many bytes leaves the caches before anyone reads it: it is written past them.
constexpr std::int64_t kStreamBytes = 32 << 20;

struct AlignedFree {
  void operator()(void* p) const { std::free(p); }
};

template <class T>
std::unique_ptr<T[], AlignedFree> aligned(std::size_t count) {
  const std::size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
  void* p = std::aligned_alloc(64, std::max<std::size_t>(bytes, 64));
  if (p == nullptr) throw std::bad_alloc();
  std::memset(p, 0, std::max<std::size_t>(bytes, 64));
  return std::unique_ptr<T[], AlignedFree>(static_cast<T*>(p));
}

}  // namespace

struct CpuExecutor::Worker {
  std::unique_ptr<char[], AlignedFree> frames[2];
  std::unique_ptr<float[], AlignedFree> kept;
};

/// Workers that no thread uses at the moment. There are as many as pieces have run at once.
struct CpuExecutor::Workers {
  std::mutex mutex;
  std::vector<std::unique_ptr<Worker>> idle;

  std::unique_ptr<Worker> take() {
    const std::lock_guard lock(mutex);
    if (idle.empty()) return nullptr;
    std::unique_ptr<Worker> worker = std::move(idle.back());
    idle.pop_back();
    return worker;
  }
  void give(std::unique_ptr<Worker> worker) {
    const std::lock_guard lock(mutex);
    idle.push_back(std::move(worker));
  }
};

CpuExecutor::CpuExecutor(std::shared_ptr<const Program::Impl> program)
    : HostExecutor(std::move(program)), workers_(std::make_unique<Workers>()) {}

CpuExecutor::~CpuExecutor() = default;

void CpuExecutor::start(const std::vector<double>& parameters) {
  parameters_.clear();
  for (double value : parameters) parameters_.push_back(static_cast<float>(value));
  const Layout& layout = program_->layout;
  scalars_.assign(std::max<std::size_t>(layout.scalars.size(), 1), 0);
  std::size_t total = 0;
  std::vector<std::size_t> offsets;
  for (ir::NodeId id : layout.buffers) {
    offsets.push_back(total);
    total += static_cast<std::size_t>(batch_.size(program_->plan.loss.graph.node(id).space) + 15) / 16 * 16;
  }
  if (storage_.size() < total) storage_.resize(total);
  buffers_.resize(layout.buffers.size());
  for (std::size_t i = 0; i < buffers_.size(); ++i) buffers_[i] = storage_.data() + offsets[i];
  args_ = {batch_.tensors().data(), buffers_.data(),       scalars_.data(),
           parameters_.data(),      batch_.sizes().data(), batch_.maps().data()};
}

void CpuExecutor::prologue() {
  run_steps(program_->plan.prologue, program_->kernels->prologue);
}

void CpuExecutor::seam(int index) {
  const auto i = static_cast<std::size_t>(index);
  run_steps(program_->plan.seams[i], program_->kernels->seams[i]);
}

void CpuExecutor::epilogue() {
  run_steps(program_->plan.epilogue, program_->kernels->epilogue);
}

void CpuExecutor::run_steps(const std::vector<Step>& steps, const std::vector<cpu::StepFunction>& functions) {
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    const cpu::StepFunction function = functions[i];
    if (step.domain == ir::Space::scalar) {
      function(&args_, 0, 1, nullptr);
      continue;
    }
    const std::int64_t count = batch_.size(step.domain);
    if (step.kind != Step::Kind::reduce) {
      // Segments differ in length: small pieces even them out.
      const std::int64_t piece = step.kind == Step::Kind::segment ? 64 : kReductionBlock;
      parallel_pieces(count, piece, [&](std::int64_t b, std::int64_t e) { function(&args_, b, e, nullptr); });
      continue;
    }
    const std::size_t values = step.values.size();
    const std::int64_t blocks = std::max<std::int64_t>(1, (count + kReductionBlock - 1) / kReductionBlock);
    std::vector<double> partial(values * static_cast<std::size_t>(blocks));
    parallel_pieces(blocks, 1, [&](std::int64_t first, std::int64_t last) {
      for (std::int64_t b = first; b < last; ++b) {
        function(&args_, b * kReductionBlock, std::min(count, (b + 1) * kReductionBlock),
                 partial.data() + static_cast<std::size_t>(b) * values);
      }
    });
    for (std::size_t v = 0; v < values; ++v) {
      const ir::NodeId id = step.values[v];
      const ir::Op op = program_->plan.loss.graph.node(id).op;
      double total = partial[v];
      for (std::size_t b = 1; b < static_cast<std::size_t>(blocks); ++b) {
        const double next = partial[b * values + v];
        if (op == ir::Op::reduce_sum || op == ir::Op::all_reduce) {
          total += next;
        } else if (next != next || (op == ir::Op::reduce_min ? next < total : next > total)) {
          total = next;
        }
      }
      scalars_[static_cast<std::size_t>(program_->layout.scalar_of.at(id))] = static_cast<float>(total);
    }
  }
}

void CpuExecutor::region(int index, std::int64_t row_begin, std::int64_t row_end) {
  const Region& region = program_->plan.regions[static_cast<std::size_t>(index)];
  cpu::RegionFunctions f = program_->kernels->regions[static_cast<std::size_t>(index)];
  batch_.require_elements(*program_, region_tensors(program_->plan.loss.graph, region), region.emit);
  args_.tensors = batch_.tensors().data();
  const std::int64_t rows = row_end - row_begin;
  if (f.emit_stream != nullptr && streams_gradient(row_begin, row_end)) {
    f.emit = f.emit_stream;
    f.fused = f.fused_stream;
  }
  const std::int64_t threads = num_threads();
  const std::int64_t even = (rows + 4 * threads - 1) / (4 * threads);
  const std::int64_t least =
      std::max(kMinRows, kMinElements / std::max<std::int64_t>(program_->spec.vocab, 1));
  // Scratch rows of all pieces that can run at once stay within what is promised.
  const std::int64_t at_once =
      std::max<std::int64_t>(1, kScratchBytes / std::max<std::int64_t>(4 * f.kept_floats, 1));
  const std::int64_t bounded = (rows + at_once - 1) / at_once;
  const std::int64_t piece =
      std::max<std::int64_t>({even, bounded, std::min(least, (rows + threads - 1) / threads), 1});
  parallel_pieces(rows, piece, [&](std::int64_t b, std::int64_t e) {
    std::unique_ptr<Worker> worker = workers_->take();
    if (!worker) worker = make_worker();
    run_rows(region, f, row_begin + b, row_begin + e, *worker);
    workers_->give(std::move(worker));
  });
}

std::unique_ptr<CpuExecutor::Worker> CpuExecutor::make_worker() const {
  std::int64_t frame = 64, kept = 0;
  for (const cpu::RegionFunctions& r : program_->kernels->regions) {
    frame = std::max(frame, r.frame_bytes);
    kept = std::max(kept, r.kept_floats);
  }
  auto worker = std::make_unique<Worker>();
  for (auto& f : worker->frames) f = aligned<char>(static_cast<std::size_t>(frame));
  worker->kept = aligned<float>(static_cast<std::size_t>(kept));
  return worker;
}

// Phases of a row in order; with one phase, a row's gradient is written while the next row is read.
void CpuExecutor::run_rows(const Region& region, const cpu::RegionFunctions& f, std::int64_t begin,
                           std::int64_t end, Worker& worker) {
  const bool clears = program_->plan.gradient != GradientMode::accumulate;
  float* kept = worker.kept.get();
  void* current = worker.frames[0].get();
  void* previous = worker.frames[1].get();
  std::int64_t waiting = -1;  // the row whose gradient is not written yet: its frame is `previous`
  auto sweep = [&](const cpu::PhaseFunctions& phase, std::int64_t row, bool with_previous) {
    if (phase.sample != nullptr) phase.sample(current);
    if (with_previous) {
      f.fused(previous, current, kept);
    } else {
      phase.sweep(current, kept);
    }
    if (phase.finish(&args_, row, current) == 0 && phase.exact != nullptr) {
      phase.exact(current);
      phase.sweep(current, kept);
      phase.finish(&args_, row, current);
    }
  };
  std::vector<const cpu::Strided*> tensors;
  for (ir::NodeId id : region_tensors(program_->plan.loss.graph, region)) {
    tensors.push_back(&batch_.tensors()[static_cast<std::size_t>(program_->layout.tensor_of.at(id))]);
  }
  if (region.emit) tensors.push_back(&batch_.tensors()[static_cast<std::size_t>(program_->layout.gradient)]);
  for (std::int64_t row = begin; row < end; ++row) {
    for (std::size_t i = 0; i < tensors.size(); ++i) static_cast<char**>(current)[i] = tensors[i]->row(row);
    const std::int32_t flags = f.begin(&args_, row, current);
    if ((flags & cpu::kRowActive) == 0) {
      if (region.emit && clears) clear_gradient(row);
      continue;
    }
    const bool live = region.emit && (flags & cpu::kRowLive) != 0;
    if (f.fused != nullptr) {
      sweep(f.phases[0], row, waiting >= 0);
      if (waiting >= 0) finish_gradient(f, previous, waiting);
      waiting = -1;
      if (live) {
        std::swap(current, previous);
        waiting = row;
      }
    } else {
      for (int p = 0; p < f.phase_count; ++p) sweep(f.phases[p], row, false);
      if (live) {
        f.emit(current, kept);
        finish_gradient(f, current, row);
      }
    }
    if (region.emit && !live && clears) clear_gradient(row);
  }
  if (waiting >= 0) {
    f.emit(previous, kept);
    finish_gradient(f, previous, waiting);
  }
#if defined(__x86_64__)
  if (f.emit != nullptr && f.emit == f.emit_stream) _mm_sfence();
#endif
}

bool CpuExecutor::streams_gradient(std::int64_t begin, std::int64_t end) const {
  const auto size = static_cast<std::int64_t>(dtype_size(program_->spec.gradient_dtype));
  if ((end - begin) * program_->spec.vocab * size < kStreamBytes) return false;
  const cpu::Strided& gradient = batch_.tensors()[static_cast<std::size_t>(program_->layout.gradient)];
  const auto address = static_cast<std::int64_t>(reinterpret_cast<std::intptr_t>(gradient.data));
  return ((address | gradient.stride | gradient.outer_stride) & (size - 1)) == 0;
}

char* CpuExecutor::gradient_row(std::int64_t row) const {
  return batch_.tensors()[static_cast<std::size_t>(program_->layout.gradient)].row(row);
}

void CpuExecutor::clear_gradient(std::int64_t row) {
  const std::int64_t bytes =
      program_->spec.vocab * static_cast<std::int64_t>(dtype_size(program_->spec.gradient_dtype));
  std::memset(gradient_row(row), 0, static_cast<std::size_t>(bytes + batch_.gradient_padding()));
}

void CpuExecutor::finish_gradient(const cpu::RegionFunctions& f, void* frame, std::int64_t row) {
  if (f.sparse != nullptr) f.sparse(frame);
  if (batch_.gradient_padding() > 0 && program_->plan.gradient != GradientMode::accumulate) {
    const std::int64_t bytes =
        program_->spec.vocab * static_cast<std::int64_t>(dtype_size(program_->spec.gradient_dtype));
    std::memset(gradient_row(row) + bytes, 0, static_cast<std::size_t>(batch_.gradient_padding()));
  }
}

double CpuExecutor::scalar(ir::NodeId id) const {
  return scalars_[static_cast<std::size_t>(program_->layout.scalar_of.at(id))];
}

double CpuExecutor::buffer(ir::NodeId id, std::int64_t position) const {
  return buffers_[static_cast<std::size_t>(program_->layout.buffer_of.at(id))][position];
}

}  // namespace lossc
