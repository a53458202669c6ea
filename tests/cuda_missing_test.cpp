// K6: what programs on a GPU say where a part of CUDA is missing or does not fit, and that other devices go
// on. Against stubs; where code is generated, the NVRTC of this machine, and without one those cases are
// skipped.
#include <fmt/format.h>

#include <cmath>
#include <cstdio>
#include <map>

#include "catch.h"
#include "child.h"
#include "compiler/cuda/nvrtc.h"
#include "lossc/error.h"
#include "lossc/program.h"

using namespace lossc;
using Catch::Matchers::Contains;
using lossc::test::code_text;
using lossc::test::in_child;

namespace {

const std::string kStubs = std::string(LOSSC_TEST_STUBS) + "/";

const char* const kSpec = R"({"version": 1, "logits": {"dtype": "fp32", "vocab": 4},
  "losses": {"ce": {"type": "cross_entropy"}}, "gradient": {"mode": "none"}})";

bool has_nvrtc() {
  try {
    cuda::nvrtc_build();
    return true;
  } catch (const Error& error) {
    std::printf("a part is skipped: %s\n", error.what());
    return false;
  }
}

// What compiling for cuda:0 says in a process with this environment; then "; ok" if the same process still
// computes a loss without a GPU.
std::string said(std::map<std::string, std::string> environment) {
  environment.emplace("LOSSC_LIBCUDA", kStubs + "cuda_stub_good.so");
  environment.emplace("LOSSC_CACHE_DIR", "");
  environment.emplace("STUB_CUDA_ANY_KERNEL", "1");
  return in_child(environment, [] {
    const Spec spec = Spec::parse(kSpec);
    std::string text = "compiled";
    try {
      Program::compile(spec, {.device = "cuda:0"});
    } catch (const Error& error) {
      text = std::to_string(static_cast<int>(error.code())) + ": " + error.what();
    }
    std::vector<float> logits(8, 0.0f);
    std::vector<std::int64_t> labels = {1, 2};
    Execution execution(
        Program::compile(spec, {.device = available_devices().front() == "cpu" ? "cpu" : "interpreter"}));
    execution.bind("logits", tensor(logits, {2, 4}));
    execution.bind("labels", tensor(labels));
    execution.run();
    return text + (std::abs(execution.value("loss") - std::log(4.0f)) < 1e-5f ? "; ok" : "; wrong");
  });
}

}  // namespace

TEST_CASE("K6: libcuda is missing, too old, or has no device") {
  const std::string missing = said({{"LOSSC_LIBCUDA", "/nowhere/libcuda.so.1"}});
  CHECK_THAT(missing, Contains(code_text(ErrorCode::unsupported)) && Contains("libcuda") &&
                          Contains("/nowhere/libcuda.so.1: cannot open") &&
                          Contains("install the NVIDIA driver") && Contains("; ok"));
  CHECK_THAT(said({{"LOSSC_LIBCUDA", kStubs + "cuda_stub_old.so"}}),
             Contains("525.60 or newer") && Contains("; ok"));
  CHECK_THAT(said({{"STUB_CUDA_INIT", "100"}}), Contains("CUDA_VISIBLE_DEVICES") && Contains("; ok"));
  CHECK_THAT(said({{"STUB_CUDA_INIT", "803"}}), Contains("reboot") && Contains("; ok"));
}

TEST_CASE("K6: libnvrtc is missing or too old") {
  CHECK_THAT(said({{"LOSSC_NVRTC", "/nowhere/libnvrtc.so.13"}}),
             Contains(code_text(ErrorCode::unsupported)) && Contains("NVRTC was not found") &&
                 Contains("/nowhere/libnvrtc.so.13: cannot open") && Contains("nvidia-cuda-nvrtc") &&
                 Contains("; ok"));
  CHECK_THAT(said({{"LOSSC_NVRTC", kStubs + "nvrtc_stub_11.8.so"}}),
             Contains("is NVRTC 11.8; 12.0 or newer is needed") && Contains("; ok"));
}

TEST_CASE("K6: NVRTC's builtins library is missing") {
  CHECK_THAT(said({{"LOSSC_NVRTC", kStubs + "nvrtc_stub_12.9.so"}, {"STUB_NVRTC_FAILS", "builtins"}}),
             Contains(code_text(ErrorCode::unsupported)) &&
                 Contains("libnvrtc-builtins.so.12.9 was not found; tried " + kStubs) &&
                 Contains("put that file next to libnvrtc.so") && Contains("; ok"));
}

TEST_CASE("K6: the driver is older than the toolkit") {
  if (!has_nvrtc()) return;
  // PTX of a newer toolkit, where there is no machine code for the device.
  const std::string ptx = said({{"STUB_CUDA_MAJOR", "99"}, {"STUB_CUDA_KERNEL", "222"}});
  CHECK_THAT(ptx, Contains(code_text(ErrorCode::unsupported)) && Contains("(222)") &&
                      Contains("the driver, which is for CUDA 12.4, is older than the NVRTC") &&
                      Contains("newer driver") && Contains("LOSSC_NVRTC") && Contains("; ok"));
  CHECK_THAT(said({{"STUB_CUDA_MAJOR", "99"}, {"STUB_CUDA_KERNEL", "221"}}),
             Contains("libnvidia-ptxjitcompiler") && Contains("; ok"));
}

TEST_CASE("K6: the GPU is newer than the toolkit") {
  if (!has_nvrtc()) return;
  CHECK(said({{"STUB_CUDA_MAJOR", "99"}}) == "compiled; ok");
  // One older than all that NVRTC knows.
  CHECK_THAT(said({{"STUB_CUDA_MAJOR", "3"}}), Contains(code_text(ErrorCode::unsupported)) &&
                                                   Contains("the oldest that it knows is sm_") &&
                                                   Contains("; ok"));
}
