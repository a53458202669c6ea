// The driver on a GPU: loading, launching, memory, captures, fork.
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "catch.h"
#include "child.h"
#include "compiler/cuda/nvrtc.h"
#include "runtime/cuda/driver.h"

using namespace lossc;
using namespace lossc::cuda;
using Catch::Matchers::Contains;
using lossc::test::code_text;
using lossc::test::in_child;

namespace {

constexpr const char* kSource = R"(
extern "C" __global__ void add(float* values, float what, int count) {
  extern __shared__ float shared[];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  shared[threadIdx.x] = what;
  __syncthreads();
  if (i < count) values[i] += shared[threadIdx.x];
}
)";

constexpr int kCount = 1000, kShared = 100 * 1024;

// Leaves the whole test, for a case of this version of Catch2 cannot be skipped.
const Device& need_device() {
  try {
    nvrtc_build();
    return Device::get(0);
  } catch (const Error& error) {
    std::printf("skipped: %s\n", error.what());
    std::fflush(stdout);
    std::_Exit(77);
  }
}

/// A stream that is destroyed with the object.
class Stream {
 public:
  explicit Stream(const Device& device) : scope_(device) {
    check(driver().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  }
  ~Stream() { driver().cuStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator CUstream() const { return stream_; }

 private:
  ContextScope scope_;
  CUstream stream_ = nullptr;
};

void launch(CUkernel kernel, CUstream stream, const DeviceBuffer& buffer, float what) {
  CUdeviceptr address = buffer.address();
  int count = kCount;
  void* arguments[] = {&address, &what, &count};
  check(driver().cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), (kCount + 127) / 128, 1, 1, 128, 1, 1,
                                kShared, stream, arguments, nullptr),
        "cuLaunchKernel");
}

std::vector<float> content(const DeviceBuffer& buffer, CUstream stream) {
  std::vector<float> values(kCount);
  check(driver().cuMemcpyDtoHAsync(values.data(), buffer.address(), buffer.size(), stream),
        "cuMemcpyDtoHAsync");
  check(driver().cuStreamSynchronize(stream), "cuStreamSynchronize");
  return values;
}

NvrtcResult compiled(const Device& device) {
  return nvrtc_compile({kSource, "test", device.arch(), {}});
}

}  // namespace

TEST_CASE("GPU: a cubin and PTX run, with more shared memory than the default") {
  const Device& device = need_device();
  const NvrtcResult code = compiled(device);
  const std::string portable =
      nvrtc_compile({kSource, "test", "sm_" + std::to_string(nvrtc_build().archs.front()), {}}).ptx;
  for (const std::string& image : {code.cubin, code.ptx, portable}) {
    if (image.empty()) continue;
    const Module module(image);
    const CUkernel kernel = module.prepare("add", device, kShared);
    const Stream stream(device);
    const DeviceBuffer buffer(device, kCount * sizeof(float));
    check(driver().cuMemsetD32Async(buffer.address(), 0, kCount, stream), "cuMemsetD32Async");
    launch(kernel, stream, buffer, 2);
    launch(kernel, stream, buffer, 3);
    CHECK(content(buffer, stream) == std::vector<float>(kCount, 5));
  }
}

TEST_CASE("GPU: what is loaded and allocated in a capture does not harm it") {
  const Device& device = need_device();
  const Stream stream(device);
  const DeviceBuffer buffer(device, kCount * sizeof(float));
  check(driver().cuMemsetD32Async(buffer.address(), 0, kCount, stream), "cuMemsetD32Async");
  const std::string image = compiled(device).cubin;

  check(driver().cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "cuStreamBeginCapture");
  {
    const Module module(image);
    const DeviceBuffer other(device, 1 << 20);
    const PinnedBuffer pinned(device, 4096);
    launch(module.prepare("add", device, kShared), stream, buffer, 1);
  }
  CUgraph graph = nullptr;
  check(driver().cuStreamEndCapture(stream, &graph), "cuStreamEndCapture");
  CUgraphExec exec = nullptr;
  check(driver().cuGraphInstantiateWithFlags(&exec, graph, 0), "cuGraphInstantiateWithFlags");
  // The module object has gone; its code has not.
  for (int i = 0; i < 3; ++i) check(driver().cuGraphLaunch(exec, stream), "cuGraphLaunch");
  CHECK(content(buffer, stream) == std::vector<float>(kCount, 3));
  driver().cuGraphExecDestroy(exec);
  driver().cuGraphDestroy(graph);
}

TEST_CASE("GPU: what the driver refuses is told") {
  const Device& device = need_device();
  const ContextScope scope(device);
  CHECK_THROWS_WITH(Module(compiled(device).cubin).kernel("other"), Contains("finding the kernel \"other\""));
  const auto load = [&](const std::string& image) { Module(image).prepare("add", device); };
  const std::string other =
      nvrtc_compile({kSource, "test", device.major() == 8 ? "sm_90" : "sm_80", {}}).cubin;
  CHECK_THROWS_WITH(load(other), Contains("(209)") && Contains("another architecture"));
  CHECK_THROWS_WITH(load(".version 99.0\n.target sm_80\n.address_size 64\n"), Contains("(222)"));
  CHECK_THROWS_WITH(DeviceBuffer(device, std::size_t{1} << 50), Contains("are free"));
  CHECK_THROWS_WITH(Module(compiled(device).cubin).prepare("add", device, device.max_shared_bytes() + 1),
                    Contains("shared memory"));
}

TEST_CASE("GPU: contexts are left as they were found") {
  const Device& device = need_device();
  CUcontext before = nullptr, inside = nullptr, after = nullptr;
  check(driver().cuCtxGetCurrent(&before), "cuCtxGetCurrent");
  {
    const ContextScope outer(device);
    const ContextScope inner(device);
    check(driver().cuCtxGetCurrent(&inside), "cuCtxGetCurrent");
  }
  check(driver().cuCtxGetCurrent(&after), "cuCtxGetCurrent");
  CHECK(inside == device.context());
  CHECK(after == before);
}

TEST_CASE("GPU: a child of fork() compiles, and is told that it cannot use the GPU") {
  const Device& device = need_device();
  DeviceBuffer buffer(device, 16);
  const std::string arch = device.arch();
  const std::string answer = in_child({}, [&] {
    const bool compiles = !nvrtc_compile({kSource, "test", arch, {}}).ptx.empty();
    buffer = DeviceBuffer();  // Must neither crash nor throw.
    return std::string(compiles ? "compiles; " : "") + (driver_available() ? "" : driver_status());
  });
  CHECK_THAT(answer, Contains("compiles; ") && Contains("forked"));
  CHECK_THAT(in_child({}, [] { return Device::get(0).name(); }), Contains(code_text(ErrorCode::unsupported)));
}
