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
constexpr unsigned kThreads = 512, kVectors = 4;             // of 16 bytes, a thread

// Yardsticks: what a kernel without mathematics needs to read, and to read and write.
constexpr const char* kYardsticks = R"(
__device__ __forceinline__ uint4 load(const uint4* p) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
  return v;
}
extern "C" __global__ void __launch_bounds__(512) copy_elements(const uint4* from, uint4* to, unsigned long long count) {
  const unsigned long long first = blockIdx.x * 2048ull + threadIdx.x;
  uint4 v[4];
#pragma unroll
  for (int k = 0; k < 4; ++k) if (first + 512 * k < count) v[k] = load(from + first + 512 * k);
#pragma unroll
  for (int k = 0; k < 4; ++k) if (first + 512 * k < count) __stcs(to + first + 512 * k, v[k]);
}
extern "C" __global__ void __launch_bounds__(512) read_elements(const uint4* from, unsigned* sink, unsigned long long count) {
  const unsigned long long first = blockIdx.x * 2048ull + threadIdx.x;
  unsigned bits = 0;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    if (first + 512 * k < count) {
      const uint4 v = load(from + first + 512 * k);
      bits += v.x ^ v.y ^ v.z ^ v.w;
    }
  }
  if (bits == 0x9e3779b9u) *sink = bits;  // so that nothing is left out
}
)";

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
        module_(cuda::image_code(image(device))),
        copy_(module_.prepare("copy_elements", device)),
        read_(module_.prepare("read_elements", device)),
        flush_(device, kFlushBytes),
        sink_(device, 16) {
    check(driver().cuMemsetD32Async(flush_.address(), 0, kFlushBytes / 4, stream.get()), "clearing memory");
  }

  void copy(CUdeviceptr from, CUdeviceptr to, std::size_t bytes) { launch(copy_, from, to, bytes); }
  void read(CUdeviceptr from, std::size_t bytes) { launch(read_, from, sink_.address(), bytes); }

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
  static KernelImage image(const cuda::Device& device) {
    cuda::NvrtcResult result = cuda::nvrtc_compile({kYardsticks, "yardsticks", device.arch(), {}});
    KernelImage image;
    if (!result.cubin.empty()) image.blobs["cubin"] = std::move(result.cubin);
    image.blobs["ptx"] = std::move(result.ptx);
    return image;
  }

  void launch(CUkernel kernel, CUdeviceptr from, CUdeviceptr to, std::size_t bytes) {
    unsigned long long count = bytes / 16;
    if (count == 0) return;
    void* arguments[] = {&from, &to, &count};
    const auto blocks = static_cast<unsigned>((count + kThreads * kVectors - 1) / (kThreads * kVectors));
    check(driver().cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), blocks, 1, 1, kThreads, 1, 1, 0,
                                  stream_.get(), arguments, nullptr),
          "launching a kernel");
  }

  const cuda::Device& device_;
  const Stream& stream_;
  cuda::Module module_;
  CUkernel copy_, read_;
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
  constexpr int kWarmUp = 3;
  std::array<std::vector<double>, 2> copies;
  const std::int64_t compilations = statistics().compilations;
  for (int repeat = -kWarmUp; repeat < repeats; ++repeat) {
    double host = 0;
    const double run = bench.time([&] {
      const Clock::time_point start = Clock::now();
      execution.run();
      host = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
    });
    const double engine =
        bench.time([&] { check(driver().cuMemcpyDtoDAsync(to, from, bytes, stream.get()), "copying"); });
    const double kernel = bench.time([&] { bench.copy(from, to, bytes); });
    const double read = bench.time([&] { bench.read(from, bytes); });
    if (repeat < 0) continue;
    times.run.push_back(run);
    times.host.push_back(host);
    copies[0].push_back(engine);
    copies[1].push_back(kernel);
    times.read.push_back(read);
  }
  times.compilations = statistics().compilations - compilations;
  if (const ExecutionStatus status = execution.status(); status.bad_rows > 0) {
    throw Error(ErrorCode::internal, fmt::format("{} rows of the random batch are bad", status.bad_rows));
  }
  const bool kernel = median(copies[1]) < median(copies[0]);
  times.copy = copies[kernel ? 1 : 0];
  times.copy_kernel = kernel ? "kernel" : "cuMemcpyDtoDAsync";
  return times;
}

}  // namespace lossc::cli

#endif
