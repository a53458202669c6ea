// Compilations by the NVRTC of this machine. Skipped where there is none.
#include <cstdio>
#include <thread>

#include "catch.h"
#include "child.h"
#include "compiler/cuda/nvrtc.h"
#include "runtime/cuda/image.h"
#include "tests/need_nvrtc.h"

using namespace lossc;
using namespace lossc::cuda;
using Catch::Matchers::Contains;
using lossc::test::in_child;
using lossc::test::need_nvrtc;

namespace {

constexpr const char* kSource = R"(
extern "C" __global__ void scale(float* values, int count) {
  __shared__ float factor[32];
  if (threadIdx.x < 32) factor[threadIdx.x] = values[threadIdx.x];
  __syncthreads();
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < count) values[i] = expf(values[i]) * factor[i & 31];
}
extern "C" __global__ void framed(int* values, int count) {
  int copy[200];
  for (int i = 0; i < count; ++i) copy[i] = values[i];
  for (int i = 0; i < count; ++i) values[i] = copy[i * 7 % count];
}
)";

bool knows(int arch) {
  const std::vector<int>& archs = nvrtc_build().archs;
  return std::find(archs.begin(), archs.end(), arch) != archs.end();
}

}  // namespace

TEST_CASE("NVRTC compiles for every architecture that it knows, and says what kernels use") {
  need_nvrtc();
  for (const auto& [arch, number] :
       std::map<std::string, int>{{"sm_80", 80}, {"sm_90a", 90}, {"sm_100a", 100}, {"sm_120", 120}}) {
    CAPTURE(arch);
    const NvrtcResult result = nvrtc_compile({kSource, "test", arch, {}});
    CHECK(result.milliseconds > 0);
    CHECK_THAT(result.ptx, Contains(".version") && Contains("scale"));
    CHECK_NOTHROW(check_image(result.ptx));
    if (!knows(number)) {
      CHECK(result.target.starts_with("compute_"));
      CHECK(result.cubin.empty());
      continue;
    }
    CHECK(result.target == arch);
    REQUIRE(
        result.cubin.starts_with("\x7f"
                                 "ELF"));
    CHECK_NOTHROW(check_image(result.cubin));
    for (const std::size_t size :
         {std::size_t{10}, std::size_t{200}, result.cubin.size() / 2, result.cubin.size() - 1}) {
      CHECK_THROWS_AS(check_image(result.cubin.substr(0, size)), Error);
    }
    REQUIRE(result.kernels.size() == 2);
    for (const KernelFigures& kernel : result.kernels) {
      CAPTURE(kernel.name);
      CHECK(kernel.registers > 0);
      CHECK(kernel.spill_store_bytes == 0);
      CHECK(kernel.static_shared_bytes >= (kernel.name == "scale" ? 128 : 0));
      CHECK(kernel.stack_bytes == (kernel.name == "scale" ? 0 : 800));
    }
  }
}

TEST_CASE("NVRTC: a GPU newer than the toolkit gets PTX") {
  need_nvrtc();
  const NvrtcResult result = nvrtc_compile({kSource, "test", "sm_999a", {}});
  CHECK(result.target == "compute_" + std::to_string(nvrtc_build().archs.back()));
  CHECK(result.cubin.empty());
  CHECK(result.kernels.empty());
  CHECK_THAT(result.ptx, Contains(".target sm_" + std::to_string(nvrtc_build().archs.back())));
}

TEST_CASE("NVRTC: the same source gives the same code, in a child of fork() and in threads too") {
  need_nvrtc();
  const auto cubin = [] { return nvrtc_compile({kSource, "test", "sm_80", {}}).cubin; };
  const std::string first = cubin();
  CHECK(in_child({}, cubin) == first);
  std::vector<std::string> others(3);
  {
    std::vector<std::jthread> threads;
    for (std::string& other : others) threads.emplace_back([&] { other = cubin(); });
  }
  for (const std::string& other : others) CHECK(other == first);
}

TEST_CASE("NVRTC: no driver is touched, and no file is read") {
  need_nvrtc();
  nvrtc_compile({kSource, "test", "sm_80", {}});
  std::string maps(1 << 22, '\0');
  std::FILE* file = std::fopen("/proc/self/maps", "r");
  if (file != nullptr) {
    maps.resize(std::fread(maps.data(), 1, maps.size(), file));
    std::fclose(file);
    CHECK_THAT(maps, !Contains("libcuda.so"));
  }
  CHECK_THROWS_WITH(nvrtc_compile({"#include \"README.md\"\n", "test", "sm_80", {}}), Contains("README.md"));
}

TEST_CASE("NVRTC: errors come with the log and the source") {
  need_nvrtc();
  const std::string broken = "extern \"C\" __global__ void k(float* x) {\n  x[0] = y;\n}\n";
  CHECK_THROWS_WITH(nvrtc_compile({broken, "test", "sm_80", {}}),
                    Contains("identifier \"y\" is undefined") && Contains(">    2 |   x[0] = y;"));
  const std::string large =
      "extern \"C\" __global__ void k(float* x) { __shared__ float s[200000]; s[threadIdx.x] "
      "= x[0]; __syncthreads(); x[1] = s[5]; }\n";
  CHECK_THROWS_WITH(nvrtc_compile({large, "test", "sm_80", {}}), Contains("too much shared data"));
}
