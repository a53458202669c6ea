#include "runtime/batch.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "ir/child_context.h"
#include "lossc/error.h"
#include "runtime/tensor_layout.h"

namespace lossc {

using cpu::Strided;
using ir::Space;

std::int64_t Batch::size(Space space) const {
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

void Batch::prepare(const Program::Impl& program, const TensorMap& bound, std::int64_t rows) {
  bad_rows_.clear();
  staged_outputs_.clear();
  status_ = {};
  gradient_padding_ = 0;
  find_rows(program, bound, rows);
  find_segments(program, bound);
  if (find(bound, "pairs") != nullptr) find_pairs(bound);
  tensors_.assign(program.layout.tensors.size(), Strided{nullptr, 0, 0, 0});
  for (std::size_t i = 0; i < tensors_.size(); ++i) bind_slot(program, bound, i);
  bind_elements(program, bound);
  maps_.clear();
  for (const std::string& map : program.layout.maps) {
    if (map == "segment_ids" && identity_order_) {
      maps_.push_back({grouped_[map].offsets.data(), nullptr});
      continue;
    }
    group(map, indices_[map], segments_);
    maps_.push_back({grouped_[map].offsets.data(), grouped_[map].order.data()});
  }
  sizes_.assign(8, 0);
  sizes_[static_cast<std::size_t>(Space::rows)] = static_cast<float>(rows_);
  sizes_[static_cast<std::size_t>(Space::vocab)] = static_cast<float>(program.spec.vocab);
  sizes_[static_cast<std::size_t>(Space::segments)] = static_cast<float>(segments_);
  sizes_[static_cast<std::size_t>(Space::pairs)] = static_cast<float>(pairs_);
  check_overlap(program, bound);
  std::sort(bad_rows_.begin(), bad_rows_.end());
  bad_rows_.erase(std::unique(bad_rows_.begin(), bad_rows_.end()), bad_rows_.end());
  status_.bad_rows = static_cast<std::int64_t>(bad_rows_.size());
  if (!bad_rows_.empty()) status_.first_bad_row = bad_rows_.front();
}

void Batch::find_rows(const Program::Impl& program, const TensorMap& bound, std::int64_t rows) {
  if (rows >= 0) check_rows(rows);
  rows_ = rows < 0 ? count_rows(program, bound) : rows;
}

void Batch::find_segments(const Program::Impl& program, const TensorMap& bound) {
  segments_ = 0;
  identity_order_ = false;
  indices_.erase("segment_ids");
  const TensorView* cu = find(bound, "cu_seqlens");
  const TensorView* ids = find(bound, "segment_ids");
  bool needed = false;
  for (const TensorSlot& slot : program.layout.tensors) {
    needed = needed || (slot.name == "segment_ids" && slot.required) || slot.space == Space::segments ||
             slot.space == Space::pairs;
  }
  if (cu != nullptr && ids != nullptr) {
    refuse("both \"cu_seqlens\" and \"segment_ids\" are given; segments are named by one of them");
  }
  if (cu != nullptr) {
    read_cu_seqlens(*cu);
  } else if (ids != nullptr) {
    read_segment_ids(*ids, bound);
  } else if (needed) {
    refuse(
        "tensor \"cu_seqlens\" or \"segment_ids\" (with \"num_segments\") is missing: the spec has a loss of "
        "segments");
  }
}

void Batch::read_cu_seqlens(const TensorView& cu) {
  check_integer("cu_seqlens", cu);
  if (cu.shape.size() != 1 || cu.shape[0] < 1) {
    refuse(fmt::format("tensor \"cu_seqlens\" is {}; [segments + 1] is allowed", cu.describe()));
  }
  segments_ = cu.shape[0] - 1;
  const std::int64_t stride = cu.full_strides()[0] * static_cast<std::int64_t>(dtype_size(cu.dtype));
  std::vector<std::int64_t>& offsets = grouped_["segment_ids"].offsets;
  std::vector<std::int32_t>& ids = indices_["segment_ids"];
  offsets.resize(static_cast<std::size_t>(segments_) + 1);
  ids.resize(static_cast<std::size_t>(rows_));
  for (std::int64_t s = 0; s <= segments_; ++s) {
    const std::int64_t row = integer_at(static_cast<const char*>(cu.data) + s * stride, cu.dtype);
    const std::int64_t before = s == 0 ? 0 : offsets[static_cast<std::size_t>(s) - 1];
    if (row < before || row > rows_ || (s == 0 && row != 0)) {
      refuse(fmt::format(
          "cu_seqlens[{}] names row {}; it must begin at 0, ascend and end at {} rows (cu_seqlens[{}] is {})",
          s, row, rows_, s == 0 ? 0 : s - 1, before));
    }
    offsets[static_cast<std::size_t>(s)] = row;
    for (std::int64_t r = before; s > 0 && r < row; ++r) {
      ids[static_cast<std::size_t>(r)] = static_cast<std::int32_t>(s - 1);
    }
  }
  if (offsets.back() != rows_) {
    refuse(fmt::format("cu_seqlens ends at row {}; it must end at {} rows", offsets.back(), rows_));
  }
  identity_order_ = true;
}

void Batch::read_segment_ids(const TensorView& view, const TensorMap& bound) {
  check_integer("segment_ids", view);
  segments_ = scalar_integer("num_segments",
                             need(bound, "num_segments", "segment_ids come with a number of segments"));
  check_num_segments(segments_, rows_);
  const Strided source = row_tensor("segment_ids", view, rows_);
  std::vector<std::int32_t>& ids = indices_["segment_ids"];
  ids.resize(static_cast<std::size_t>(rows_));
  for (std::int64_t r = 0; r < rows_; ++r) {
    const std::int64_t id = integer_at(source.row(r), view.dtype);
    std::int32_t marked = ir::kNoSegment;
    if (id >= segments_) {
      marked = ir::kBadSegment;
      mark_bad(r);
    } else if (id >= 0) {
      marked = static_cast<std::int32_t>(id);
    }
    ids[static_cast<std::size_t>(r)] = marked;
  }
}

void Batch::find_pairs(const TensorMap& bound) {
  const TensorView& view = need(bound, "pairs", "[n, 2]: chosen and rejected segment");
  check_integer("pairs", view);
  if (view.shape.size() != 2 || view.shape[1] != 2) {
    refuse(
        fmt::format("tensor \"pairs\" is {}; [n, 2] (chosen, rejected segment) is allowed", view.describe()));
  }
  pairs_ = view.shape[0];
  const auto strides = view.full_strides();
  const auto size = static_cast<std::int64_t>(dtype_size(view.dtype));
  for (std::int64_t side = 0; side < 2; ++side) {
    std::vector<std::int32_t>& index = indices_[side == 0 ? "pairs.chosen" : "pairs.rejected"];
    index.resize(static_cast<std::size_t>(pairs_));
    for (std::int64_t p = 0; p < pairs_; ++p) {
      const char* address = static_cast<const char*>(view.data) + (p * strides[0] + side * strides[1]) * size;
      const std::int64_t segment = integer_at(address, view.dtype);
      if (segment >= segments_) {
        refuse(fmt::format("pairs[{}, {}] names segment {}; there are {}", p, side, segment, segments_));
      }
      index[static_cast<std::size_t>(p)] = static_cast<std::int32_t>(std::max<std::int64_t>(segment, -1));
    }
  }
}

// A stable counting sort: within a group, positions ascend.
void Batch::group(const std::string& map, const std::vector<std::int32_t>& index, std::int64_t groups) {
  Grouped& g = grouped_[map];
  g.offsets.assign(static_cast<std::size_t>(groups) + 1, 0);
  for (std::int32_t i : index) {
    if (i >= 0) ++g.offsets[static_cast<std::size_t>(i) + 1];
  }
  for (std::size_t s = 0; s < static_cast<std::size_t>(groups); ++s) g.offsets[s + 1] += g.offsets[s];
  std::vector<std::int64_t> next(g.offsets.begin(), g.offsets.end() - 1);
  g.order.assign(std::max<std::size_t>(1, static_cast<std::size_t>(g.offsets.back())), 0);
  for (std::size_t position = 0; position < index.size(); ++position) {
    if (index[position] < 0) continue;
    g.order[static_cast<std::size_t>(next[static_cast<std::size_t>(index[position])]++)] =
        static_cast<std::int32_t>(position);
  }
}

Strided Batch::labels(const Program::Impl& program, const TensorSlot& slot, const TensorView& view,
                      const TensorMap& bound) {
  check_integer(slot.name, view);
  const TensorView* ignore = find(bound, "ignore_index");
  const std::int64_t ignored = ignore != nullptr ? scalar_integer("ignore_index", *ignore) : -1;
  const Strided source = row_tensor(slot.name, view, rows_);
  std::vector<std::int32_t>& values = indices_[slot.name];
  values.resize(static_cast<std::size_t>(rows_));
  for (std::int64_t r = 0; r < rows_; ++r) {
    std::int64_t label = integer_at(source.row(r), view.dtype);
    if (label < 0 || (ignore != nullptr && label == ignored)) {
      label = -1;
    } else if (label >= program.spec.vocab) {
      label = program.spec.vocab;
      mark_bad(r);
    }
    values[static_cast<std::size_t>(r)] = static_cast<std::int32_t>(label);
  }
  return {reinterpret_cast<char*>(values.data()), 4, 0, 0};
}

void Batch::bind_slot(const Program::Impl& program, const TensorMap& bound, std::size_t index) {
  const TensorSlot& slot = program.layout.tensors[index];
  Strided& target = tensors_[index];
  const bool no_segments = slot.name == "segment_ids" && indices_.count(slot.name) == 0;
  if (!no_segments && (slot.name == "segment_ids" || slot.name.rfind("pairs.", 0) == 0)) {
    if (slot.name != "segment_ids" && find(bound, "pairs") == nullptr) {
      refuse("tensor \"pairs\" is missing: [n, 2], the chosen and the rejected segment of each pair");
    }
    target = {reinterpret_cast<char*>(indices_[slot.name].data()), 4, 0, 0};
    return;
  }
  if (slot.space == Space::element) return;  // bind_elements
  const TensorView* view = find(bound, slot.name);
  const bool is_output = slot.name.rfind("output.", 0) == 0;
  if (view == nullptr) {
    if (is_output) {
      std::vector<float>& sink = expanded_[slot.name];
      sink.resize(static_cast<std::size_t>(std::max<std::int64_t>(rows_, 1)));
      target = {reinterpret_cast<char*>(sink.data()), 4, 0, 0};
      return;
    }
    if (slot.required)
      refuse(fmt::format("tensor \"{}\" is missing: the spec's losses or outputs need it", slot.name));
    std::int64_t& storage = fallback_[slot.name];
    storage = 0;
    if (slot.dtype == DType::i32) {
      storage = std::bit_cast<std::int32_t>(static_cast<std::int32_t>(slot.fallback));
    } else if (slot.dtype == DType::u8) {
      storage = slot.fallback != 0 ? 1 : 0;
    } else {
      const auto number = static_cast<float>(slot.fallback);
      std::memcpy(&storage, &number, sizeof number);
    }
    target = {reinterpret_cast<char*>(&storage), 0, 0, 0};
    return;
  }
  if (slot.kind == ir::Kind::index) {
    target = labels(program, slot, *view, bound);
    return;
  }
  const bool dtype_fits = slot.dtype == DType::u8 ? view->dtype == DType::u8 || view->dtype == DType::boolean
                                                  : view->dtype == slot.dtype;
  if (!dtype_fits) {
    refuse(fmt::format("tensor \"{}\" is {}; {} is allowed", slot.name, view->describe(),
                       slot.dtype == DType::u8 ? "bool or u8" : dtype_name(slot.dtype)));
  }
  const bool per_segment = indices_.count("segment_ids") > 0 &&
                           program.advantage_names.count(slot.name) > 0 && slot.space == Space::rows &&
                           view->shape.size() == 1 && view->shape[0] == segments_ && segments_ != rows_;
  if (per_segment) {
    const Strided source = row_tensor(slot.name, *view, segments_);
    std::vector<float>& values = expanded_[slot.name];
    const std::vector<std::int32_t>& ids = indices_["segment_ids"];
    values.assign(static_cast<std::size_t>(rows_), 0);
    for (std::int64_t r = 0; r < rows_; ++r) {
      const std::int32_t s = ids[static_cast<std::size_t>(r)];
      if (s >= 0) std::memcpy(&values[static_cast<std::size_t>(r)], source.row(s), sizeof(float));
    }
    target = {reinterpret_cast<char*>(values.data()), 4, 0, 0};
    return;
  }
  target = row_tensor(slot.name, *view, size(slot.space));
  if (target.inner > 0) stage(slot, is_output, target);
  if (is_output && rows_ > 1 && target.stride == 0) {
    refuse(fmt::format("tensor \"{}\" is {}; one number a row is written", slot.name, view->describe()));
  }
}

// Kernels read [batch, sequence] views with a gap between the sequences from a contiguous copy, and write to
// one.
void Batch::stage(const TensorSlot& slot, bool is_output, Strided& target) {
  const auto size = static_cast<std::int64_t>(dtype_size(slot.dtype));
  const std::int64_t count = this->size(slot.space);
  std::vector<char>& copy = staged_[slot.name];
  copy.resize(static_cast<std::size_t>(count * size));
  if (is_output) {
    staged_outputs_.push_back({target, copy.data()});
  } else {
    for (std::int64_t i = 0; i < count; ++i) {
      std::memcpy(copy.data() + i * size, target.row(i), static_cast<std::size_t>(size));
    }
  }
  target = {copy.data(), size, 0, 0};
}

void Batch::finish_outputs() {
  for (const auto& [target, copy] : staged_outputs_) {
    for (std::int64_t i = 0; i < rows_; ++i) std::memcpy(target.row(i), copy + i * 4, 4);
  }
}

// Absent element tensors must come with each chunk.
void Batch::bind_elements(const Program::Impl& program, const TensorMap& bound) {
  for (std::size_t i = 0; i < tensors_.size(); ++i) {
    const TensorSlot& slot = program.layout.tensors[i];
    if (slot.space != Space::element) continue;
    const bool is_gradient = static_cast<int>(i) == program.layout.gradient;
    const TensorView* view = find(bound, slot.name);
    if (is_gradient && program.plan.gradient == GradientMode::in_place && view == nullptr)
      view = find(bound, "logits");
    if (view == nullptr) continue;
    tensors_[i] = element_tensor(slot, *view, program.spec.vocab, rows_, 0);
    if (is_gradient) {
      check_rows_apart(slot.name, *view);
      gradient_padding_ =
          (view->shape.back() - program.spec.vocab) * static_cast<std::int64_t>(dtype_size(view->dtype));
    }
  }
}

void Batch::require_elements(const Program::Impl& program, const std::vector<ir::NodeId>& reads,
                             bool gradient) const {
  auto require = [&](int index) {
    const std::size_t i = static_cast<std::size_t>(index);
    if (tensors_[i].data == nullptr && rows_ > 0) {
      refuse(fmt::format("tensor \"{}\" is missing: bind it, or give it with each chunk of rows",
                         program.layout.tensors[i].name));
    }
  };
  for (ir::NodeId id : reads) require(program.layout.tensor_of.at(id));
  if (gradient) require(program.layout.gradient);
}

void Batch::set_chunk(const Program::Impl& program, const TensorMap& bound, const TensorMap& chunk,
                      std::int64_t begin, std::int64_t end) {
  bind_elements(program, bound);
  if (!chunk.empty()) {
    TensorMap all = bound;
    for (const auto& [name, view] : chunk) all.insert_or_assign(name, view);
    check_overlap(program, all);
  }
  const Layout& layout = program.layout;
  for (const auto& [name, view] : chunk) {
    const bool known = std::any_of(layout.tensors.begin(), layout.tensors.end(), [&](const TensorSlot& s) {
      return s.name == name && s.space == Space::element;
    });
    if (!known)
      refuse(fmt::format("a chunk holds tensor \"{}\", which is no tensor of the logits' shape here", name));
  }
  for (std::size_t i = 0; i < layout.tensors.size(); ++i) {
    const TensorSlot& slot = layout.tensors[i];
    if (slot.space != Space::element) continue;
    const bool is_gradient = static_cast<int>(i) == layout.gradient;
    const bool in_place = is_gradient && program.plan.gradient == GradientMode::in_place;
    const TensorView* view = find(chunk, slot.name);
    if (view == nullptr && in_place) view = find(chunk, "logits");
    if (view == nullptr) continue;
    tensors_[i] = element_tensor(slot, *view, program.spec.vocab, end - begin, begin);
    if (is_gradient) {
      check_rows_apart(slot.name, *view);
      gradient_padding_ =
          (view->shape.back() - program.spec.vocab) * static_cast<std::int64_t>(dtype_size(view->dtype));
    }
  }
}

void Batch::mark_bad(std::int64_t row) {
  bad_rows_.push_back(row);
}

}  // namespace lossc
