// Kernels compiled ahead of time, for machines that are not this one: no GPU is needed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compiler/kernel_image.h"
#include "compiler/layout.h"
#include "runtime/cache/kernel_cache.h"

namespace lossc {

struct AheadKernels {
  std::string key;
  std::shared_ptr<const KernelImage> image;
  bool compiled = false;  ///< false: the cache had them
};

/// What compile_ahead() makes kernels for: "cpu", which is this machine's, or a GPU's architecture, as the
/// card asks for it: "sm_90" gives "sm_90a". Throws Error(invalid_argument), naming those that this NVRTC
/// knows, and Error(unsupported) where a backend or NVRTC is missing.
std::string ahead_target(const std::string& name);

/// The kernels that Program::compile() asks for on a machine of that target, under the same key: from
/// `cache`, or compiled into it. Throws what KernelCache::get() throws.
AheadKernels compile_ahead(KernelCache& cache, const Plan& plan, const Layout& layout, const Spec& spec,
                           const std::string& target);

/// Whether programs of this plan also load the kernels of segments and pairs, which all plans share.
bool needs_shared_kernels(const Layout& layout, const std::string& target);
AheadKernels compile_shared_ahead(KernelCache& cache, const std::string& target);

}  // namespace lossc
