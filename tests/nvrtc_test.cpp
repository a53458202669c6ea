// The search for NVRTC and what is negotiated with the version that is found, against stubs; its log.
#include "compiler/cuda/nvrtc.h"

#include <filesystem>

#include "catch.h"
#include "child.h"
#include "compiler/cuda/nvrtc_log.h"
#include "compiler/cuda/nvrtc_search.h"
#include "compiler/cuda/shared_library.h"

using namespace lossc;
using namespace lossc::cuda;
using Catch::Matchers::Contains;
using lossc::test::code_text;
using lossc::test::in_child;

namespace {

std::string stub(const std::string& version) {
  return std::string(LOSSC_TEST_STUBS) + "/nvrtc_stub_" + version + ".so";
}

// What the stub's "cubin" and PTX hold after compiling for `arch`.
std::string options_for(const std::string& version, const std::string& arch) {
  return in_child({{"LOSSC_NVRTC", stub(version)}}, [&] {
    const NvrtcResult result = nvrtc_compile({"source", "name", arch, {"--mine"}});
    return result.target + "\n" + (result.cubin.empty() ? "ptx only\n" : result.cubin) + result.ptx;
  });
}

std::string failure_of(const std::string& version, const std::string& source,
                       const std::vector<std::string>& options = {}) {
  return in_child({{"LOSSC_NVRTC", stub(version)}},
                  [&] { return nvrtc_compile({source, "name", "sm_80", options}).log; });
}

}  // namespace

TEST_CASE("NVRTC: what a version has is used") {
  const std::string old = options_for("12.0", "sm_90a");
  CHECK_THAT(old, Contains("sm_90a\n--gpu-architecture=sm_90a\n"));
  CHECK_THAT(old, Contains("--no-source-include\n"));
  CHECK_THAT(old, Contains("--modify-stack-limit=false\n"));
  CHECK_THAT(old, Contains("--ptxas-options=-v\n--mine\n"));
  CHECK_THAT(old, !Contains("--no-cache"));
  for (const char* version : {"12.9", "13.0"}) {
    CHECK_THAT(options_for(version, "sm_90a"), Contains("--no-cache\n"));
  }
}

TEST_CASE("NVRTC: an architecture that it does not know is compiled as PTX of the newest older one") {
  CHECK_THAT(options_for("13.0", "sm_80"), Contains("sm_80\n--gpu-architecture=sm_80\n"));
  CHECK_THAT(options_for("13.0", "sm_86"), Contains("compute_80\nptx only\n--gpu-architecture=compute_80\n"));
  for (const char* arch : {"sm_100a", "sm_120", "sm_100f"}) {
    CHECK_THAT(options_for("13.0", arch), Contains("compute_90\nptx only\n--gpu-architecture=compute_90\n"));
  }
  CHECK_THAT(options_for("13.0", "sm_120"), Contains("--minimal\n"));
  CHECK_THAT(options_for("12.0", "sm_120"), !Contains("--minimal"));
  CHECK_THAT(options_for("12.0", "sm_90f"), Contains("compute_90\nptx only\n"));
  const std::string old = options_for("13.0", "sm_70");
  CHECK_THAT(old,
             Contains(code_text(ErrorCode::unsupported)) && Contains("sm_75") && Contains("LOSSC_NVRTC"));
  for (const char* arch : {"", "sm_", "90", "sm_90b", "sm_90aa", "sm_-9", "compute_90"}) {
    CHECK_THAT(options_for("13.0", arch), Contains(code_text(ErrorCode::invalid_argument)));
  }
}

TEST_CASE("NVRTC: a compilation that fails says why") {
  const std::string compile = failure_of("13.0", "first @compile\nsecond\nthird\n");
  CHECK_THAT(compile, Contains(code_text(ErrorCode::compile_failed)) && Contains("\"name\" for sm_80"));
  CHECK_THAT(compile, Contains("identifier \"x\" is undefined"));
  CHECK_THAT(compile, Contains("     1 | first @compile\n>    2 | second\n     3 | third\n"));

  const std::string builtins = failure_of("12.9", "@builtins");
  CHECK_THAT(builtins, Contains(code_text(ErrorCode::unsupported)));
  CHECK_THAT(builtins, Contains("libnvrtc-builtins.so.12.9 was not found; tried " LOSSC_TEST_STUBS));
  CHECK_THAT(builtins, Contains("put that file next to libnvrtc.so"));

  CHECK_THAT(failure_of("13.0", "@internal"), Contains("STUB_ERROR"));
  const std::string option = failure_of("13.0", "", {"--nonsense"});
  CHECK_THAT(option,
             Contains("unrecognized option --nonsense") && Contains("options: --gpu-architecture=sm_80"));
  CHECK_THAT(
      in_child({{"LOSSC_NVRTC", stub("13.0")}}, [] { return nvrtc_compile({"", "a/b", "sm_80", {}}).log; }),
      Contains(code_text(ErrorCode::invalid_argument)));
}

TEST_CASE("NVRTC: what was tried is named") {
  const auto build = [](const std::string& path) {
    return in_child({{"LOSSC_NVRTC", path}}, [] { return nvrtc_build().path; });
  };
  CHECK(build(stub("13.0")) == stub("13.0"));
  const std::string missing = build("/nowhere/libnvrtc.so.13");
  CHECK_THAT(missing, Contains(code_text(ErrorCode::unsupported)));
  CHECK_THAT(missing, Contains("/nowhere/libnvrtc.so.13: cannot open shared object file"));
  CHECK_THAT(missing, Contains(kNvrtcRemedy));
  CHECK_THAT(build(stub("11.8")), Contains("is NVRTC 11.8; 12.0 or newer is needed"));
  CHECK_THAT(build(stub("lacks_archs")), Contains("has no function nvrtcGetNumSupportedArchs"));
  CHECK_THAT(in_child({{"LOSSC_NVRTC", "/nowhere/libnvrtc.so.13"}}, nvrtc_status), Contains("not found; "));
  CHECK_THAT(in_child({{"LOSSC_NVRTC", stub("12.9")}}, nvrtc_status),
             Contains("12.9 (") && Contains("but its builtins library was not found"));
}

TEST_CASE("NVRTC: builtins next to it, and a copy that the process has, are found") {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("lossc-nvrtc-" + std::to_string(::getpid()));
  fs::create_directories(folder);
  fs::copy_file(stub("12.9"), folder / "libnvrtc.so.12", fs::copy_options::overwrite_existing);
  fs::copy_file(stub("12.0"), folder / "libnvrtc-builtins.so.12.9", fs::copy_options::overwrite_existing);
  const std::string library = (folder / "libnvrtc.so.12").string();
  const std::string builtins = in_child({{"LOSSC_NVRTC", library}}, [] {
    const NvrtcBuild& build = nvrtc_build();
    return build.builtins_path + (build.build_id.empty() || build.builtins_build_id.empty() ? " no id" : "");
  });
  CHECK(builtins == (folder / "libnvrtc-builtins.so.12.9").string());

  // The stub's soname is libnvrtc.so.12: as a framework's copy would be, it is found under that name.
  const std::string loaded = in_child({}, [&] {
    ::unsetenv("LOSSC_NVRTC");
    if (!open_library(library)) return std::string("cannot open it");
    return nvrtc_build().path;
  });
  CHECK(loaded == library);

  // In the order of the environment's folders.
  fs::create_directories(folder / "lib64");
  fs::copy_file(stub("12.0"), folder / "lib64" / "libnvrtc.so.12", fs::copy_options::overwrite_existing);
  const std::string toolkit = in_child({{"CUDA_HOME", folder.string()}}, [] {
    ::unsetenv("LOSSC_NVRTC");
    return nvrtc_build().path;
  });
  CHECK(toolkit == (folder / "lib64" / "libnvrtc.so.12").string());
  fs::remove_all(folder);
}

TEST_CASE("NVRTC: the environment that changes code is told") {
  CHECK(in_child({{"NV_NVVM_VERSION", "x"}}, [] {
          std::string all;
          for (const std::string& one : nvrtc_environment()) all += one + ";";
          return all;
        }) == "NV_NVVM_VERSION=x;");
}

TEST_CASE("NVRTC: figures are read from ptxas's lines") {
  const std::string log =
      "name(3): warning #177-D: variable \"x\" was declared but never referenced\n"
      "ptxas info    : 304 bytes gmem\n"
      "ptxas info    : Compiling entry function '_Z1gIfEvPT_' for 'sm_90a'\n"
      "ptxas info    : Function properties for _Z1gIfEvPT_\n"
      "ptxas         .     8 bytes stack frame, 12 bytes spill stores, 16 bytes spill loads\n"
      "ptxas info    : Used 255 registers, used 1 barriers, 8 bytes cumulative stack size, 33 bytes smem\n"
      "ptxas info    : Compile time = 2.176 ms\n"
      "ptxas info    : Compiling entry function 'k' for 'sm_90a'\n"
      "ptxas info    : Function properties for k\n"
      "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
      "ptxas info    : Used 20 registers, 404 bytes cmem[0]\n"
      "ptxas info    : Function properties for helper\n"
      "    99 bytes stack frame, 99 bytes spill stores, 99 bytes spill loads\n";
  const std::vector<KernelFigures> kernels = parse_kernel_figures(log);
  REQUIRE(kernels.size() == 2);
  CHECK(kernels[0].name == "_Z1gIfEvPT_");
  CHECK(kernels[0].registers == 255);
  CHECK(kernels[0].stack_bytes == 8);
  CHECK(kernels[0].spill_store_bytes == 12);
  CHECK(kernels[0].spill_load_bytes == 16);
  CHECK(kernels[0].static_shared_bytes == 33);
  CHECK(kernels[1].name == "k");
  CHECK(kernels[1].registers == 20);
  CHECK(kernels[1].stack_bytes == 0);
  CHECK(kernels[1].static_shared_bytes == 0);
  CHECK(parse_kernel_figures("").empty());
}

TEST_CASE("NVRTC: an excerpt shows the lines of errors once") {
  std::string source;
  for (int line = 1; line <= 30; ++line) source += "line " + std::to_string(line) + "\n";
  CHECK(source_excerpt("k(1): error: a\nk(3): error: b\n", "k", source) ==
        ">    1 | line 1\n     2 | line 2\n>    3 | line 3\n     4 | line 4\n     5 | line 5\n     6 | line "
        "6\n");
  CHECK_THAT(source_excerpt("k(1): error: a\nk(29): error: b\n", "k", source), Contains("     ...\n"));
  CHECK(source_excerpt("other(1): error: a\nk(2): warning: w\nk: error\nk(x): error\n", "k", source).empty());
  CHECK(source_excerpt("k(99999): error: beyond the end\n", "k", source).empty());
}
