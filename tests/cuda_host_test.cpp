// What a run asks of the driver, and whose device it asks, against a stub that counts. Skipped where there is
// no NVRTC.
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>

#include "catch.h"
#include "child.h"
#include "compiler/cuda/nvrtc.h"
#include "lossc/error.h"
#include "lossc/program.h"
#include "runtime/cuda/driver.h"

using namespace lossc;
using Catch::Matchers::Contains;
using cuda::check;
using cuda::Device;
using cuda::driver;
using lossc::test::code_text;
using lossc::test::in_child;

namespace {

// Leaves the whole test, for a case of this version of Catch2 cannot be skipped.
void need_nvrtc() {
  try {
    cuda::nvrtc_build();
  } catch (const Error& error) {
    std::printf("skipped: %s\n", error.what());
    std::fflush(stdout);
    std::_Exit(77);
  }
}

template <class Work>
std::string with_stub(Work work, std::map<std::string, std::string> environment = {}) {
  environment["LOSSC_LIBCUDA"] = std::string(LOSSC_TEST_STUBS) + "/cuda_stub_good.so";
  environment["STUB_CUDA_ANY_KERNEL"] = "1";
  environment.emplace("STUB_CUDA_DEVICES", "2");
  return in_child(environment, work);
}

/// The stub's own functions.
struct Stub {
  void* library = ::dlopen(driver().path.c_str(), RTLD_NOW | RTLD_NOLOAD);
  /// For a device; -1: for any.
  int calls(const char* name, int device = -1) const {
    return reinterpret_cast<int (*)(const char*, int)>(::dlsym(library, "stub_calls"))(name, device);
  }
  void forget() const { reinterpret_cast<void (*)()>(::dlsym(library, "stub_forget"))(); }
  std::string all() const {
    const auto name = reinterpret_cast<const char* (*)(int)>(::dlsym(library, "stub_name"));
    std::map<std::string, int> each;
    for (int i = 0; name(i) != nullptr; ++i) each[name(i)] = calls(name(i));
    std::string text;
    for (const auto& [what, count] : each) text += fmt::format("{} {}, ", what, count);
    return text;
  }
};

const char* const kCeZ = R"({"version": 1, "logits": {"dtype": "bf16", "vocab": 4096},
  "losses": {"ce": {"type": "cross_entropy"}, "z": {"type": "z_loss", "weight": 0.01}}})";
const char* const kGspo = R"({"version": 1, "logits": {"dtype": "bf16", "vocab": 4096},
  "losses": {"policy": {"type": "gspo"}, "z": {"type": "z_loss", "weight": 0.01},
             "ce": {"type": "cross_entropy", "weight": 0.5}}})";

/// A program with a batch on a device of the stub.
struct Run {
  Run(const char* spec, int ordinal, bool segments)
      : device(Device::get(ordinal)),
        program(Program::compile(Spec::parse(spec), {.device = fmt::format("cuda:{}", ordinal)})),
        execution(program) {
    const cuda::ContextScope scope(device);
    check(driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "a stream");
    execution.set_stream(stream);
    execution.bind("logits", memory(DType::bf16, {kRows, 4096}));
    execution.bind("labels", memory(DType::i64, {kRows}));
    execution.bind("grad_logits", memory(DType::bf16, {kRows, 4096}));
    execution.bind("loss", memory(DType::fp32, {}));
    if (!segments) return;
    execution.bind("old_logprobs", memory(DType::fp32, {kRows}));
    execution.bind("advantages", memory(DType::fp32, {kRows}));
    execution.bind("cu_seqlens", memory(DType::i64, {9}));
  }
  TensorView memory(DType dtype, std::vector<std::int64_t> shape) {
    TensorView view{nullptr, dtype, std::move(shape), {}};
    const auto bytes = static_cast<std::size_t>(view.size()) * dtype_size(dtype);
    view.data = buffers.emplace_back(device, bytes).data();
    return view;
  }
  static constexpr std::int64_t kRows = 64;
  const Device& device;
  Program program;
  Execution execution;
  CUstream stream = nullptr;
  std::deque<cuda::DeviceBuffer> buffers;
};

}  // namespace

TEST_CASE("a run is its launches, and a repeated run is one") {
  need_nvrtc();
  const auto calls = [](const char* spec, int runs) {
    return with_stub([&] {
      Run run(spec, 0, spec == kGspo);
      const Stub stub;
      for (int i = 1; i < runs; ++i) run.execution.run();
      stub.forget();
      run.execution.run();
      return stub.all();
    });
  };
  // Prologue, region and epilogue; with segments, what orders rows and the seam's steps, too. No other call.
  CHECK_THAT(calls(kCeZ, 2), Catch::Matches("launch [1-3], "));
  CHECK_THAT(
      calls(kGspo, 2),
      Catch::Matches("cuCtxGetCurrent 1, cuCtxPopCurrent 1, cuCtxPushCurrent 1, launch [1-9], memset 1, "));
  for (const char* spec : {kCeZ, kGspo}) CHECK(calls(spec, 20) == "cuGraphLaunch 1, cuStreamIsCapturing 1, ");
}

TEST_CASE("what is bound or set anew is launched anew") {
  need_nvrtc();
  CHECK(with_stub([] {
          Run run(kGspo, 0, true);
          const Stub stub;
          std::string text;
          stub.forget();
          run.execution.run();
          const int all = stub.calls("launch");
          const auto repeat = [&](const char* what) {
            stub.forget();
            run.execution.run();
            const bool one = stub.calls("cuGraphLaunch") == 1 && stub.calls("launch") == 0;
            text += what + std::string(one ? "one" : stub.calls("launch") == all ? "all" : "others") + ", ";
          };
          const TensorView first = run.memory(DType::fp32, {}), second = run.memory(DType::fp32, {});
          run.execution.bind("loss", first);
          for (int i = 0; i < 10; ++i) run.execution.run();
          repeat("");
          run.execution.bind("loss", first);
          run.execution.set("z.weight", 0.01);
          repeat("bound as before: ");
          run.execution.bind("loss", second);
          repeat("bound: ");
          for (int i = 0; i < 10; ++i) run.execution.run();
          run.execution.set("z.weight", 0.02);
          repeat("set: ");
          repeat("");
          for (int i = 0; i < 10; ++i) run.execution.run();
          run.execution.begin(Run::kRows);
          run.execution.forward(0, Run::kRows);
          run.execution.seam();
          run.execution.backward(0, Run::kRows);
          run.execution.finish();
          repeat("after a run in parts: ");
          for (int i = 0; i < 10; ++i) run.execution.run();
          repeat("");
          check(driver().cuStreamBeginCapture(run.stream, CU_STREAM_CAPTURE_MODE_GLOBAL), "capture");
          repeat("captured: ");
          text += stub.calls("captured") == all + 1 ? "all" : "others";  // and a memset
          return text;
        }) ==
        "one, bound as before: one, bound: all, set: all, all, after a run in parts: one, one, captured: "
        "others, "
        "all");
}

TEST_CASE("a number of segments that changes where it lies is seen") {
  need_nvrtc();
  CHECK(with_stub([] {
          Run run(kGspo, 0, false);
          std::int64_t segments = 5, ignored = -1;
          run.execution.bind("old_logprobs", run.memory(DType::fp32, {Run::kRows}));
          run.execution.bind("advantages", run.memory(DType::fp32, {Run::kRows}));
          run.execution.bind("segment_ids", run.memory(DType::i64, {Run::kRows}));
          run.execution.bind("num_segments", TensorView{&segments, DType::i64, {}, {}});
          run.execution.bind("ignore_index", TensorView{&ignored, DType::i64, {}, {}});
          const Stub stub;
          stub.forget();
          run.execution.run();
          const int all = stub.calls("launch");
          std::string text;
          for (std::int64_t* number : {&segments, &ignored, &segments}) {
            for (int i = 0; i < 10; ++i) run.execution.run();
            stub.forget();
            run.execution.run();
            text += stub.calls("launch") == all ? "all " : stub.calls("launch") == 0 ? "one " : "others ";
            *number += 3;
            run.execution.run();
            text += stub.calls("launch") == all ? "all " : stub.calls("launch") == 0 ? "one " : "others ";
          }
          return text;
        }) == "one all one all one all ");
}

TEST_CASE("where a run cannot be recorded its kernels are launched") {
  need_nvrtc();
  CHECK(with_stub(
            [] {
              Run run(kCeZ, 0, false);
              const Stub stub;
              run.execution.run();
              const int all = stub.calls("launch");
              for (int i = 1; i < 20; ++i) run.execution.run();
              return fmt::format("{} {}", stub.calls("launch") == 20 * all, stub.calls("cuGraphLaunch"));
            },
            {{"STUB_CUDA_INSTANTIATE", "801"}}) == "true 0");
}

TEST_CASE("the second device of a process has its own kernels, memory and streams") {
  need_nvrtc();
  CHECK(with_stub([] {
          const Stub stub;
          Run first(kGspo, 0, true);
          const std::int64_t compilations = statistics().compilations;
          const int libraries = stub.calls("cuLibraryLoadData");
          stub.forget();
          Run second(kGspo, 1, true);
          // Nothing was compiled; every kernel is brought onto this device too.
          if (statistics().compilations != compilations) return std::string("compiled");
          if (stub.calls("cuLibraryLoadData") != libraries) return std::string("other libraries");
          if (first.program.key() != second.program.key()) return std::string("another key");
          if (stub.calls("cuKernelGetFunction", 0) != 0) return std::string("kernels on the first device");
          if (stub.calls("cuKernelGetFunction", 1) == 0) return std::string("no kernels on the second");
          // A thread whose context is the first device's.
          const cuda::ContextScope scope(Device::get(0));
          for (int i = 0; i < 10; ++i) second.execution.run();
          for (const char* what : {"launch", "memset", "captured", "cuGraphLaunch", "cuMemAlloc"}) {
            if (stub.calls(what, 0) != 0) return fmt::format("{} on the first device", what);
            if (stub.calls(what, 1) == 0) return fmt::format("no {} on the second device", what);
          }
          stub.forget();
          second.execution.set_stream(nullptr);
          second.execution.run();
          second.execution.set("z.weight", 2);
          second.execution.run();
          for (const char* what : {"launch", "memset", "cuGraphLaunch"}) {
            if (stub.calls(what, 0) != 0 || stub.calls(what, 1) == 0)
              return fmt::format("{}, default stream", what);
          }
          CUdevice current = -1;
          check(driver().cuCtxGetDevice(&current), "the device");
          stub.forget();
          for (int i = 0; i < 10; ++i) first.execution.run();
          return fmt::format("{} {} {}", current, stub.calls("launch", 1), stub.calls("cuGraphLaunch", 0));
        }) == "0 0 6");
}

TEST_CASE("errors name the device") {
  need_nvrtc();
  const auto run_on = [](int ordinal) {
    return [ordinal] {
      Run run(kCeZ, ordinal, false);
      run.execution.run();
      return std::string("ran");
    };
  };
  CHECK(with_stub(run_on(1)) == "ran");
  CHECK_THAT(with_stub(run_on(1), {{"STUB_CUDA_LAUNCH", "700"}}),
             Contains("launching a kernel on cuda:1 failed") && Contains("(700)"));
  CHECK_THAT(with_stub(run_on(2)),
             Contains(code_text(ErrorCode::invalid_argument)) && Contains("allowed are cuda:0 to cuda:1"));
  CHECK_THAT(with_stub([] {
               Run other(kCeZ, 0, false), run(kCeZ, 1, false);
               run.execution.bind("labels", other.memory(DType::i64, {Run::kRows}));
               run.execution.run();
               return std::string();
             }),
             Contains("tensor \"labels\" lies on cuda:0; the program runs on cuda:1"));
}
