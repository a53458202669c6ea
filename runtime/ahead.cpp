#include "runtime/ahead.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lossc/error.h"
#include "runtime/program_key.h"
#ifdef LOSSC_HAS_LLVM
#include "compiler/cpu/cpu_compiler.h"
#endif
#ifdef LOSSC_HAS_CUDA
#include "compiler/cuda/cuda_source.h"
#include "compiler/cuda/nvrtc.h"
#include "runtime/cuda/cuda_images.h"
#endif

namespace lossc {

namespace {

AheadKernels compile_ahead_cpu(KernelCache& cache, const Plan& plan, const Layout& layout, const Spec& spec) {
#ifdef LOSSC_HAS_LLVM
  const KeyFields key = program_key(plan, layout, spec, "cpu");
  AheadKernels kernels{key.digest(), nullptr, false};
  kernels.image = cache.get(key, [&] {
    KernelImage image = cpu::compile_cpu(plan, layout, spec);
    image.info["title"] = program_title(spec);
    kernels.compiled = true;
    return image;
  });
  return kernels;
#else
  (void)cache, (void)plan, (void)layout, (void)spec;
  throw Error(ErrorCode::internal, "no CPU backend");
#endif
}

}  // namespace

std::string ahead_target(const std::string& name) {
  if (name == "cpu") {
#ifndef LOSSC_HAS_LLVM
    throw Error(ErrorCode::unsupported,
                "cpu: this build has no CPU backend: it was configured with LOSSC_ENABLE_LLVM=OFF");
#endif
    return name;
  }
#ifdef LOSSC_HAS_CUDA
  const std::vector<std::string> known = cuda::card_archs();
  const auto refuse = [&]() -> Error {
    const cuda::NvrtcBuild& build = cuda::nvrtc_build();
    return {
        ErrorCode::invalid_argument,
        fmt::format(
            "architecture \"{}\" is none that kernels can be compiled for; allowed are cpu and what NVRTC "
            "{}.{} ({}) knows: {}. LOSSC_NVRTC names another NVRTC",
            name, build.major, build.minor, build.path, fmt::join(known, ", "))};
  };
  std::string arch;
  try {
    arch = cuda::card_arch(std::string_view(name));
  } catch (const Error&) {
    throw refuse();
  }
  if (std::find(known.begin(), known.end(), arch) == known.end()) throw refuse();
  return arch;
#else
  throw Error(ErrorCode::unsupported,
              fmt::format("architecture \"{}\": this build has no CUDA backend (it needs cuda.h and nvrtc.h: "
                          "./dev setup); allowed is cpu",
                          name));
#endif
}

AheadKernels compile_ahead(KernelCache& cache, const Plan& plan, const Layout& layout, const Spec& spec,
                           const std::string& target) {
  if (target == "cpu") return compile_ahead_cpu(cache, plan, layout, spec);
#ifdef LOSSC_HAS_CUDA
  const KeyFields key = program_key(plan, layout, spec, "cuda:" + target);
  AheadKernels kernels{key.digest(), nullptr, false};
  const auto source = [&](int relax) { return cuda::cuda_source(plan, layout, spec, target, relax); };
  kernels.image = cuda::plan_image(cache, key, source, target, program_title(spec), &kernels.compiled);
  return kernels;
#else
  throw Error(ErrorCode::internal, "no CUDA backend");
#endif
}

bool needs_shared_kernels(const Layout& layout, const std::string& target) {
#ifdef LOSSC_HAS_CUDA
  return target != "cpu" && cuda::needs_batch_kernels(layout);
#else
  (void)layout, (void)target;
  return false;
#endif
}

AheadKernels compile_shared_ahead(KernelCache& cache, const std::string& target) {
#ifdef LOSSC_HAS_CUDA
  AheadKernels kernels{cuda::batch_key(target).digest(), nullptr, false};
  kernels.image = cuda::batch_image(cache, target, &kernels.compiled);
  return kernels;
#else
  (void)cache, (void)target;
  throw Error(ErrorCode::internal, "no CUDA backend");
#endif
}

}  // namespace lossc
