#include "tools/check_inputs.h"

#include <fmt/format.h>

#include <algorithm>

#include "ir/build_graph.h"
#include "ir/child_context.h"
#include "ir/spec_parameters.h"
#include "lossc/error.h"
#include "runtime/batch.h"
#include "runtime/numbers.h"

namespace lossc::cli {
namespace {

using ir::Kind;
using ir::Space;

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, message);
}

double element(const TensorView& tensor, std::int64_t i) {
  return read_number(
      static_cast<const char*>(tensor.data) + i * static_cast<std::int64_t>(dtype_size(tensor.dtype)),
      tensor.dtype);
}

/// Reads tensors of a file, whose tensors are contiguous.
class Reader {
 public:
  Reader(const Spec& spec, const SafetensorsFile& batch, std::int64_t max_rows) : spec_(spec), batch_(batch) {
    const TensorView& logits = need("logits");
    if (logits.shape.size() < 2 || logits.shape.size() > 3 || logits.shape.back() < spec.vocab) {
      refuse(fmt::format("tensor 'logits' is {}; [rows, {}] or [batch, sequence, {}] is needed",
                         logits.describe(), spec.vocab, spec.vocab));
    }
    all_rows_ = logits.size() / logits.shape.back();
    inputs_.rows = std::min(all_rows_, max_rows);
    inputs_.vocab = spec.vocab;
    read_segments();
    read_pairs();
  }

  ir::EvaluationInputs& inputs() { return inputs_; }

  void read(const std::string& name, const ir::Node& node) {
    if (inputs_.tensors.contains(name)) return;
    const TensorView* tensor = batch_.find(name);
    if (tensor == nullptr) {
      if (node.aux == 1) return;
      refuse(fmt::format("tensor '{}' is missing from the batch", name));
    }
    std::vector<double>& values = inputs_.tensors[name];
    if (node.space == Space::element) {
      values = elements(name, *tensor);
    } else if (node.kind == Kind::index) {
      values = labels(numbers(name, *tensor, all_rows_));
    } else {
      values = numbers(name, *tensor, size_of(node.space, *tensor));
      if (node.space == Space::rows && is_per_segment(*tensor)) values = at_rows(values);
    }
    if (node.space == Space::rows) values.resize(static_cast<std::size_t>(inputs_.rows));
  }

 private:
  const TensorView& need(const std::string& name) const {
    const TensorView* tensor = batch_.find(name);
    if (tensor == nullptr) refuse(fmt::format("tensor '{}' is missing from the batch", name));
    return *tensor;
  }

  // Advantages may be given one a segment.
  bool is_per_segment(const TensorView& tensor) const {
    return tensor.shape.size() == 1 && tensor.shape[0] == inputs_.segments && inputs_.segments != all_rows_ &&
           inputs_.maps.contains("segment_ids");
  }

  std::int64_t size_of(Space space, const TensorView& tensor) const {
    switch (space) {
      case Space::rows:
        return is_per_segment(tensor) ? inputs_.segments : all_rows_;
      case Space::segments:
        return inputs_.segments;
      case Space::pairs:
        return inputs_.pairs;
      case Space::vocab:
        return inputs_.vocab;
      default:
        return 1;
    }
  }

  std::vector<double> numbers(const std::string& name, const TensorView& tensor, std::int64_t count) const {
    if (tensor.shape.empty()) return std::vector<double>(static_cast<std::size_t>(count), element(tensor, 0));
    if (tensor.size() != count) {
      refuse(fmt::format("tensor '{}' is {}; {} numbers are needed", name, tensor.describe(), count));
    }
    std::vector<double> values;
    for (std::int64_t i = 0; i < count; ++i) values.push_back(element(tensor, i));
    return values;
  }

  std::vector<double> elements(const std::string& name, const TensorView& tensor) const {
    if (tensor.shape.size() < 2 || tensor.shape.back() < spec_.vocab ||
        tensor.size() / tensor.shape.back() != all_rows_) {
      refuse(fmt::format("tensor '{}' is {}; {} rows of at least {} are needed", name, tensor.describe(),
                         all_rows_, spec_.vocab));
    }
    std::vector<double> values;
    for (std::int64_t row = 0; row < inputs_.rows; ++row) {
      for (std::int64_t k = 0; k < spec_.vocab; ++k)
        values.push_back(element(tensor, row * tensor.shape.back() + k));
    }
    return values;
  }

  std::vector<double> labels(std::vector<double> values) const {
    const TensorView* ignored = batch_.find("ignore_index");
    for (double& label : values) {
      if (label < 0 || (ignored != nullptr && label == element(*ignored, 0))) label = -1;
      label = std::min(label, static_cast<double>(spec_.vocab));
    }
    return values;
  }

  std::vector<double> at_rows(const std::vector<double>& segments) const {
    std::vector<double> rows;
    for (const std::int64_t segment : inputs_.maps.at("segment_ids")) {
      rows.push_back(segment < 0 ? 0 : segments[static_cast<std::size_t>(segment)]);
    }
    return rows;
  }

  void read_segments() {
    const TensorView* offsets = batch_.find("cu_seqlens");
    const TensorView* ids = batch_.find("segment_ids");
    std::vector<double> segments(static_cast<std::size_t>(all_rows_), ir::kNoSegment);
    if (offsets != nullptr && ids != nullptr) {
      refuse("the batch has both 'cu_seqlens' and 'segment_ids'; segments are named by one of them");
    }
    if (offsets != nullptr) {
      inputs_.segments = offsets->size() - 1;
      for (std::int64_t s = 0; s < inputs_.segments; ++s) {
        const double begin = element(*offsets, s), end = element(*offsets, s + 1);
        if (begin < 0 || end < begin || end > static_cast<double>(all_rows_)) {
          refuse(fmt::format("cu_seqlens[{}] to [{}] is {} to {}; it must ascend from 0 to {} rows", s, s + 1,
                             begin, end, all_rows_));
        }
        std::fill(segments.begin() + static_cast<std::ptrdiff_t>(begin),
                  segments.begin() + static_cast<std::ptrdiff_t>(end), static_cast<double>(s));
      }
    } else if (ids != nullptr) {
      inputs_.segments = static_cast<std::int64_t>(element(need("num_segments"), 0));
      check_num_segments(inputs_.segments, all_rows_);
      segments = numbers("segment_ids", *ids, all_rows_);
      for (double& segment : segments) {
        if (segment < 0) segment = ir::kNoSegment;
        if (segment >= static_cast<double>(inputs_.segments)) segment = ir::kBadSegment;
      }
    } else {
      return;
    }
    segments.resize(static_cast<std::size_t>(inputs_.rows));
    inputs_.maps["segment_ids"].assign(segments.begin(), segments.end());
    inputs_.tensors["segment_ids"] = std::move(segments);
  }

  void read_pairs() {
    const TensorView* pairs = batch_.find("pairs");
    if (pairs == nullptr) return;
    if (pairs->shape.size() != 2 || pairs->shape[1] != 2) {
      refuse(fmt::format("tensor 'pairs' is {}; [n, 2] is needed", pairs->describe()));
    }
    inputs_.pairs = pairs->shape[0];
    for (std::int64_t side = 0; side < 2; ++side) {
      const std::string name = side == 0 ? "pairs.chosen" : "pairs.rejected";
      for (std::int64_t pair = 0; pair < inputs_.pairs; ++pair) {
        const double segment = std::max(-1.0, element(*pairs, 2 * pair + side));
        if (segment >= static_cast<double>(inputs_.segments)) {
          refuse(fmt::format("pairs[{}, {}] names segment {}; there are {}", pair, side, segment,
                             inputs_.segments));
        }
        inputs_.tensors[name].push_back(segment);
        inputs_.maps[name].push_back(static_cast<std::int64_t>(segment));
      }
    }
  }

  const Spec& spec_;
  const SafetensorsFile& batch_;
  std::int64_t all_rows_ = 0;
  ir::EvaluationInputs inputs_;
};

}  // namespace

ir::EvaluationInputs inputs_from_file(const Spec& spec, const LossRegistry& registry,
                                      const SafetensorsFile& batch, std::int64_t max_rows) {
  const ir::LossGraph loss = ir::build_graph(spec, registry);
  Reader reader(spec, batch, max_rows);
  for (ir::NodeId id = 0; id < loss.graph.size(); ++id) {
    const ir::Node& node = loss.graph.node(id);
    if (node.op == ir::Op::input) reader.read(loss.graph.symbol_of(id), node);
  }
  // The upstream gradient enters with the derivative.
  if (const TensorView* scale = batch.find("grad_scale"); scale != nullptr) {
    reader.read("grad_scale", loss.graph.node(loss.grad_scale));
  }
  for (const ParameterInfo& parameter : ir::parameters(spec, registry)) {
    reader.inputs().parameters[parameter.name] = parameter.value;
  }
  return std::move(reader.inputs());
}

}  // namespace lossc::cli
