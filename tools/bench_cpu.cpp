// The CPU's part of `lossc bench`.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>

#include "bench/copy.h"
#include "bench/timing.h"
#include "lossc/error.h"
#include "runtime/file.h"
#include "runtime/program_impl.h"
#include "runtime/program_key.h"
#include "tools/bench.h"
#ifdef LOSSC_HAS_LLVM
#include "compiler/cpu/cpu_compiler.h"
#include "runtime/cache/kernel_cache.h"
#endif

namespace lossc::cli {
namespace {

using bench::Team;
using bench::Timing;

constexpr int kAttempts = 5;  // at a measurement in which another process took the core

std::size_t cut(std::size_t bytes, int part, int parts) {
  const std::size_t at = bytes / static_cast<std::size_t>(parts) * static_cast<std::size_t>(part);
  return part == parts ? bytes : at / 64 * 64;
}

std::uint64_t read_all(const char* data, std::size_t bytes) {
  std::uint64_t sums[8] = {};
  for (std::size_t i = 0; i + 64 <= bytes; i += 64) {
    for (std::size_t k = 0; k < 8; ++k) {
      std::uint64_t word = 0;
      std::memcpy(&word, data + i + 8 * k, sizeof word);
      sums[k] += word;
    }
  }
  std::uint64_t sum = 0;
  for (const std::uint64_t s : sums) sum += s;
  return sum;
}

/// Memory of a batch's tensors and a program's outputs.
class Tensors {
 public:
  explicit Tensors(Team& team) : team_(team) {}

  TensorView make(DType dtype, std::vector<std::int64_t> shape) {
    TensorView view{nullptr, dtype, std::move(shape), {}};
    memory_.push_back(
        allocate_bytes(std::max<std::size_t>(static_cast<std::size_t>(view.size()) * dtype_size(dtype), 1)));
    view.data = memory_.back().get();
    return view;
  }
  TensorView filled(const BenchTensor& tensor) {
    const TensorView view = make(tensor.dtype, tensor.shape);
    char* data = static_cast<char*>(view.data);
    const std::size_t all = tensor.size_bytes(), held = tensor.bytes.size();
    // By the threads that will read them, so that pages lie near.
    team_.run([&](int thread) {
      for (std::size_t at = cut(all, thread, team_.size()), end = cut(all, thread + 1, team_.size());
           at < end;) {
        const std::size_t from = at % held, count = std::min(end - at, held - from);
        std::memcpy(data + at, tensor.bytes.data() + from, count);
        at += count;
      }
    });
    return view;
  }

 private:
  Team& team_;
  std::vector<std::shared_ptr<std::byte>> memory_;
};

double load_ms([[maybe_unused]] const Program& program) {
#ifdef LOSSC_HAS_LLVM
  const Program::Impl& impl = *program.impl();
  const auto image = KernelCache::instance().get(program_key(impl.plan, impl.layout, impl.spec, "cpu"), [&] {
    return cpu::compile_cpu(impl.plan, impl.layout, impl.spec);
  });
  const auto start = std::chrono::steady_clock::now();
  cpu::link_cpu(*image);
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
#else
  return 0;
#endif
}

}  // namespace

BenchTimes bench_cpu(const Program& program, const BenchBatch& batch, const Prepare& prepare, int repeats) {
  Team team(num_threads());
  Tensors tensors(team);
  Execution execution(program);
  prepare(execution);
  TensorView logits;
  for (const BenchTensor& input : batch.inputs) {
    if (input.bytes.empty()) continue;
    const TensorView view = tensors.filled(input);
    execution.bind(input.name, view);
    if (input.name == "logits") logits = view;
  }
  for (const TensorInfo& output : program.outputs()) {
    if (output.space == "rows") {
      execution.bind(output.name, tensors.make(output.dtypes.front(), {batch.rows}));
    } else if (output.space == "element" && program.spec().gradient_mode != GradientMode::in_place) {
      const TensorView gradient = tensors.make(output.dtypes.front(), logits.shape);
      std::memset(gradient.data, 0, static_cast<std::size_t>(gradient.size()) * dtype_size(gradient.dtype));
      execution.bind(output.name, gradient);
    }
  }

  BenchTimes times;
  times.device = "CPU, " + std::to_string(num_threads()) + " threads";
  times.load = load_ms(program);
  const std::size_t bytes = static_cast<std::size_t>(logits.size()) * dtype_size(logits.dtype);
  times.bytes = static_cast<double>(bytes);
  const TensorView scratch = tensors.make(logits.dtype, logits.shape);
  const char* from = static_cast<const char*>(logits.data);
  char* to = static_cast<char*>(scratch.data);

  const std::vector<bench::CopyKernel> kernels = bench::copy_kernels();
  std::vector<std::vector<double>> copies(kernels.size());
  std::vector<std::uint64_t> sums(static_cast<std::size_t>(team.size()) * 8);
  const std::int64_t compilations = statistics().compilations;
  for (int repeat = -1; repeat < repeats; ++repeat) {  // the first warms up
    bool disturbed = false;
    const auto measure = [&](const std::function<Timing()>& work) {
      const Timing timing = bench::undisturbed(kAttempts, work);
      disturbed = disturbed || timing.disturbed;
      return timing.seconds * 1e3;
    };
    const auto shared = [&](const auto& work) {
      return measure([&] {
        return team.run([&](int thread) {
          const std::size_t begin = cut(bytes, thread, team.size());
          work(thread, begin, cut(bytes, thread + 1, team.size()) - begin);
        });
      });
    };
    std::vector<double> copied;
    for (const bench::CopyKernel& kernel : kernels) {
      copied.push_back(
          shared([&](int, std::size_t at, std::size_t count) { kernel.copy(to + at, from + at, count); }));
    }
    const double read = shared([&](int thread, std::size_t at, std::size_t count) {
      sums[static_cast<std::size_t>(thread) * 8] = read_all(from + at, count);
    });
    const double run = measure([&] { return bench::time_call([&] { execution.run(); }); });
    if (repeat < 0) continue;
    times.run.push_back(run);
    times.read.push_back(read);
    for (std::size_t k = 0; k < kernels.size(); ++k) copies[k].push_back(copied[k]);
    times.disturbed += disturbed ? 1 : 0;
  }
  times.compilations = statistics().compilations - compilations;
  const auto fastest = std::min_element(copies.begin(), copies.end(),
                                        [](const auto& a, const auto& b) { return median(a) < median(b); });
  times.copy = *fastest;
  times.copy_kernel = kernels[static_cast<std::size_t>(fastest - copies.begin())].name;
  return times;
}

}  // namespace lossc::cli
