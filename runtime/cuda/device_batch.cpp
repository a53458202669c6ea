#include "runtime/cuda/device_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "lossc/error.h"
#include "runtime/cuda/device_tensor.h"
#include "runtime/tensor_layout.h"

namespace lossc::cuda {

using ir::Space;

namespace {

std::size_t bytes_of(std::int64_t count, std::size_t size) {
  return static_cast<std::size_t>(std::max<std::int64_t>(count, 1)) * size;
}

}  // namespace

DeviceBatch::DeviceBatch(std::shared_ptr<const Program::Impl> program, CUstream stream)
    : program_(std::move(program)),
      kernels_(*program_->cuda_kernels),
      stream_(stream),
      workspace_(*kernels_.device),
      staging_(*kernels_.device, workspace_),
      segments_(*program_, workspace_, staging_),
      arguments_(program_->layout, program_->plan.loss.scalars.size()) {
  const Device& device = *kernels_.device;
  const ContextScope scope(device);
  set_constants();
  const std::size_t tickets = static_cast<std::size_t>(kernels_.tickets) * 4 + 4;
  char* zeros = workspace_.get("zeros", sizeof(Status) + tickets);
  check(driver().cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(zeros), 0, sizeof(Status) + tickets, nullptr),
        "clearing memory", device);
  check(driver().cuStreamSynchronize(nullptr), "waiting for the device", device);
  status_ = reinterpret_cast<Status*>(zeros);
  arguments_.head().tickets = reinterpret_cast<unsigned*>(zeros + sizeof(Status));
  arguments_.head().status = status_;
  scalars_ =
      reinterpret_cast<float*>(workspace_.get("scalars", bytes_of(std::ssize(program_->layout.scalars), 4)));
  arguments_.head().scalars = scalars_;
}

// Constants that absent optional tensors read.
void DeviceBatch::set_constants() {
  const auto& slots = program_->layout.tensors;
  std::vector<std::int64_t> constants(std::max<std::size_t>(slots.size(), 1));
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (slots[i].dtype == DType::i32) {
      constants[i] = std::bit_cast<std::int32_t>(static_cast<std::int32_t>(slots[i].fallback));
    } else if (slots[i].dtype == DType::u8) {
      constants[i] = slots[i].fallback != 0 ? 1 : 0;
    } else {
      const auto number = static_cast<float>(slots[i].fallback);
      std::memcpy(&constants[i], &number, sizeof number);
    }
  }
  char* memory = workspace_.get("constants", constants.size() * 8);
  check(driver().cuMemcpyHtoD(reinterpret_cast<CUdeviceptr>(memory), constants.data(), constants.size() * 8),
        "copying constants to the device", *kernels_.device);
  for (std::size_t i = 0; i < slots.size(); ++i) fallbacks_.push_back(flat_tensor(memory + 8 * i, 0));
}

std::int64_t DeviceBatch::size(Space space) const {
  switch (space) {
    case Space::scalar:
      return 1;
    case Space::rows:
      return rows_;
    case Space::segments:
      return segments_.segments();
    case Space::pairs:
      return segments_.pairs();
    default:
      throw Error(ErrorCode::internal, "a step over an unexpected space");
  }
}

TensorView DeviceBatch::on_device(const std::string& name, const TensorView& view, bool written,
                                  std::vector<Returned>& back) {
  return staging_.on_device(name, view, written, back, stream_);
}

void DeviceBatch::allocate() {
  const Layout& layout = program_->layout;
  const ir::Graph& graph = program_->plan.loss.graph;
  std::size_t total = 0;
  std::vector<std::size_t> offsets;
  for (ir::NodeId id : layout.buffers) {
    offsets.push_back(total);
    total += (bytes_of(size(graph.node(id).space), 4) + 255) / 256 * 256;
  }
  char* memory = workspace_.get("buffers", std::max<std::size_t>(total, 1));
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    arguments_.buffer(i) = reinterpret_cast<float*>(memory + offsets[i]);
  }
  std::int64_t partial = 1;
  auto add = [&](const std::vector<StepLaunch>& steps) {
    for (const StepLaunch& launch : steps) {
      if (launch.step.kind != StepKernel::Kind::reduce) continue;
      const std::int64_t blocks = (size(launch.step.space) + kReductionBlock - 1) / kReductionBlock;
      partial = std::max(partial, std::max<std::int64_t>(blocks, 1) * launch.step.values);
    }
  };
  add(kernels_.prologue);
  for (const auto& seam : kernels_.seams) add(seam);
  add(kernels_.epilogue);
  Head& head = arguments_.head();
  head.partial = reinterpret_cast<double*>(workspace_.get("partial", bytes_of(partial, sizeof(double))));
  std::fill(std::begin(head.counts), std::end(head.counts), 0);
  head.counts[static_cast<int>(Space::rows)] = rows_;
  head.counts[static_cast<int>(Space::vocab)] = program_->spec.vocab;
  head.counts[static_cast<int>(Space::segments)] = segments_.segments();
  head.counts[static_cast<int>(Space::pairs)] = segments_.pairs();
}

void DeviceBatch::bind_ignore_index(const TensorMap& bound) {
  Head& head = arguments_.head();
  head.ignores = 0;
  head.ignore_pointer = nullptr;
  const TensorView* ignore = find(bound, "ignore_index");
  if (ignore == nullptr) return;
  check_integer("ignore_index", *ignore);
  head.ignores = 1;
  if (staging_.in_host_memory("ignore_index", *ignore)) {
    head.ignore_index = scalar_integer("ignore_index", *ignore);
    return;
  }
  if (ignore->dtype != DType::i64 || ignore->size() != 1) {
    refuse(
        fmt::format("tensor \"ignore_index\" on the device is {}; one i64 is allowed", ignore->describe()));
  }
  head.ignore_pointer = static_cast<const long long*>(ignore->data);
}

void DeviceBatch::bind_slot(const TensorMap& bound, std::size_t index) {
  const TensorSlot& slot = program_->layout.tensors[index];
  if (slot.space == Space::element) return;
  Tensor& target = arguments_.tensor(index);
  target = fallbacks_[index];
  if (slot.name == "segment_ids") {
    segments_.set_rows(target);
    return;
  }
  if (slot.name.rfind("pairs.", 0) == 0) {
    target = segments_.pair_side(slot.name);
    return;
  }
  const TensorView* view = find(bound, slot.name);
  const bool is_output = slot.name.rfind("output.", 0) == 0;
  if (view != nullptr) {
    bind_rows(*view, index, is_output);
  } else if (is_output) {
    target = flat_tensor(workspace_.get(slot.name, bytes_of(rows_, 4)), 4);
  } else if (slot.required) {
    refuse(fmt::format("tensor \"{}\" is missing: the spec's losses or outputs need it", slot.name));
  }
}

void DeviceBatch::bind_rows(const TensorView& view, std::size_t index, bool is_output) {
  const TensorSlot& slot = program_->layout.tensors[index];
  Tensor& target = arguments_.tensor(index);
  if (slot.kind == ir::Kind::index) {
    check_integer(slot.name, view);
  } else {
    const bool fits = slot.dtype == DType::u8 ? view.dtype == DType::u8 || view.dtype == DType::boolean
                                              : view.dtype == slot.dtype;
    if (!fits) {
      refuse(fmt::format("tensor \"{}\" is {}; {} is allowed", slot.name, view.describe(),
                         slot.dtype == DType::u8 ? "bool or u8" : dtype_name(slot.dtype)));
    }
  }
  const bool per_segment = program_->advantage_names.count(slot.name) > 0 && slot.space == Space::rows &&
                           segments_.is_per_segment(view);
  const std::int64_t count = per_segment ? segments_.segments() : size(slot.space);
  row_tensor(slot.name, view, count);  // checked before anything is copied
  target = tensor_of(row_tensor(slot.name, on_device(slot.name, view, is_output, returned_), count));
  if (is_output && rows_ > 1 && target.stride == 0) {
    refuse(fmt::format("tensor \"{}\" is {}; one number a row is written", slot.name, view.describe()));
  }
  if (slot.kind == ir::Kind::index) {
    target.wide = view.dtype == DType::i64;
    target.role = kRoleLabels;
  }
  if (per_segment) target = segments_.spread(slot.name, target);
}

void DeviceBatch::bind_element(std::size_t index, const std::string& name, const TensorView& view,
                               std::int64_t rows, std::int64_t first, std::vector<Returned>& back) {
  const TensorSlot& slot = program_->layout.tensors[index];
  const bool gradient = static_cast<int>(index) == program_->layout.gradient;
  element_tensor(slot, view, program_->spec.vocab, rows, first);
  if (gradient) {
    check_rows_apart(slot.name, view);
    arguments_.head().gradient_padding =
        (view.shape.back() - program_->spec.vocab) * static_cast<std::int64_t>(dtype_size(view.dtype));
  }
  // In place, the gradient is the staged copy of the logits.
  const auto same =
      std::find_if(back.begin(), back.end(), [&](const Returned& r) { return r.host.data == view.data; });
  const TensorView device = same != back.end() ? same->device : on_device(name, view, gradient, back);
  arguments_.tensor(index) = tensor_of(element_tensor(slot, device, program_->spec.vocab, rows, first));
}

void DeviceBatch::bind_elements(const TensorMap& bound) {
  arguments_.head().gradient_padding = 0;
  const Layout& layout = program_->layout;
  const bool in_place = program_->plan.gradient == GradientMode::in_place;
  auto bind = [&](std::size_t i) {
    const bool gradient = static_cast<int>(i) == layout.gradient;
    const TensorView* view = find(bound, layout.tensors[i].name);
    if (gradient && in_place && view == nullptr) view = find(bound, "logits");
    arguments_.tensor(i).data = nullptr;
    if (view != nullptr) bind_element(i, layout.tensors[i].name, *view, rows_, 0, returned_);
  };
  // The gradient first: in place, the logits follow it.
  if (layout.gradient >= 0) bind(static_cast<std::size_t>(layout.gradient));
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    if (layout.tensors[i].space == Space::element && static_cast<int>(i) != layout.gradient) bind(i);
  }
}

void DeviceBatch::bind_numbers(const TensorMap& bound, const std::vector<ParameterValue>& parameters) {
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    arguments_.parameter(i) = static_cast<float>(parameters[i].value);
    arguments_.parameter_pointer(i) = parameters[i].device;
  }
  const auto& scalars = program_->plan.loss.scalars;
  for (std::size_t i = 0; i < scalars.size(); ++i) {
    arguments_.result(i) = nullptr;
    if (const TensorView* view = find(bound, scalars[i].name)) {
      arguments_.result(i) = static_cast<float*>(on_device(scalars[i].name, *view, true, returned_).data);
    }
  }
}

void DeviceBatch::bind(const TensorMap& bound, std::int64_t rows,
                       const std::vector<ParameterValue>& parameters) {
  staging_.forget();
  chunked_ = false;
  returned_.clear();
  chunk_returned_.clear();
  check_overlap(*program_, bound);
  if (rows >= 0) check_rows(rows);
  asked_rows_ = rows;
  rows_ = rows < 0 ? count_rows(*program_, bound) : rows;
  segments_.bind(bound, rows_, stream_);
  allocate();
  bind_ignore_index(bound);
  for (std::size_t i = 0; i < program_->layout.tensors.size(); ++i) bind_slot(bound, i);
  bind_elements(bound);
  bind_numbers(bound, parameters);
  segments_.make_launches(arguments_, status_);
}

bool DeviceBatch::reusable(const TensorMap& bound, std::int64_t rows) const {
  if (rows < 0 ? asked_rows_ >= 0 : rows != rows_) return false;
  if (staged() || !segments_.unchanged(bound)) return false;
  // A number in host memory may have changed under the same address.
  const TensorView* ignore = find(bound, "ignore_index");
  const Head& head = arguments_.head();
  return ignore == nullptr || head.ignore_pointer != nullptr ||
         scalar_integer("ignore_index", *ignore) == head.ignore_index;
}

void DeviceBatch::set_chunk(const TensorMap& bound, const TensorMap& chunk, std::int64_t begin,
                            std::int64_t end) {
  if (chunked_) bind_elements(bound);
  chunked_ = !chunk.empty();
  if (chunk.empty()) return;
  TensorMap all = bound;
  for (const auto& [name, view] : chunk) all.insert_or_assign(name, view);
  check_overlap(*program_, all);
  const Layout& layout = program_->layout;
  for (const auto& [name, view] : chunk) {
    const bool known = std::any_of(layout.tensors.begin(), layout.tensors.end(), [&](const TensorSlot& s) {
      return s.name == name && s.space == Space::element;
    });
    if (!known)
      refuse(fmt::format("a chunk holds tensor \"{}\", which is no tensor of the logits' shape here", name));
  }
  chunk_returned_.clear();
  auto bind = [&](std::size_t i) {
    const bool in_place =
        static_cast<int>(i) == layout.gradient && program_->plan.gradient == GradientMode::in_place;
    const TensorView* view = find(chunk, layout.tensors[i].name);
    if (view == nullptr && in_place) view = find(chunk, "logits");
    if (view == nullptr) return;
    bind_element(i, "chunk." + layout.tensors[i].name, *view, end - begin, begin, chunk_returned_);
  };
  if (layout.gradient >= 0) bind(static_cast<std::size_t>(layout.gradient));
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    if (layout.tensors[i].space == Space::element && static_cast<int>(i) != layout.gradient) bind(i);
  }
}

void DeviceBatch::require_elements(const std::vector<int>& slots) {
  for (const int slot : slots) {
    const auto index = static_cast<std::size_t>(slot);
    if (arguments_.tensor(index).data != nullptr || rows_ == 0) continue;
    refuse(fmt::format("tensor \"{}\" is missing: bind it, or give it with each chunk of rows",
                       program_->layout.tensors[index].name));
  }
}

void DeviceBatch::return_chunk() {
  for (const Returned& staged : chunk_returned_) staging_.to_host(staged, stream_);
  chunk_returned_.clear();
}

void DeviceBatch::return_outputs() {
  for (const Returned& staged : returned_) staging_.to_host(staged, stream_);
}

}  // namespace lossc::cuda
