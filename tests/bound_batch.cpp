#include "tests/bound_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

namespace lossc::test {
namespace {

std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

template <class T>
std::vector<double> as_doubles(const std::vector<T>& values) {
  return std::vector<double>(values.begin(), values.end());
}

}  // namespace

BoundBatch::BoundBatch(const LossCase& spec, const Batch& batch, const MemoryOptions& memory)
    : spec_(spec), batch_(batch), memory_(memory), in_place_(spec.gradient_mode == "in_place") {
  const auto rows_layout = Layout::contiguous({batch.rows});
  add("logits", spec.logits_dtype, element_layout(memory.logits_pitch, memory.padded_columns), {});
  element_names_.push_back("logits");
  for (const auto& [name, values] : batch.elements) {
    add(name, spec.element_dtype(name), element_layout(memory.element_pitch, memory.padded_columns), {});
    element_names_.push_back(name);
  }
  if (spec.gradient_mode == "overwrite" || spec.gradient_mode == "accumulate") {
    add("grad_logits", spec.grad_dtype(),
        element_layout(memory.gradient_pitch, memory.gradient_padded_columns), {});
    outputs_.push_back("grad_logits");
  }
  for (const auto& [name, values] : batch.labels) {
    add(name, memory.labels_i32 ? DType::i32 : DType::i64, rows_layout, as_doubles(values));
  }
  if (!batch.mask.empty()) {
    std::vector<double> mask = as_doubles(batch.mask);
    if (memory.mask_bool)
      std::transform(mask.begin(), mask.end(), mask.begin(), [](double m) { return m != 0; });
    add("mask", memory.mask_bool ? DType::boolean : DType::u8, rows_layout, mask);
  }
  const DType index = memory.segments_i32 ? DType::i32 : DType::i64;
  if (!batch.cu_seqlens.empty()) {
    add("cu_seqlens", index, Layout::contiguous({batch.segments + 1}), as_doubles(batch.cu_seqlens));
  } else if (batch.segmented) {
    add("segment_ids", index, rows_layout, as_doubles(batch.segment_ids));
    add("num_segments", index, Layout::contiguous({}), {double(batch.segments)});
  }
  for (const auto& [name, values] : batch.row_values) add(name, DType::fp32, rows_layout, values);
  for (const auto& [name, values] : batch.segment_values) {
    add(name, DType::fp32, Layout::contiguous({batch.segments}), values);
  }
  const bool paired = std::any_of(spec.children.begin(), spec.children.end(),
                                  [](const Child& child) { return child.type == "dpo"; });
  if (paired) {
    std::vector<double> flat;
    for (const auto& pair : batch.pairs) flat.insert(flat.end(), {double(pair[0]), double(pair[1])});
    add("pairs", index, Layout::contiguous({static_cast<std::int64_t>(batch.pairs.size()), 2}), flat);
  }
  if (batch.grad_scale.size() == 1 && spec.gradient_mode != "none") {
    add("grad_scale", DType::fp32, Layout::contiguous({}), batch.grad_scale);
  } else if (!batch.grad_scale.empty() && spec.gradient_mode != "none") {
    add("grad_scale", DType::fp32, rows_layout, batch.grad_scale);
  }
  for (const std::string& output : spec.outputs) {
    add("output." + output, DType::fp32, rows_layout, {});
    outputs_.push_back("output." + output);
  }
  reset();
}

Layout BoundBatch::element_layout(std::int64_t pitch, std::int64_t padded) const {
  const std::int64_t inner = batch_.vocab + padded, step = inner + pitch;
  if (memory_.batch == 0) return Layout::pitched(batch_.rows, inner, step, memory_.misalign);
  const std::int64_t sequence = batch_.rows / memory_.batch;
  return {{memory_.batch, sequence, inner},
          {(sequence + memory_.skipped_positions) * step, step, 1},
          memory_.misalign};
}

void BoundBatch::add(const std::string& name, DType dtype, Layout layout, const std::vector<double>& values) {
  Storage storage(dtype, std::move(layout));
  for (std::size_t i = 0; i < values.size(); ++i) storage.set(static_cast<std::int64_t>(i), values[i]);
  tensors_.emplace(name, std::move(storage));
}

// Padding columns keep the guard pattern: NaN.
void BoundBatch::fill_elements(Storage& storage, const std::vector<double>& values) {
  const std::int64_t inner = storage.layout().shape.back();
  storage.poison();
  for (std::int64_t r = 0; r < batch_.rows; ++r) {
    for (std::int64_t k = 0; k < batch_.vocab; ++k)
      storage.set(r * inner + k, values[at(r * batch_.vocab + k)]);
  }
}

void BoundBatch::reset() {
  fill_elements(tensor("logits"), batch_.logits);
  for (const auto& [name, values] : batch_.elements) fill_elements(tensor(name), values);
  for (const std::string& name : outputs_) tensor(name).poison();
  if (spec_.gradient_mode == "accumulate") {
    Storage& storage = gradient();
    fill_elements(storage, batch_.previous_gradient);
    const std::int64_t inner = storage.layout().shape.back();
    for (std::int64_t r = 0; r < batch_.rows; ++r) {
      for (std::int64_t k = batch_.vocab; k < inner; ++k) storage.set(r * inner + k, 0.25);
    }
  }
  for (auto& [name, storage] : tensors_) storage.snapshot();
}

void BoundBatch::bind(Execution& execution) {
  bind_without_elements(execution);
  for (const std::string& name : element_names_) execution.bind(name, tensor(name).view());
  if (has("grad_logits")) execution.bind("grad_logits", tensor("grad_logits").view());
}

void BoundBatch::bind_without_elements(Execution& execution) {
  execution.unbind_all();
  for (auto& [name, storage] : tensors_) {
    const bool element =
        name == "grad_logits" || std::count(element_names_.begin(), element_names_.end(), name) > 0;
    if (!element) execution.bind(name, storage.view());
  }
}

std::map<std::string, TensorView> BoundBatch::chunk(std::int64_t row_begin, std::int64_t row_end) {
  std::map<std::string, TensorView> views;
  std::vector<std::string> names = element_names_;
  if (has("grad_logits")) names.push_back("grad_logits");
  for (const std::string& name : names) {
    TensorView view = tensor(name).view();
    view.shape[0] = row_end - row_begin;
    const auto bytes = row_begin * view.strides[0] * static_cast<std::int64_t>(dtype_size(view.dtype));
    view.data = static_cast<char*>(view.data) + bytes;
    views.emplace(name, std::move(view));
  }
  return views;
}

double BoundBatch::gradient_at(std::int64_t row, std::int64_t column) {
  Storage& storage = gradient();
  return storage.get(row * storage.layout().shape.back() + column);
}

std::vector<std::string> BoundBatch::damage() {
  std::vector<std::string> found;
  std::string where;
  for (auto& [name, storage] : tensors_) {
    const bool output =
        std::count(outputs_.begin(), outputs_.end(), name) > 0 || (in_place_ && name == "logits");
    if (!storage.intact(&where)) found.push_back(fmt::format("{}: {}", name, where));
    if (!output && !storage.unchanged()) found.push_back(fmt::format("{}: the run changed an input", name));
  }
  if (spec_.gradient_mode == "none") return found;
  const double expected = spec_.gradient_mode == "accumulate" ? 0.25 : 0;
  const std::int64_t inner = gradient().layout().shape.back();
  for (std::int64_t r = 0; r < batch_.rows; ++r) {
    for (std::int64_t k = batch_.vocab; k < inner; ++k) {
      if (gradient_at(r, k) == expected) continue;
      found.push_back(fmt::format("gradient[{}, {}]: a padding column holds {}, not {}", r, k,
                                  gradient_at(r, k), expected));
      return found;
    }
  }
  return found;
}

}  // namespace lossc::test
