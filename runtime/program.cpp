#include "lossc/program.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "compiler/plan_print.h"
#include "ir/spec_parameters.h"
#include "runtime/cache/kernel_cache.h"
#include "runtime/kernel_memory.h"
#include "runtime/program_impl.h"
#include "runtime/program_key.h"
#ifdef LOSSC_HAS_LLVM
#include "compiler/cpu/cpu_compiler.h"
#endif
#ifdef LOSSC_HAS_CUDA
#include "runtime/cuda/cuda_images.h"
#include "runtime/cuda/cuda_kernels.h"
#endif

namespace lossc {

namespace {

std::string space_text(ir::Space space) {
  switch (space) {
    case ir::Space::scalar:
      return "scalar";
    case ir::Space::rows:
      return "rows";
    case ir::Space::vocab:
      return "vocab";
    case ir::Space::element:
      return "element";
    case ir::Space::segments:
      return "segments";
    case ir::Space::pairs:
      return "pairs";
    default:
      return "named";
  }
}

std::vector<DType> accepted(const TensorSlot& slot) {
  if (slot.kind == ir::Kind::index) return {DType::i32, DType::i64};
  if (slot.kind == ir::Kind::boolean) return {DType::boolean, DType::u8};
  return {slot.dtype};
}

void describe_tensors(Program::Impl& program) {
  const Layout& layout = program.layout;
  bool segments = false, pairs = false;
  // The rows of a batch are the logits', also where no result reads them.
  program.inputs.push_back({"logits", space_text(ir::Space::element), {program.spec.logits_dtype}, true, ""});
  for (const TensorSlot& slot : layout.tensors) {
    const bool output = slot.name.rfind("output.", 0) == 0 || slot.name == "grad_logits";
    if (output) {
      program.outputs.push_back({slot.name, space_text(slot.space), {slot.dtype}, slot.required, ""});
    } else if (slot.name == "segment_ids") {
      segments = true;
    } else if (slot.name.rfind("pairs.", 0) == 0) {
      pairs = true;
    } else {
      const std::string space = program.advantage_names.count(slot.name) > 0 && slot.space == ir::Space::rows
                                    ? "rows"
                                    : space_text(slot.space);
      const std::string doc =
          program.advantage_names.count(slot.name) > 0 && slot.space == ir::Space::rows
              ? "[rows], or [segments] where a batch has another number of segments than rows"
              : "";
      program.inputs.push_back({slot.name, space, accepted(slot), slot.required, doc});
      if (slot.kind == ir::Kind::index && slot.space == ir::Space::rows) {
        program.inputs.push_back({"ignore_index",
                                  "scalar",
                                  {DType::i32, DType::i64},
                                  false,
                                  "labels equal to it are ignored, as negative ones always are"});
      }
    }
  }
  if (pairs || segments) {
    const std::vector<DType> integers = {DType::i32, DType::i64};
    program.inputs.push_back(
        {"cu_seqlens", "segments", integers, false, "[segments + 1]: where each segment begins"});
    program.inputs.push_back(
        {"segment_ids", "rows", integers, false, "the segment of each row; negative: none"});
    program.inputs.push_back(
        {"num_segments", "scalar", integers, false, "with segment_ids: the number of segments"});
  }
  if (pairs) {
    program.inputs.push_back(
        {"pairs", "pairs", {DType::i32, DType::i64}, true, "[n, 2]: chosen, rejected segment"});
  }
  std::sort(program.inputs.begin(), program.inputs.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  program.inputs.erase(std::unique(program.inputs.begin(), program.inputs.end(),
                                   [](const auto& a, const auto& b) { return a.name == b.name; }),
                       program.inputs.end());
  for (const ir::NamedNode& scalar : program.plan.loss.scalars) {
    program.outputs.push_back({scalar.name, "scalar", {DType::fp32}, false, ""});
  }
}

void check_device(const std::string& device) {
  const std::vector<std::string> devices = available_devices();
#ifdef LOSSC_HAS_CUDA
  if (cuda::cuda_ordinal(device) >= 0) return;
#endif
  if (device != "cuda:N" && std::find(devices.begin(), devices.end(), device) != devices.end()) return;
#ifndef LOSSC_HAS_LLVM
  if (device == "cpu") {
    throw Error(ErrorCode::unsupported,
                "this build has no CPU backend: it was configured with LOSSC_ENABLE_LLVM=OFF; use device "
                "\"interpreter\" for small checks");
  }
#endif
  throw Error(ErrorCode::unsupported, fmt::format("device \"{}\" is not available; this build has: {}",
                                                  device, fmt::join(devices, ", ")));
}

#ifdef LOSSC_HAS_LLVM
std::shared_ptr<const cpu::CpuKernels> load_cpu_kernels(const Program::Impl& program, const KeyFields& key) {
  const auto compile = [&] {
    KernelImage image = cpu::compile_cpu(program.plan, program.layout, program.spec);
    image.info["title"] = program_title(program.spec);
    return image;
  };
  return kernels_of(program.key, [&] {
    KernelCache& cache = KernelCache::instance();
    try {
      return cpu::link_cpu(*cache.get(key, compile));
    } catch (const Error& error) {
      if (error.code() != ErrorCode::compile_failed || cache.options().no_compile) throw;
      // What was kept cannot be linked here: once more, from the start.
      cache.discard(key);
      return cpu::link_cpu(*cache.get(key, compile));
    }
  });
}
#endif

}  // namespace

std::vector<std::string> available_devices() {
  return {
#ifdef LOSSC_HAS_LLVM
      "cpu",
#endif
#ifdef LOSSC_HAS_CUDA
      "cuda:N",
#endif
      "interpreter"};
}

Program Program::compile(const Spec& spec, const CompileOptions& options) {
  const LossRegistry& registry = options.registry != nullptr ? *options.registry : LossRegistry::builtin();
  check_device(options.device);
  if (!spec.parallel.empty()) {
    throw Error(ErrorCode::unsupported,
                "parallel: collectives are not available; leave \"parallel\" out to run");
  }
  auto impl = std::make_shared<Impl>();
  impl->spec = spec;
  impl->plan = plan_spec(spec, registry);
  impl->layout = make_layout(impl->plan, spec);
  impl->parameters = ir::parameters(spec, registry);
  for (const ChildSpec& child : spec.losses) {
    for (const InputDefinition& input : registry.at(child.type).inputs) {
      if (input.name != "advantages") continue;
      const auto rename = child.inputs.find("advantages");
      impl->advantage_names.insert(rename != child.inputs.end() && rename->second ? *rename->second
                                                                                  : "advantages");
    }
  }
  describe_tensors(*impl);
  const KeyFields key = program_key(impl->plan, impl->layout, spec, options.device);
  impl->key = key.digest();
#ifdef LOSSC_HAS_LLVM
  if (options.device == "cpu") impl->kernels = load_cpu_kernels(*impl, key);
#endif
#ifdef LOSSC_HAS_CUDA
  if (const int ordinal = cuda::cuda_ordinal(options.device); ordinal >= 0) {
    impl->cuda_kernels =
        cuda::load_cuda_kernels(impl->plan, impl->layout, spec, key, cuda::Device::get(ordinal),
                                cuda::needs_batch_kernels(impl->layout), program_title(spec));
    impl->asynchronous = true;
  }
#endif
  return Program(std::move(impl));
}

const Spec& Program::spec() const {
  return impl_->spec;
}
const std::vector<ParameterInfo>& Program::parameters() const {
  return impl_->parameters;
}
const std::vector<TensorInfo>& Program::inputs() const {
  return impl_->inputs;
}
const std::vector<TensorInfo>& Program::outputs() const {
  return impl_->outputs;
}
const std::string& Program::key() const {
  return impl_->key;
}
std::string Program::source() const {
#ifdef LOSSC_HAS_LLVM
  if (impl_->kernels != nullptr) return cpu::cpu_source(impl_->plan, impl_->layout, impl_->spec);
#endif
#ifdef LOSSC_HAS_CUDA
  if (impl_->cuda_kernels != nullptr) return impl_->cuda_kernels->source;
#endif
  return {};
}

std::string Program::plan_text() const {
  return lossc::plan_text(impl_->plan, impl_->spec);
}
std::string Program::plan_json() const {
  return lossc::plan_json(impl_->plan, impl_->spec);
}

}  // namespace lossc
