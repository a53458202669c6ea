// The search for the driver, its failures, and what is loaded through it, against stubs.
#include "runtime/cuda/driver.h"

#include "catch.h"
#include "child.h"
#include "runtime/cuda/image.h"

using namespace lossc;
using namespace lossc::cuda;
using Catch::Matchers::Contains;
using lossc::test::code_text;
using lossc::test::in_child;

namespace {

std::string stub(const std::string& kind) {
  return std::string(LOSSC_TEST_STUBS) + "/cuda_stub_" + kind + ".so";
}

template <class Work>
std::string with_stub(Work work, std::map<std::string, std::string> environment = {}) {
  environment["LOSSC_LIBCUDA"] = stub("good");
  return in_child(environment, work);
}

std::string open_driver() {
  return driver().path;
}

constexpr const char* kPtx = ".version 8.0\n.target sm_80\n";

}  // namespace

TEST_CASE("driver: found, or what was tried is named") {
  CHECK(with_stub(open_driver) == stub("good"));
  CHECK_THAT(with_stub(driver_status), Contains("CUDA 12.4 (" + stub("good")));
  const std::string missing = in_child({{"LOSSC_LIBCUDA", "/nowhere/libcuda.so.1"}}, open_driver);
  CHECK_THAT(missing, Contains(code_text(ErrorCode::unsupported)));
  CHECK_THAT(missing,
             Contains("/nowhere/libcuda.so.1: cannot open") && Contains("install the NVIDIA driver"));
  CHECK(in_child({{"LOSSC_LIBCUDA", "/nowhere/libcuda.so.1"}},
                 [] { return std::string(driver_available() ? "yes" : "no"); }) == "no");
}

TEST_CASE("driver: one that is too old says so") {
  CHECK_THAT(in_child({{"LOSSC_LIBCUDA", stub("old")}}, open_driver),
             Contains(code_text(ErrorCode::unsupported)) && Contains("525.60 or newer"));
  CHECK_THAT(in_child({{"LOSSC_LIBCUDA", stub("lacking")}}, open_driver),
             Contains("it lacks cuLibraryLoadData, ") && Contains("525.60 or newer"));
}

TEST_CASE("driver: failures to start say what to do") {
  for (const auto& [code, hint] : std::map<std::string, std::string>{{"3", "spawn"},
                                                                     {"34", "stub"},
                                                                     {"100", "CUDA_VISIBLE_DEVICES"},
                                                                     {"803", "reboot"},
                                                                     {"804", "cuda-compat"},
                                                                     {"999", "/dev/nvidia"}}) {
    CAPTURE(code);
    const std::string answer = with_stub(open_driver, {{"STUB_CUDA_INIT", code}});
    CHECK_THAT(answer,
               Contains(code_text(ErrorCode::unsupported)) && Contains("(" + code + ")") && Contains(hint));
  }
#ifdef LOSSC_TEST_CUDA_STUBS
  // What the toolkit has for linking.
  CHECK_THAT(in_child({{"LOSSC_LIBCUDA", LOSSC_TEST_CUDA_STUBS}}, open_driver),
             Contains("the toolkit's stub"));
#endif
}

TEST_CASE("driver: a child of fork() is told that it cannot use the GPU") {
  const std::string answer = with_stub([] {
    driver();
    DeviceBuffer buffer(Device::get(0), 16);
    return in_child({}, [] { return Device::get(0).name(); });
  });
  CHECK_THAT(answer, Contains(code_text(ErrorCode::unsupported)) && Contains("forked") && Contains("spawn"));
  // What is not initialised may be used by a child.
  CHECK(in_child({{"LOSSC_LIBCUDA", stub("good")}, {"STUB_CUDA_INIT", "100"}}, [] {
          const bool parent = driver_available();
          return in_child({}, [&] { return std::string(parent ? "yes" : driver_status()); });
        }).find("forked") == std::string::npos);
}

TEST_CASE("driver: errors have a name, a number and a hint") {
  const auto text = [](int code) {
    return with_stub([code] {
      driver();
      check(static_cast<CUresult>(code), "launching a kernel");
      return std::string("good");
    });
  };
  CHECK(text(0) == "good");
  CHECK_THAT(text(700),
             Contains(code_text(ErrorCode::compile_failed)) &&
                 Contains("launching a kernel failed: CUDA_ERROR_STUB (700), the stub says so: ") &&
                 Contains("start it anew"));
  CHECK_THAT(text(222), Contains(code_text(ErrorCode::unsupported)) && Contains("older than the NVRTC"));
  CHECK_THAT(text(2), Contains("1 of 4 MiB are free"));
}

TEST_CASE("devices: what they are, and which there are") {
  CHECK(with_stub(
            [] {
              const Device& device = Device::get(1);
              return device.name() + " " + device.arch() + " " + std::to_string(device.max_shared_bytes());
            },
            {{"STUB_CUDA_DEVICES", "2"}}) == "Stub 1 sm_90a 232448");
  CHECK_THAT(with_stub([] { return Device::get(1).name(); }),
             Contains(code_text(ErrorCode::invalid_argument)) && Contains("allowed are cuda:0 to cuda:0"));
  CHECK_THAT(with_stub([] { return Device::get(0).name(); }, {{"STUB_CUDA_DEVICES", "0"}}),
             Contains("no GPU is visible"));
}

TEST_CASE("modules: kernels are found and prepared outside captures") {
  CHECK(with_stub([] {
          const Module module(kPtx);
          const Device& device = Device::get(0);
          const bool same = module.prepare("k", device, 200000, true) == module.kernel("k") &&
                            module.prepare("k", device, 100) == module.kernel("k");
          CUcontext context = nullptr;
          driver().cuCtxGetCurrent(&context);
          return std::string(same && context == nullptr ? "good" : "bad");
        }) == "good");
  CHECK_THAT(with_stub([] {
               Module(kPtx).prepare("k", Device::get(0), 232448);
               return std::string();
             }),
             Contains(code_text(ErrorCode::unsupported)) && Contains("232496 bytes"));
  CHECK_THAT(with_stub([] { return std::to_string(Module(kPtx).kernel("other") != nullptr); }),
             Contains("finding the kernel \"other\" failed") && Contains("(500)"));
  CHECK_THAT(with_stub([] { return std::to_string(Module(kPtx).kernel("k") != nullptr); },
                       {{"STUB_CUDA_KERNEL", "218"}}),
             Contains("(218)") && Contains("the driver's log"));
}

TEST_CASE("modules: a damaged image never reaches the driver") {
  const auto load = [](const std::string& image) {
    return with_stub([&] {
      const Module module(image);
      return std::string("loaded");
    });
  };
  CHECK(load(kPtx) == "loaded");
  const std::string elf =
      "\x7f"
      "ELF";
  for (const std::string& image : {std::string(), std::string("text"), std::string(kPtx) + '\0', elf,
                                   elf + std::string(60, '\2'), elf + std::string(60, '\0')}) {
    CHECK_THAT(load(image), Contains(code_text(ErrorCode::io)) && Contains("damaged"));
  }
}

TEST_CASE("buffers: memory that moves and goes") {
  CHECK(with_stub([] {
          const Device& device = Device::get(0);
          DeviceBuffer a(device, 64), empty(device, 0);
          const CUdeviceptr address = a.address();
          DeviceBuffer b(std::move(a));
          a = std::move(b);
          empty = DeviceBuffer();
          return std::string(a.address() == address && a.size() == 64 && b.size() == 0 ? "good" : "bad");
        }) == "good");
  CHECK_THAT(with_stub([] {
               DeviceBuffer(Device::get(0), std::size_t{1} << 41);
               return std::string();
             }),
             Contains("allocating 2199023255552 bytes on cuda:0") && Contains("1 of 4 MiB are free"));
}
