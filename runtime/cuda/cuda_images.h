// A plan's kernels for an architecture: from a kernel cache, or compiled into it. Needs NVRTC where they are
// not there yet, and no GPU.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/cuda/cuda_source.h"
#include "compiler/kernel_image.h"
#include "compiler/kernel_key.h"
#include "compiler/layout.h"
#include "runtime/cache/kernel_cache.h"

namespace lossc::cuda {

/// What kernels for a GPU of compute capability `number` (90: 9.0) are compiled for: "sm_80"; from 9.0 on
/// with the suffix of the exact architecture: "sm_90a".
std::string card_arch(int number);
/// The same of a name: "sm_90" and "sm_90a" are "sm_90a". Throws Error(invalid_argument) for what no card is.
std::string card_arch(std::string_view name);
/// All that this NVRTC compiles for: "sm_80", "sm_90a", ... Throws Error(unsupported) where there is none.
std::vector<std::string> card_archs();

/// What the kernels of a plan depend on, for an architecture ("sm_90a").
void add_cuda_fields(KeyFields& key, const std::string& arch);

using ImagePointer = std::shared_ptr<const KernelImage>;

/// The image of a plan's kernels, its units compiled side by side. Kernels that spill registers are asked for
/// again with the next `relax`, up to kMostRelaxed. Throws Error(unsupported | compile_failed). `compiled`
/// says whether it was.
ImagePointer plan_image(KernelCache& cache, const KeyFields& key,
                        const std::function<CudaSource(int)>& source, const std::string& arch,
                        const std::string& title, bool* compiled = nullptr);
/// The `relax` that an image of plan_image was made with.
int image_relax(const KernelImage& image);

/// The kernels of templates/batch.cuh, which bring a batch's segments and pairs into order.
KeyFields batch_key(const std::string& arch);
ImagePointer batch_image(KernelCache& cache, const std::string& arch, bool* compiled = nullptr);
/// Whether a plan needs them.
bool needs_batch_kernels(const Layout& layout);

/// The code in an image that the driver takes, by the names of its units.
std::map<std::string, std::string_view> image_code(const KernelImage& image);

/// The one unit of batch_image().
inline constexpr const char* kBatchUnit = "batch";

}  // namespace lossc::cuda
