// A GPU's part of `lossc bench`.
#include "tools/bench.h"

#ifndef LOSSC_HAS_CUDA

#include "lossc/error.h"

namespace lossc::cli {

BenchTimes bench_cuda(const Program&, const BenchBatch&, const Prepare&, int) {
  throw Error(ErrorCode::unsupported,
              "this build has no CUDA backend (it needs cuda.h and nvrtc.h: ./dev setup)");
}

}  // namespace lossc::cli

#else

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <list>

#include "compiler/cuda/nvrtc.h"
#include "lossc/error.h"
#include "runtime/cuda/cuda_images.h"
#include "runtime/cuda/cuda_kernels.h"
#include "runtime/cuda/driver.h"
#include "runtime/program_impl.h"
#include "runtime/program_key.h"

namespace lossc::cli {
namespace {

using cuda::check;
using cuda::driver;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kFlushBytes = std::size_t{512} << 20;  // several times any second-level cache

// Yardsticks: what a kernel without mathematics needs to read, and to read and write. A vector of 16 bytes a
// thread in small blocks is what is fastest where memory is read and written at once; reading alone is as
// fast with several.
constexpr const char* kYardsticks = R"(
__device__ __forceinline__ uint4 load(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
template <int vectors>
__device__ __forceinline__ void copy(const uint4* from, uint4* to, unsigned long long count) {
  const unsigned long long first = (unsigned long long)blockIdx.x * vectors * blockDim.x + threadIdx.x;
  uint4 v[vectors];
#pragma unroll
  for (int k = 0; k < vectors; ++k) if (first + k * blockDim.x < count) v[k] = load(from + first + k * blockDim.x);
#pragma unroll
  for (int k = 0; k < vectors; ++k) if (first + k * blockDim.x < count) to[first + k * blockDim.x] = v[k];
}
extern "C" __global__ void copy_1(const uint4* from, uint4* to, unsigned long long count) { copy<1>(from, to, count); }
extern "C" __global__ void copy_2(const uint4* from, uint4* to, unsigned long long count) { copy<2>(from, to, count); }
extern "C" __global__ void copy_4(const uint4* from, uint4* to, unsigned long long count) { copy<4>(from, to, count); }
extern "C" __global__ void read_4(const uint4* from, unsigned* sink, unsigned long long count) {
  const unsigned long long first = (unsigned long long)blockIdx.x * 4 * blockDim.x + threadIdx.x;
  unsigned bits = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (first + k * blockDim.x < count) {
      const uint4 v = load(from + first + k * blockDim.x);
      bits += v.x ^ v.y ^ v.z ^ v.w;
    }
  }
  if (bits == 0x9e3779b9u) *sink = bits;  // so that nothing is left out
}
)";

struct Yardstick {
  const char* kernel;
  unsigned threads, vectors;  ///< of 16 bytes, a thread
  bool in_place;
  const char* name;
};
constexpr Yardstick kRead = {"read_4", 512, 4, false, "read"};
constexpr std::array kCopies = {
    Yardstick{"copy_1", 128, 1, false, "kernel of 128 threads, 1 vector"},
    Yardstick{"copy_1", 128, 1, true, "kernel of 128 threads, 1 vector, in place"},
    Yardstick{"copy_2", 128, 2, false, "kernel of 128 threads, 2 vectors"},
    Yardstick{"copy_4", 512, 4, false, "kernel of 512 threads, 4 vectors"},
};

class Event {
 public:
  Event() { check(driver().cuEventCreate(&handle_, CU_EVENT_DEFAULT), "making an event"); }
  ~Event() { driver().cuEventDestroy(handle_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  CUevent get() const { return handle_; }

 private:
  CUevent handle_ = nullptr;
};

class Stream {
 public:
  Stream() { check(driver().cuStreamCreate(&handle_, CU_STREAM_NON_BLOCKING), "making a stream"); }
  ~Stream() { driver().cuStreamDestroy(handle_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  CUstream get() const { return handle_; }
  void wait() const { check(driver().cuStreamSynchronize(handle_), "waiting for the device"); }

 private:
  CUstream handle_ = nullptr;
};

class Bench {
 public:
  Bench(const cuda::Device& device, const Stream& stream)
      : device_(device),
        stream_(stream),
        module_(code(device)),
        flush_(device, kFlushBytes),
        sink_(device, 16) {
    check(driver().cuMemsetD32Async(flush_.address(), 0, kFlushBytes / 4, stream.get()), "clearing memory");
  }

  void copy(const Yardstick& how, CUdeviceptr from, CUdeviceptr to, std::size_t bytes) {
    launch(how, from, how.in_place ? from : to, bytes);
  }
  void read(CUdeviceptr from, std::size_t bytes) { launch(kRead, from, sink_.address(), bytes); }

  /// Milliseconds of what `work` puts on the stream, with none of its tensors in the cache.
  template <class Work>
  double time(const Work& work) {
    read(flush_.address(), kFlushBytes);
    check(driver().cuEventRecord(begin_.get(), stream_.get()), "recording an event");
    work();
    check(driver().cuEventRecord(end_.get(), stream_.get()), "recording an event");
    stream_.wait();
    float milliseconds = 0;
    check(driver().cuEventElapsedTime(&milliseconds, begin_.get(), end_.get()), "reading a time");
    return milliseconds;
  }

 private:
  static std::string code(const cuda::Device& device) {
    const cuda::NvrtcResult result = cuda::nvrtc_compile({kYardsticks, "yardsticks", device.arch(), {}});
    return result.cubin.empty() ? result.ptx : result.cubin;
  }

  void launch(const Yardstick& how, CUdeviceptr from, CUdeviceptr to, std::size_t bytes) {
    unsigned long long count = bytes / 16;
    if (count == 0) return;
    void* arguments[] = {&from, &to, &count};
    const unsigned long long each = how.threads * how.vectors;
    check(driver().cuLaunchKernel(reinterpret_cast<CUfunction>(module_.prepare(how.kernel, device_)),
                                  static_cast<unsigned>((count + each - 1) / each), 1, 1, how.threads, 1, 1,
                                  0, stream_.get(), arguments, nullptr),
          "launching a kernel");
  }

  const cuda::Device& device_;
  const Stream& stream_;
  cuda::Module module_;
  cuda::DeviceBuffer flush_, sink_;
  Event begin_, end_;
};

/// Device memory of a batch's tensors and a program's outputs.
class Tensors {
 public:
  explicit Tensors(const cuda::Device& device) : device_(device) {}

  TensorView make(DType dtype, std::vector<std::int64_t> shape) {
    TensorView view{nullptr, dtype, std::move(shape), {}};
    const std::size_t bytes = static_cast<std::size_t>(view.size()) * dtype_size(dtype);
    buffers_.emplace_back(device_, std::max<std::size_t>(bytes, 16));
    view.data = buffers_.back().data();
    return view;
  }
  TensorView filled(const BenchTensor& tensor) {
    const TensorView view = make(tensor.dtype, tensor.shape);
    const std::size_t all = tensor.size_bytes(), held = tensor.bytes.size();
    const auto base = reinterpret_cast<CUdeviceptr>(view.data);
    for (std::size_t at = 0; at < all; at += held) {
      check(driver().cuMemcpyHtoD(base + at, tensor.bytes.data(), std::min(held, all - at)),
            "copying to the device");
    }
    return view;
  }
  TensorView zeros(DType dtype, std::vector<std::int64_t> shape) {
    const TensorView view = make(dtype, std::move(shape));
    const std::size_t bytes = static_cast<std::size_t>(view.size()) * dtype_size(dtype);
    check(driver().cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(view.data), 0, bytes, nullptr),
          "clearing memory");
    check(driver().cuStreamSynchronize(nullptr), "waiting for the device");
    return view;
  }

 private:
  const cuda::Device& device_;
  std::list<cuda::DeviceBuffer> buffers_;
};

double microseconds(const Clock::time_point& start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// What run() costs the host, with nothing else in the stream: repeated, and each time after `change`. Small
// batches of runs, for a full stream makes the host wait.
std::vector<double> host_times(Execution& execution, const Stream& stream,
                               const std::function<void(int)>& change) {
  constexpr int kWarmUp = 10, kBatch = 20, kRuns = 200;
  std::vector<double> times;
  for (int i = -kWarmUp; i < kRuns; ++i) {
    if (i % kBatch == 0) stream.wait();
    if (change) change(i);
    const Clock::time_point start = Clock::now();
    execution.run();
    if (i >= 0) times.push_back(microseconds(start));
  }
  stream.wait();
  return times;
}

double load_ms(const Program& program, const cuda::Device& device) {
  const Program::Impl& impl = *program.impl();
  const KeyFields key =
      program_key(impl.plan, impl.layout, impl.spec, fmt::format("cuda:{}", device.ordinal()));
  const Clock::time_point start = Clock::now();
  cuda::load_cuda_kernels(impl.plan, impl.layout, impl.spec, key, device,
                          cuda::needs_batch_kernels(impl.layout), program_title(impl.spec));
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

}  // namespace

BenchTimes bench_cuda(const Program& program, const BenchBatch& batch, const Prepare& prepare, int repeats) {
  const cuda::Device& device = *program.impl()->cuda_kernels->device;
  const cuda::ContextScope scope(device);
  BenchTimes times;
  times.device = device.name();
  times.load = load_ms(program, device);

  const Stream stream;
  Tensors tensors(device);
  Execution execution(program);
  prepare(execution);
  execution.set_stream(stream.get());
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
    } else if (output.space == "scalar") {
      execution.bind(output.name, tensors.make(DType::fp32, {}));
    } else if (program.spec().gradient_mode != GradientMode::in_place) {
      execution.bind(output.name, tensors.zeros(output.dtypes.front(), logits.shape));
    }
  }
  const std::size_t bytes = static_cast<std::size_t>(logits.size()) * dtype_size(logits.dtype);
  times.bytes = static_cast<double>(bytes);
  const TensorView scratch = tensors.make(logits.dtype, logits.shape);
  const auto from = reinterpret_cast<CUdeviceptr>(logits.data),
             to = reinterpret_cast<CUdeviceptr>(scratch.data);

  Bench bench(device, stream);
  // The first runs of a batch are not yet those that are repeated.
  constexpr int kWarmUp = 6;
  std::array<std::vector<double>, kCopies.size() + 1> copies;
  const std::int64_t compilations = statistics().compilations;
  for (int repeat = -kWarmUp; repeat < repeats; ++repeat) {
    const double run = bench.time([&] { execution.run(); });
    if (repeat + 2 < 0) continue;
    std::array<double, copies.size()> copied{};
    for (std::size_t i = 0; i < kCopies.size(); ++i)
      copied[i] = bench.time([&] { bench.copy(kCopies[i], from, to, bytes); });
    copied.back() =
        bench.time([&] { check(driver().cuMemcpyDtoDAsync(to, from, bytes, stream.get()), "copying"); });
    const double read = bench.time([&] { bench.read(from, bytes); });
    if (repeat < 0) continue;
    times.run.push_back(run);
    for (std::size_t i = 0; i < copies.size(); ++i) copies[i].push_back(copied[i]);
    times.read.push_back(read);
  }
  times.host = host_times(execution, stream, {});
  const std::array<TensorView, 2> losses = {tensors.make(DType::fp32, {}), tensors.make(DType::fp32, {})};
  times.host_anew = host_times(execution, stream, [&](int i) { execution.bind("loss", losses[i & 1]); });
  times.compilations = statistics().compilations - compilations;
  if (const ExecutionStatus status = execution.status(); status.bad_rows > 0) {
    throw Error(ErrorCode::internal, fmt::format("{} rows of the random batch are bad", status.bad_rows));
  }
  std::size_t best = 0;
  for (std::size_t i = 1; i < copies.size(); ++i) {
    if (median(copies[i]) < median(copies[best])) best = i;
  }
  times.copy = copies[best];
  times.copy_kernel = best < kCopies.size() ? kCopies[best].name : "cuMemcpyDtoDAsync";
  return times;
}

}  // namespace lossc::cli

#endif
