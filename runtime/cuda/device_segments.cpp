#include "runtime/cuda/device_segments.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/cuda/device_tensor.h"

namespace lossc::cuda {

using ir::Space;

namespace {

constexpr std::int64_t kTile = 2048;  // positions that a block of batch_scatter sorts

std::int64_t blocks_for(std::int64_t positions) {
  return std::min<std::int64_t>((positions + 255) / 256, 1024);
}

Tensor index_tensor(const std::string& name, const TensorView& view, std::int64_t count, TensorRole role) {
  Tensor tensor = tensor_of(row_tensor(name, view, count));
  tensor.wide = view.dtype == DType::i64;
  tensor.role = role;
  return tensor;
}

bool needs_segments(const Layout& layout) {
  return std::any_of(layout.tensors.begin(), layout.tensors.end(), [](const TensorSlot& slot) {
    return (slot.name == "segment_ids" && slot.required) || slot.space == Space::segments ||
           slot.space == Space::pairs;
  });
}

}  // namespace

DeviceSegments::DeviceSegments(const Program::Impl& program, Workspace& workspace, Staging& staging)
    : program_(program),
      kernels_(*program.cuda_kernels),
      workspace_(workspace),
      staging_(staging),
      needed_(needs_segments(program.layout)) {}

char* DeviceSegments::memory(const std::string& name, std::int64_t count, std::size_t size) {
  return workspace_.get(name, static_cast<std::size_t>(std::max<std::int64_t>(count, 1)) * size);
}

void DeviceSegments::bind(const TensorMap& bound, std::int64_t rows, CUstream stream) {
  rows_ = rows;
  segments_ = pairs_ = 0;
  has_cu_ = has_ids_ = has_pairs_ = false;
  spreads_.clear();
  const TensorView* cu = find(bound, "cu_seqlens");
  const TensorView* ids = find(bound, "segment_ids");
  if (cu != nullptr && ids != nullptr) {
    refuse("both \"cu_seqlens\" and \"segment_ids\" are given; segments are named by one of them");
  }
  if (cu == nullptr && ids == nullptr && needed_) {
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
    cu_ = staging_.on_device("cu_seqlens", *cu, false, nothing_, stream);
    has_cu_ = true;
  } else if (ids != nullptr) {
    check_integer("segment_ids", *ids);
    const TensorView& number = need(bound, "num_segments", "segment_ids come with a number of segments");
    if (!staging_.in_host_memory("num_segments", number)) {
      refuse(
          "tensor \"num_segments\" lies on the device; it decides how much is launched: give it in host "
          "memory");
    }
    segments_ = scalar_integer("num_segments", number);
    check_num_segments(segments_, rows_);
    ids_ = staging_.on_device("segment_ids", *ids, false, nothing_, stream);
    has_ids_ = true;
  }
  if (const TensorView* pairs = find(bound, "pairs")) {
    check_integer("pairs", *pairs);
    if (pairs->shape.size() != 2 || pairs->shape[1] != 2) {
      refuse(fmt::format("tensor \"pairs\" is {}; [n, 2] (chosen, rejected segment) is allowed",
                         pairs->describe()));
    }
    pairs_ = pairs->shape[0];
    pairs_view_ = staging_.on_device("pairs", *pairs, false, nothing_, stream);
    has_pairs_ = true;
  }
}

bool DeviceSegments::unchanged(const TensorMap& bound) const {
  if (!has_ids_) return true;
  const TensorView* number = find(bound, "num_segments");
  return number != nullptr && scalar_integer("num_segments", *number) == segments_;
}

void DeviceSegments::set_rows(Tensor& target) {
  if (has_ids_) target = index_tensor("segment_ids", ids_, rows_, kRoleSegments);
  if (has_cu_) target = flat_tensor(memory("segment_ids", rows_, 4), 4, kRoleSegments);
}

Tensor DeviceSegments::pair_side(const std::string& slot) const {
  if (!has_pairs_) {
    refuse("tensor \"pairs\" is missing: [n, 2], the chosen and the rejected segment of each pair");
  }
  const auto strides = pairs_view_.full_strides();
  const auto bytes = static_cast<std::int64_t>(dtype_size(pairs_view_.dtype));
  const std::int64_t side = slot == "pairs.chosen" ? 0 : strides[1] * bytes;
  Tensor tensor = flat_tensor(static_cast<char*>(pairs_view_.data) + side, strides[0] * bytes, kRolePairs);
  tensor.wide = pairs_view_.dtype == DType::i64;
  return tensor;
}

bool DeviceSegments::is_per_segment(const TensorView& view) const {
  return (has_cu_ || has_ids_) && view.shape.size() == 1 && view.shape[0] == segments_ && segments_ != rows_;
}

Tensor DeviceSegments::spread(const std::string& name, const Tensor& values) {
  char* rows = memory("spread." + name, rows_, 4);
  spreads_.push_back({values, reinterpret_cast<float*>(rows)});
  return flat_tensor(rows, 4);
}

void DeviceSegments::add(CUkernel kernel, std::int64_t blocks, const BatchArguments& arguments, int threads) {
  arguments_.push_back(arguments);
  const bool after_clearing = launches_.empty() && cleared_ != 0;
  launches_.push_back({kernel, blocks, threads, 0, &arguments_.back(), !after_clearing});
}

void DeviceSegments::make_launches(ArgumentBlock& arguments, Status* status) {
  arguments_.clear();
  launches_.clear();
  cleared_ = 0;
  if (kernels_.batch == nullptr) return;
  const BatchKernels& k = *kernels_.batch;
  BatchArguments a{};
  a.status = status;
  a.groups = segments_;
  Tensor rows_index{};
  set_rows(rows_index);
  if (has_cu_) {
    a.index = index_tensor("cu_seqlens", cu_, segments_ + 1, kRoleValues);
    a.count = rows_;
    a.offsets = reinterpret_cast<long long*>(memory("offsets", segments_ + 1, 8));
    a.keys_out = reinterpret_cast<int*>(rows_index.data);
    cleared_ = reinterpret_cast<CUdeviceptr>(&status->bad_offset);
    add(k.offsets_to_ids, blocks_for(std::max(rows_, segments_ + 1)), a);
  }
  const auto& maps = program_.layout.maps;
  for (std::size_t m = 0; m < maps.size(); ++m) {
    if (maps[m] == "segment_ids" && has_cu_) {
      arguments.map(m) = {a.offsets, nullptr};
      continue;
    }
    const bool of_pairs = maps[m] != "segment_ids";
    Tensor index = rows_index;
    if (of_pairs) {
      for (std::size_t i = 0; i < program_.layout.tensors.size(); ++i) {
        if (program_.layout.tensors[i].name == maps[m]) index = arguments.tensor(i);
      }
    }
    group(maps[m], index, of_pairs ? pairs_ : rows_, arguments, status);
  }
  for (const Spread& spread : spreads_) {
    a.index = rows_index;
    a.values = spread.values;
    a.count = rows_;
    a.spread = spread.rows;
    add(k.spread, blocks_for(rows_), a);
  }
  if (pairs_ > 0) {
    const auto strides = pairs_view_.full_strides();
    const auto bytes = static_cast<std::int64_t>(dtype_size(pairs_view_.dtype));
    a.index = tensor_of({static_cast<char*>(pairs_view_.data), strides[1] * bytes, 2, strides[0] * bytes});
    a.index.wide = pairs_view_.dtype == DType::i64;
    a.index.role = kRolePairs;
    a.count = 2 * pairs_;
    add(k.check_pairs, blocks_for(a.count), a);
  }
}

// A stable radix sort by the bits that the number of groups has.
void DeviceSegments::group(const std::string& map, const Tensor& index, std::int64_t count,
                           ArgumentBlock& arguments, Status* status) {
  const BatchKernels& k = *kernels_.batch;
  const auto array = [&](const char* name) { return reinterpret_cast<int*>(memory(map + name, count, 4)); };
  int* keys[] = {array(".keys0"), array(".keys1")};
  int* orders[] = {array(".order0"), array(".order1")};
  BatchArguments a{};
  a.index = index;
  a.status = status;
  a.count = count;
  a.groups = segments_;
  a.tiles = (count + kTile - 1) / kTile;
  a.histogram = reinterpret_cast<unsigned*>(memory("histogram", 256 * a.tiles, 4));
  a.offsets = reinterpret_cast<long long*>(memory(map + ".offsets", segments_ + 1, 8));
  a.keys_out = keys[0];
  a.order_out = orders[0];
  add(k.keys, blocks_for(count), a);
  int side = 0;
  for (a.shift = 0; (segments_ >> a.shift) > 0 && count > 0; a.shift += 8) {
    a.keys_in = keys[side];
    a.order_in = orders[side];
    side = 1 - side;
    a.keys_out = keys[side];
    a.order_out = orders[side];
    add(k.histogram, a.tiles, a);
    add(k.scan, 1, a, 1024);
    add(k.scatter, a.tiles, a);
  }
  a.keys_in = keys[side];
  add(k.offsets, blocks_for(segments_ + 1), a);
  arguments.map(static_cast<std::size_t>(program_.layout.map_index(map))) = {a.offsets, orders[side]};
}

void DeviceSegments::prepare(CUstream stream) const {
  if (launches_.empty()) return;
  const Device& device = *kernels_.device;
  const ContextScope scope(device);
  if (cleared_ != 0) check(driver().cuMemsetD32Async(cleared_, 0, 2, stream), "clearing the status", device);
  for (const Launch& one : launches_) launch(device, one, stream);
}

}  // namespace lossc::cuda
