#include "runtime/cuda/device_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "lossc/error.h"
#include "runtime/tensor_layout.h"
#include "templates/batch_abi.h"

namespace lossc::cuda {

using cpu::Strided;
using ir::Space;

namespace {

constexpr std::int64_t kTile = 2048;  // positions that a block of batch_scatter sorts

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
      arguments_(program_->layout, program_->plan.loss.scalars.size()) {
  // Constants that absent optional tensors read.
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
  const ContextScope scope(*kernels_.device);
  char* memory = workspace_.get("constants", constants.size() * 8);
  check(driver().cuMemcpyHtoD(reinterpret_cast<CUdeviceptr>(memory), constants.data(), constants.size() * 8),
        "copying constants to the device");
  for (std::size_t i = 0; i < slots.size(); ++i)
    fallbacks_.push_back({memory + 8 * i, 0, kFlat, 0, 0, kRoleValues, 0, 0});
  const std::size_t tickets = static_cast<std::size_t>(kernels_.tickets) * 4 + 4;
  char* zeros = workspace_.get("zeros", sizeof(Status) + tickets);
  check(driver().cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(zeros), 0, sizeof(Status) + tickets, nullptr),
        "clearing memory");
  check(driver().cuStreamSynchronize(nullptr), "waiting for the device");
  status_ = reinterpret_cast<Status*>(zeros);
  arguments_.head().tickets = reinterpret_cast<unsigned*>(zeros + sizeof(Status));
  arguments_.head().status = status_;
  scalars_ =
      reinterpret_cast<float*>(workspace_.get("scalars", bytes_of(std::ssize(program_->layout.scalars), 4)));
  arguments_.head().scalars = scalars_;
}

std::int64_t DeviceBatch::size(Space space) const {
  switch (space) {
    case Space::scalar:
      return 1;
    case Space::rows:
      return rows_;
    case Space::segments:
      return segments_;
    case Space::pairs:
      return pairs_;
    default:
      throw Error(ErrorCode::internal, "a step over an unexpected space");
  }
}

Tensor DeviceBatch::tensor_of(const Strided& s) const {
  if (s.inner <= 0) return {s.data, s.stride, kFlat, 0, 0, kRoleValues, 0, 0};
  if (s.inner == 1) return {s.data, s.outer_stride, kFlat, 0, 0, kRoleValues, 0, 0};
  // Exact for dividends of 31 bits (Granlund and Montgomery, Division by invariant integers, 1994).
  const int bits = std::bit_width(static_cast<std::uint64_t>(s.inner - 1));
  const std::uint64_t inner = static_cast<std::uint64_t>(s.inner);
  const std::uint64_t factor = ((std::uint64_t{1} << (31 + bits)) + inner - 1) / inner;
  return {s.data, s.stride, s.inner, s.outer_stride, 0, kRoleValues, static_cast<unsigned>(factor), bits - 1};
}

bool DeviceBatch::in_host_memory(const std::string& name, const TensorView& view) {
  auto& known = host_memory_[name];
  if (known.first == view.data && view.data != nullptr) return known.second;
  unsigned type = 0;
  const CUresult result = driver().cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                                         reinterpret_cast<CUdeviceptr>(view.data));
  const bool host = result != CUDA_SUCCESS || type == CU_MEMORYTYPE_HOST;
  if (!host) {
    int ordinal = kernels_.device->ordinal();
    if (driver().cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                       reinterpret_cast<CUdeviceptr>(view.data)) == CUDA_SUCCESS &&
        ordinal != kernels_.device->ordinal()) {
      refuse(fmt::format("tensor \"{}\" lies on cuda:{}; the program runs on cuda:{}", name, ordinal,
                         kernels_.device->ordinal()));
    }
  }
  known = {view.data, host};
  return host;
}

TensorView DeviceBatch::on_device(const std::string& name, const TensorView& view, bool written,
                                  std::vector<Returned>& back) {
  const auto size = static_cast<std::int64_t>(dtype_size(view.dtype));
  if (view.size() == 0) return view;
  if (in_host_memory(name, view)) {
    staged_ = true;
    TensorView device = staging_.to_device(name, view, stream_);
    if (written) back.push_back({device, view});
    return device;
  }
  if (reinterpret_cast<std::uintptr_t>(view.data) % static_cast<std::uintptr_t>(size) != 0) {
    refuse(fmt::format("tensor \"{}\" begins at an address that is no multiple of its {} bytes an element",
                       name, size));
  }
  return view;
}

void DeviceBatch::find_sizes(const TensorMap& bound, std::int64_t rows) {
  if (rows >= 0) check_rows(rows);
  rows_ = rows < 0 ? count_rows(*program_, bound) : rows;
  segments_ = pairs_ = 0;
  device_views_.clear();
  const TensorView* cu = find(bound, "cu_seqlens");
  const TensorView* ids = find(bound, "segment_ids");
  bool needed = false;
  for (const TensorSlot& slot : program_->layout.tensors) {
    needed = needed || (slot.name == "segment_ids" && slot.required) || slot.space == Space::segments ||
             slot.space == Space::pairs;
  }
  if (cu != nullptr && ids != nullptr) {
    refuse("both \"cu_seqlens\" and \"segment_ids\" are given; segments are named by one of them");
  }
  if (cu == nullptr && ids == nullptr && needed) {
    refuse(
        "tensor \"cu_seqlens\" or \"segment_ids\" (with \"num_segments\") is missing: the spec has a loss of "
        "segments");
  }
  if (kernels_.batch == nullptr) return;  // the plan knows no segments
  if (cu != nullptr) {
    check_integer("cu_seqlens", *cu);
    if (cu->shape.size() != 1 || cu->shape[0] < 1) {
      refuse(fmt::format("tensor \"cu_seqlens\" is {}; [segments + 1] is allowed", cu->describe()));
    }
    segments_ = cu->shape[0] - 1;
    device_views_["cu_seqlens"] = on_device("cu_seqlens", *cu, false, returned_);
  } else if (ids != nullptr) {
    check_integer("segment_ids", *ids);
    const TensorView& number = need(bound, "num_segments", "segment_ids come with a number of segments");
    if (!in_host_memory("num_segments", number)) {
      refuse(
          "tensor \"num_segments\" lies on the device; it decides how much is launched: give it in host "
          "memory");
    }
    segments_ = scalar_integer("num_segments", number);
    check_num_segments(segments_, rows_);
    device_views_["segment_ids"] = on_device("segment_ids", *ids, false, returned_);
  }
  if (const TensorView* pairs = find(bound, "pairs")) {
    check_integer("pairs", *pairs);
    if (pairs->shape.size() != 2 || pairs->shape[1] != 2) {
      refuse(fmt::format("tensor \"pairs\" is {}; [n, 2] (chosen, rejected segment) is allowed",
                         pairs->describe()));
    }
    pairs_ = pairs->shape[0];
    device_views_["pairs"] = on_device("pairs", *pairs, false, returned_);
  }
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
  head.counts[static_cast<int>(Space::segments)] = segments_;
  head.counts[static_cast<int>(Space::pairs)] = pairs_;
}

void DeviceBatch::bind_ignore_index(const TensorMap& bound) {
  Head& head = arguments_.head();
  head.ignores = 0;
  head.ignore_pointer = nullptr;
  const TensorView* ignore = find(bound, "ignore_index");
  if (ignore == nullptr) return;
  check_integer("ignore_index", *ignore);
  head.ignores = 1;
  if (in_host_memory("ignore_index", *ignore)) {
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
    if (const auto ids = device_views_.find("segment_ids"); ids != device_views_.end()) {
      target = tensor_of(row_tensor(slot.name, ids->second, rows_));
      target.wide = ids->second.dtype == DType::i64;
      target.role = kRoleSegments;
    } else if (device_views_.count("cu_seqlens") > 0) {
      target = {workspace_.get("segment_ids", bytes_of(rows_, 4)), 4, kFlat, 0, 0, kRoleSegments, 0, 0};
    }
    return;
  }
  if (slot.name.rfind("pairs.", 0) == 0) {
    const auto pairs = device_views_.find("pairs");
    if (pairs == device_views_.end()) {
      refuse("tensor \"pairs\" is missing: [n, 2], the chosen and the rejected segment of each pair");
    }
    const auto strides = pairs->second.full_strides();
    const auto bytes = static_cast<std::int64_t>(dtype_size(pairs->second.dtype));
    const std::int64_t side = slot.name == "pairs.chosen" ? 0 : strides[1] * bytes;
    target = {static_cast<char*>(pairs->second.data) + side,
              strides[0] * bytes,
              kFlat,
              0,
              pairs->second.dtype == DType::i64,
              kRolePairs,
              0,
              0};
    return;
  }
  const TensorView* view = find(bound, slot.name);
  const bool is_output = slot.name.rfind("output.", 0) == 0;
  if (view == nullptr) {
    if (is_output) {
      target = {workspace_.get(slot.name, bytes_of(rows_, 4)), 4, kFlat, 0, 0, kRoleValues, 0, 0};
    } else if (slot.required) {
      refuse(fmt::format("tensor \"{}\" is missing: the spec's losses or outputs need it", slot.name));
    }
    return;
  }
  if (slot.kind == ir::Kind::index) {
    check_integer(slot.name, *view);
  } else {
    const bool fits = slot.dtype == DType::u8 ? view->dtype == DType::u8 || view->dtype == DType::boolean
                                              : view->dtype == slot.dtype;
    if (!fits) {
      refuse(fmt::format("tensor \"{}\" is {}; {} is allowed", slot.name, view->describe(),
                         slot.dtype == DType::u8 ? "bool or u8" : dtype_name(slot.dtype)));
    }
  }
  const bool per_segment = !device_views_.empty() && program_->advantage_names.count(slot.name) > 0 &&
                           slot.space == Space::rows && view->shape.size() == 1 &&
                           view->shape[0] == segments_ && segments_ != rows_ &&
                           (device_views_.count("cu_seqlens") > 0 || device_views_.count("segment_ids") > 0);
  const std::int64_t count = per_segment ? segments_ : size(slot.space);
  row_tensor(slot.name, *view, count);  // checked before anything is copied
  const TensorView device = on_device(slot.name, *view, is_output, returned_);
  target = tensor_of(row_tensor(slot.name, device, count));
  if (is_output && rows_ > 1 && target.stride == 0) {
    refuse(fmt::format("tensor \"{}\" is {}; one number a row is written", slot.name, view->describe()));
  }
  if (slot.kind == ir::Kind::index) {
    target.wide = view->dtype == DType::i64;
    target.role = kRoleLabels;
  }
  if (per_segment) {
    spread_.emplace_back(index, target);
    target = {workspace_.get("spread." + slot.name, bytes_of(rows_, 4)), 4, kFlat, 0, 0, kRoleValues, 0, 0};
  }
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

void DeviceBatch::bind(const TensorMap& bound, std::int64_t rows,
                       const std::vector<ParameterValue>& parameters) {
  staged_ = chunked_ = false;
  returned_.clear();
  chunk_returned_.clear();
  spread_.clear();
  check_overlap(*program_, bound);
  find_sizes(bound, rows);
  allocate();
  bind_ignore_index(bound);
  const Layout& layout = program_->layout;
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) bind_slot(bound, i);
  bind_elements(bound);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    arguments_.parameter(i) = static_cast<float>(parameters[i].value);
    arguments_.parameter_pointer(i) = parameters[i].device;
  }
  for (std::size_t i = 0; i < program_->plan.loss.scalars.size(); ++i) {
    arguments_.result(i) = nullptr;
    const std::string& name = program_->plan.loss.scalars[i].name;
    if (const TensorView* view = find(bound, name)) {
      arguments_.result(i) = static_cast<float*>(on_device(name, *view, true, returned_).data);
    }
  }
}

bool DeviceBatch::reusable(const TensorMap& bound, std::int64_t rows) const {
  if (staged_ || (rows >= 0 && rows != rows_)) return false;
  // These two are numbers in host memory, which may have changed under the same address.
  if (const TensorView* n = find(bound, "num_segments");
      n != nullptr && kernels_.batch != nullptr && scalar_integer("num_segments", *n) != segments_) {
    return false;
  }
  if (const TensorView* n = find(bound, "ignore_index"))
    return host_memory_.at("ignore_index").second == false && n;
  return true;
}

void DeviceBatch::launch_batch(CUkernel kernel, std::int64_t blocks, int threads, void* arguments) {
  void* parameters[] = {arguments};
  check(driver().cuLaunchKernel(reinterpret_cast<CUfunction>(kernel),
                                static_cast<unsigned>(std::max<std::int64_t>(blocks, 1)), 1, 1,
                                static_cast<unsigned>(threads), 1, 1, 0, stream_, parameters, nullptr),
        "launching a kernel of the batch");
}

void DeviceBatch::prepare_segments() {
  if (kernels_.batch == nullptr) return;
  const BatchKernels& k = *kernels_.batch;
  const auto blocks = [](std::int64_t n) { return std::min<std::int64_t>((n + 255) / 256, 1024); };
  BatchArguments a{};
  a.status = status_;
  a.groups = segments_;
  const auto cu = device_views_.find("cu_seqlens");
  const auto ids = device_views_.find("segment_ids");
  Tensor rows_index{};
  if (cu != device_views_.end()) {
    a.index = tensor_of(row_tensor("cu_seqlens", cu->second, segments_ + 1));
    a.index.wide = cu->second.dtype == DType::i64;
    a.count = rows_;
    a.offsets = reinterpret_cast<long long*>(workspace_.get("offsets", bytes_of(segments_ + 1, 8)));
    a.keys_out = reinterpret_cast<int*>(workspace_.get("segment_ids", bytes_of(rows_, 4)));
    check(driver().cuMemsetD32Async(reinterpret_cast<CUdeviceptr>(&status_->bad_offset), 0, 2, stream_),
          "clearing the status");
    launch_batch(k.offsets_to_ids, blocks(std::max(rows_, segments_ + 1)), 256, &a);
    rows_index = {reinterpret_cast<char*>(a.keys_out), 4, kFlat, 0, 0, kRoleSegments, 0, 0};
  } else if (ids != device_views_.end()) {
    rows_index = tensor_of(row_tensor("segment_ids", ids->second, rows_));
    rows_index.wide = ids->second.dtype == DType::i64;
  }
  const auto& maps = program_->layout.maps;
  for (std::size_t m = 0; m < maps.size(); ++m) {
    if (maps[m] == "segment_ids" && cu != device_views_.end()) {
      arguments_.map(m) = {a.offsets, nullptr};
      continue;
    }
    const bool of_pairs = maps[m] != "segment_ids";
    Tensor index = rows_index;
    if (of_pairs) {
      for (std::size_t i = 0; i < program_->layout.tensors.size(); ++i) {
        if (program_->layout.tensors[i].name == maps[m]) index = arguments_.tensor(i);
      }
    }
    group(maps[m], index, of_pairs ? pairs_ : rows_);
  }
  for (const auto& [slot, values] : spread_) {
    a.index = rows_index;
    a.values = values;
    a.count = rows_;
    a.spread = reinterpret_cast<float*>(arguments_.tensor(slot).data);
    launch_batch(k.spread, blocks(rows_), 256, &a);
  }
  if (pairs_ > 0) {
    const TensorView& pairs = device_views_.at("pairs");
    const auto strides = pairs.full_strides();
    const auto bytes = static_cast<std::int64_t>(dtype_size(pairs.dtype));
    a.index = {static_cast<char*>(pairs.data), strides[1] * bytes, 2, strides[0] * bytes,
               pairs.dtype == DType::i64,      kRolePairs,         0, 0};
    a.count = 2 * pairs_;
    launch_batch(k.check_pairs, blocks(a.count), 256, &a);
  }
}

// A stable radix sort by the bits that the number of groups has.
void DeviceBatch::group(const std::string& map, const Tensor& index, std::int64_t count) {
  const BatchKernels& k = *kernels_.batch;
  const auto blocks = [](std::int64_t n) { return std::min<std::int64_t>((n + 255) / 256, 1024); };
  const auto array = [&](const char* name) {
    return reinterpret_cast<int*>(workspace_.get(map + name, bytes_of(count, 4)));
  };
  int* keys[] = {array(".keys0"), array(".keys1")};
  int* orders[] = {array(".order0"), array(".order1")};
  BatchArguments a{};
  a.index = index;
  a.status = status_;
  a.count = count;
  a.groups = segments_;
  a.tiles = (count + kTile - 1) / kTile;
  a.histogram = reinterpret_cast<unsigned*>(workspace_.get("histogram", bytes_of(256 * a.tiles, 4)));
  a.offsets = reinterpret_cast<long long*>(workspace_.get(map + ".offsets", bytes_of(segments_ + 1, 8)));
  a.keys_out = keys[0];
  a.order_out = orders[0];
  launch_batch(k.keys, blocks(count), 256, &a);
  int side = 0;
  for (a.shift = 0; (segments_ >> a.shift) > 0 && count > 0; a.shift += 8) {
    a.keys_in = keys[side];
    a.order_in = orders[side];
    side = 1 - side;
    a.keys_out = keys[side];
    a.order_out = orders[side];
    launch_batch(k.histogram, a.tiles, 256, &a);
    launch_batch(k.scan, 1, 1024, &a);
    launch_batch(k.scatter, a.tiles, 256, &a);
  }
  a.keys_in = keys[side];
  launch_batch(k.offsets, blocks(segments_ + 1), 256, &a);
  arguments_.map(static_cast<std::size_t>(program_->layout.map_index(map))) = {a.offsets, orders[side]};
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

void DeviceBatch::require_elements(const std::vector<ir::NodeId>& reads, bool gradient) {
  auto require = [&](int index) {
    if (arguments_.tensor(static_cast<std::size_t>(index)).data == nullptr && rows_ > 0) {
      refuse(fmt::format("tensor \"{}\" is missing: bind it, or give it with each chunk of rows",
                         program_->layout.tensors[static_cast<std::size_t>(index)].name));
    }
  };
  for (ir::NodeId id : reads) require(program_->layout.tensor_of.at(id));
  if (gradient) require(program_->layout.gradient);
}

void DeviceBatch::return_chunk() {
  for (const Returned& r : chunk_returned_) staging_.to_host(r.device, r.host, stream_);
  chunk_returned_.clear();
}

void DeviceBatch::return_outputs() {
  for (const Returned& r : returned_) staging_.to_host(r.device, r.host, stream_);
}

}  // namespace lossc::cuda
