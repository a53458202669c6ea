#include "runtime/tensor_layout.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "lossc/error.h"

namespace lossc {

using cpu::Strided;

void refuse(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, message);
}

const TensorView* find(const TensorMap& bound, std::string_view name) {
  const auto it = bound.find(name);
  return it == bound.end() ? nullptr : &it->second;
}

const TensorView& need(const TensorMap& bound, std::string_view name, std::string_view why) {
  if (const TensorView* view = find(bound, name)) return *view;
  refuse(fmt::format("tensor \"{}\" is missing: {}", name, why));
}

void check_integer(std::string_view name, const TensorView& view) {
  if (view.dtype != DType::i32 && view.dtype != DType::i64) {
    refuse(fmt::format("tensor \"{}\" is {}; i32 or i64 is allowed", name, view.describe()));
  }
}

// The integer at a byte address.
std::int64_t integer_at(const char* address, DType dtype) {
  if (dtype == DType::i32) {
    std::int32_t v = 0;
    std::memcpy(&v, address, sizeof v);
    return v;
  }
  std::int64_t v = 0;
  std::memcpy(&v, address, sizeof v);
  return v;
}

std::int64_t scalar_integer(std::string_view name, const TensorView& view) {
  check_integer(name, view);
  if (view.size() != 1)
    refuse(fmt::format("tensor \"{}\" is {}; one number is allowed", name, view.describe()));
  return integer_at(static_cast<const char*>(view.data), view.dtype);
}

void check_rows(std::int64_t rows) {
  if (rows <= std::numeric_limits<std::int32_t>::max()) return;
  refuse(fmt::format("the batch has {} rows; 2147483647 are allowed", rows));
}

void check_num_segments(std::int64_t segments, std::int64_t rows) {
  constexpr std::int64_t most_empty = std::int64_t{1} << 24;
  const std::int64_t most =
      std::min<std::int64_t>(rows + most_empty, std::numeric_limits<std::int32_t>::max());
  if (segments >= 0 && segments <= most) return;
  refuse(
      fmt::format("num_segments is {}; 0 to {} is allowed for {} rows: as many as there are rows, and {} "
                  "without a row",
                  segments, most, rows, most_empty));
}

std::int64_t count_rows(const Program::Impl& program, const TensorMap& bound) {
  const TensorView& logits = need(bound, "logits", "it holds [rows, vocab]");
  if (logits.shape.size() < 2 || logits.shape.size() > 3) {
    refuse(fmt::format("tensor \"logits\" is {}; [rows, {}] or [batch, sequence, {}] is allowed",
                       logits.describe(), program.spec.vocab, program.spec.vocab));
  }
  std::int64_t rows = 1;
  for (std::size_t i = 0; i + 1 < logits.shape.size(); ++i) rows *= logits.shape[i];
  check_rows(rows);
  return rows;
}

// [count], any stride; [batch, sequence] with batch * sequence = count; or one number for all.
Strided row_tensor(const std::string& name, const TensorView& view, std::int64_t count) {
  const auto strides = view.full_strides();
  const auto size = static_cast<std::int64_t>(dtype_size(view.dtype));
  Strided s{static_cast<char*>(view.data), 0, 0, 0};
  if (view.shape.empty()) return s;
  if (view.size() != count || view.shape.size() > 2) {
    refuse(fmt::format(
        "tensor \"{}\" is {}; {} numbers are expected, one for each row of the logits or segment: "
        "[{}], [batch, sequence] or one for all ()",
        name, view.describe(), count, count));
  }
  s.stride = strides.back() * size;
  if (view.shape.size() == 2 && view.shape[0] > 1) {
    s.outer_stride = strides[0] * size;
    if (s.outer_stride != s.stride * view.shape[1]) s.inner = view.shape[1];
  }
  return s;
}

// `first` is the row that the view begins with: its data pointer is moved so that kernels may count rows from
// 0.
Strided element_tensor(const TensorSlot& slot, const TensorView& view, std::int64_t vocab, std::int64_t rows,
                       std::int64_t first) {
  const auto strides = view.full_strides();
  const auto size = static_cast<std::int64_t>(dtype_size(view.dtype));
  const std::size_t dims = view.shape.size();
  std::int64_t found = 1;
  for (std::size_t i = 0; i + 1 < dims; ++i) found *= view.shape[i];
  if (view.dtype != slot.dtype) {
    refuse(fmt::format("tensor \"{}\" is {}; the spec says {}", slot.name, view.describe(),
                       dtype_name(slot.dtype)));
  }
  if (dims < 2 || dims > 3 || found != rows) {
    refuse(fmt::format("tensor \"{}\" is {}; {} rows are expected: [rows, vocab] or [batch, sequence, vocab]",
                       slot.name, view.describe(), rows));
  }
  if (view.shape.back() < vocab) {
    refuse(fmt::format("tensor \"{}\" is {}; its last dimension must be at least the spec's vocab, {}",
                       slot.name, view.describe(), vocab));
  }
  if (rows > 0 && view.shape[dims - 1] > 1 && strides[dims - 1] != 1) {
    refuse(fmt::format(
        "tensor \"{}\" has stride {} between a row's elements; 1 is required (make it contiguous)", slot.name,
        strides[dims - 1]));
  }
  Strided s{static_cast<char*>(view.data), strides[dims - 2] * size, 0, 0};
  if (dims == 3 && view.shape[0] > 1) {
    s.outer_stride = strides[0] * size;
    if (s.outer_stride != s.stride * view.shape[1]) s.inner = view.shape[1];
  }
  if (first > 0) {
    if (s.inner > 0) refuse(fmt::format("tensor \"{}\" of a chunk must be [rows, vocab]", slot.name));
    s.data -= first * s.stride;
  }
  return s;
}

// A written tensor must hold each row in memory of its own.
void check_rows_apart(const std::string& name, const TensorView& view) {
  const auto strides = view.full_strides();
  const std::size_t dims = view.shape.size();
  const std::int64_t width = view.shape[dims - 1], count = view.shape[dims - 2];
  const std::int64_t stride = std::abs(strides[dims - 2]);
  bool apart = count <= 1 || stride >= width;
  if (dims == 3 && view.shape[0] > 1 && count > 0) {
    const std::int64_t outer = std::abs(strides[0]);
    const bool nested = outer >= (count - 1) * stride + width;
    const bool crossed = outer >= width && stride >= (view.shape[0] - 1) * outer + width;
    apart = apart && (nested || crossed);
  }
  if (!apart) {
    refuse(fmt::format("tensor \"{}\" is written, but its rows of {} elements overlap: its strides are [{}]",
                       name, width, fmt::join(strides, ", ")));
  }
}

namespace {

/// The bytes between a view's first and last element.
struct Extent {
  std::uintptr_t begin = 0, end = 0;
};

Extent extent_of(const TensorView& view) {
  const auto strides = view.full_strides();
  const auto size = static_cast<std::int64_t>(dtype_size(view.dtype));
  std::int64_t low = 0, high = 0;
  for (std::size_t i = 0; i < view.shape.size(); ++i) {
    if (view.shape[i] == 0) return {};
    const std::int64_t reach = (view.shape[i] - 1) * strides[i] * size;
    (reach < 0 ? low : high) += reach;
  }
  const auto base = reinterpret_cast<std::uintptr_t>(view.data);
  return {base + static_cast<std::uintptr_t>(low), base + static_cast<std::uintptr_t>(high + size)};
}

// Two views with one pitch may interleave: rows of one in the gaps of the other.
bool interleaved(const TensorView& a, const TensorView& b) {
  if (a.shape.size() != 2 || b.shape.size() != 2) return false;
  const auto pitch_a = a.full_strides()[0] * static_cast<std::int64_t>(dtype_size(a.dtype));
  const auto pitch_b = b.full_strides()[0] * static_cast<std::int64_t>(dtype_size(b.dtype));
  if (pitch_a != pitch_b || pitch_a <= 0) return false;
  const auto delta = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(b.data) -
                                               reinterpret_cast<std::uintptr_t>(a.data));
  const std::int64_t shift = ((delta % pitch_a) + pitch_a) % pitch_a;
  const auto width_a = a.shape[1] * static_cast<std::int64_t>(dtype_size(a.dtype));
  const auto width_b = b.shape[1] * static_cast<std::int64_t>(dtype_size(b.dtype));
  return shift >= width_a && shift + width_b <= pitch_a;
}

}  // namespace

void check_overlap(const Program::Impl& program, const TensorMap& bound) {
  const TensorView* logits = find(bound, "logits");
  for (const auto& [out_name, out] : bound) {
    const bool writes = out_name == "grad_logits" || out_name.rfind("output.", 0) == 0;
    if (!writes) continue;
    const Extent a = extent_of(out);
    if (program.plan.gradient == GradientMode::in_place && out_name == "grad_logits" && logits != nullptr) {
      if (out.data != logits->data || out.full_strides() != logits->full_strides()) {
        refuse("gradient mode in_place: \"grad_logits\" must be the logits themselves, or be left out");
      }
    }
    for (const auto& [name, view] : bound) {
      if (name == out_name) continue;
      const bool in_place =
          program.plan.gradient == GradientMode::in_place && out_name == "grad_logits" && name == "logits";
      if (in_place) continue;
      const Extent b = extent_of(view);
      if (a.begin < b.end && b.begin < a.end && !interleaved(out, view)) {
        refuse(fmt::format("tensors \"{}\" and \"{}\" overlap in memory", out_name, name));
      }
    }
  }
}

}  // namespace lossc
