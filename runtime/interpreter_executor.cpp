#include "runtime/interpreter_executor.h"

#include <cstring>

#include "runtime/numbers.h"

namespace lossc {

namespace {

using cpu::Strided;
using ir::NodeId;
using ir::Space;

std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

// A node's values, found by row and element of the vocabulary.
class ElementValues {
 public:
  ElementValues(ir::Evaluator& values, const ir::Graph& graph, NodeId id, std::int64_t vocab)
      : values_(values.value(id)) {
    const Space space = graph.node(id).space;
    if (space == Space::element) row_pitch_ = vocab;
    if (space == Space::rows) row_pitch_ = 1;
    if (space == Space::element || space == Space::vocab) pitch_ = 1;
  }
  double operator()(std::int64_t row, std::int64_t k) const {
    return values_[at(row * row_pitch_ + k * pitch_)];
  }

 private:
  const std::vector<double>& values_;
  std::int64_t row_pitch_ = 0, pitch_ = 0;
};

}  // namespace

void InterpreterExecutor::start(const std::vector<double>& parameters) {
  parameters_ = parameters;
}

void InterpreterExecutor::region(int index, std::int64_t, std::int64_t) {
  const Region& region = program_->plan.regions[static_cast<std::size_t>(index)];
  batch_.require_elements(*program_, region_tensors(program_->plan.loss.graph, region), region.emit);
}

std::vector<double> InterpreterExecutor::read(std::size_t tensor) const {
  const TensorSlot& slot = program_->layout.tensors[tensor];
  const Strided& s = batch_.tensors()[tensor];
  const std::int64_t count = slot.space == Space::vocab ? program_->spec.vocab : batch_.size(slot.space);
  std::vector<double> values(at(count));
  for (std::int64_t i = 0; i < count; ++i) values[at(i)] = read_number(s.row(i), slot.dtype);
  return values;
}

// Rows that are not active read as 0.
std::vector<double> InterpreterExecutor::read_rows(std::size_t tensor,
                                                   const std::vector<double>& active) const {
  const TensorSlot& slot = program_->layout.tensors[tensor];
  const Strided& s = batch_.tensors()[tensor];
  const std::int64_t rows = batch_.rows(), vocab = program_->spec.vocab;
  const auto size = static_cast<std::int64_t>(dtype_size(slot.dtype));
  std::vector<double> values(at(rows * vocab));
  for (std::int64_t row = 0; row < rows; ++row) {
    if (active[at(row)] == 0) continue;
    const char* address = s.row(row);
    for (std::int64_t k = 0; k < vocab; ++k) {
      values[at(row * vocab + k)] = read_number(address + k * size, slot.dtype);
    }
  }
  return values;
}

// All but the element tensors: which of their rows may be read is known only when these are.
ir::EvaluationInputs InterpreterExecutor::read_inputs() const {
  const Layout& layout = program_->layout;
  ir::EvaluationInputs inputs;
  inputs.rows = batch_.rows();
  inputs.vocab = program_->spec.vocab;
  inputs.segments = batch_.size(Space::segments);
  inputs.pairs = batch_.size(Space::pairs);
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    inputs.parameters[layout.parameters[i]] = parameters_[i];
  for (const auto& [id, tensor] : layout.tensor_of) {
    const TensorSlot& slot = layout.tensors[static_cast<std::size_t>(tensor)];
    if (slot.space == Space::element) continue;
    std::vector<double> values = read(static_cast<std::size_t>(tensor));
    if (slot.kind == ir::Kind::index) inputs.maps[slot.name].assign(values.begin(), values.end());
    inputs.tensors[slot.name] = std::move(values);
  }
  return inputs;
}

void InterpreterExecutor::epilogue() {
  const ir::LossGraph& loss = program_->plan.loss;
  const Layout& layout = program_->layout;
  for (std::size_t r = 0; r < program_->plan.regions.size(); ++r) region(static_cast<int>(r), 0, 0);
  ir::EvaluationInputs inputs = read_inputs();
  ir::Evaluator values(loss.graph, inputs);
  const std::vector<double>& active = values.value(loss.active);
  for (const auto& [id, tensor] : layout.tensor_of) {
    const TensorSlot& slot = layout.tensors[static_cast<std::size_t>(tensor)];
    if (slot.space == Space::element) {
      inputs.tensors[slot.name] = read_rows(static_cast<std::size_t>(tensor), active);
    }
  }
  scalars_.clear();
  buffers_.clear();
  for (NodeId id : layout.scalars) scalars_.push_back(values.scalar(id));
  for (NodeId id : layout.buffers) buffers_.push_back(values.value(id));
  write_rows(values);
  // Last: in place it takes the memory of the logits.
  if (layout.gradient >= 0) write_gradient(values);
}

void InterpreterExecutor::write_rows(ir::Evaluator& values) const {
  for (const auto& [id, tensors] : program_->layout.outputs_of) {
    const std::vector<double>& numbers = values.value(id);
    for (int tensor : tensors) {
      const Strided& s = batch_.tensors()[static_cast<std::size_t>(tensor)];
      for (std::int64_t row = 0; row < batch_.rows(); ++row) {
        write_number(s.row(row), DType::fp32, numbers[at(row)]);
      }
    }
  }
}

void InterpreterExecutor::write_gradient(ir::Evaluator& values) const {
  struct Dense {
    ElementValues basis, coefficient;
    bool guarded;
  };
  struct Sparse {
    ElementValues index, value;
  };
  const ir::LossGraph& loss = program_->plan.loss;
  const std::int64_t vocab = program_->spec.vocab;
  auto element_values = [&](NodeId id) { return ElementValues(values, loss.graph, id, vocab); };
  std::vector<Dense> dense;
  std::vector<Sparse> sparse;
  for (const ir::DenseTerm& t : loss.dense) {
    dense.push_back({element_values(t.basis), element_values(t.coefficient), t.guarded});
  }
  for (const ir::SparseTerm& t : loss.sparse) {
    sparse.push_back({element_values(t.index), element_values(t.value)});
  }
  const ElementValues live = element_values(loss.live);

  const Strided& gradient = batch_.tensors()[static_cast<std::size_t>(program_->layout.gradient)];
  const bool accumulate = program_->plan.gradient == GradientMode::accumulate;
  const DType dtype = program_->spec.gradient_dtype;
  const auto size = static_cast<std::int64_t>(dtype_size(dtype));
  std::vector<double> line(at(vocab));
  for (std::int64_t row = 0; row < batch_.rows(); ++row) {
    const bool is_live = live(row, 0) != 0;
    if (accumulate && !is_live) continue;
    line.assign(at(vocab), 0);
    if (is_live) {
      for (const Dense& t : dense) {
        const double coefficient = t.coefficient(row, 0);
        if (t.guarded && coefficient == 0) continue;
        for (std::int64_t k = 0; k < vocab; ++k) line[at(k)] += coefficient * t.basis(row, k);
      }
      for (const Sparse& t : sparse) {
        const double index = t.index(row, 0);
        if (index >= 0 && index < static_cast<double>(vocab)) {
          line[static_cast<std::size_t>(index)] = t.value(row, 0);
        }
      }
    }
    char* address = gradient.row(row);
    for (std::int64_t k = 0; k < vocab; ++k) {
      char* element = address + k * size;
      write_number(element, dtype, line[at(k)] + (accumulate ? read_number(element, dtype) : 0));
    }
    if (!accumulate) {
      std::memset(address + vocab * size, 0, static_cast<std::size_t>(batch_.gradient_padding()));
    }
  }
}

double InterpreterExecutor::scalar(NodeId id) const {
  return scalars_.at(static_cast<std::size_t>(program_->layout.scalar_of.at(id)));
}

double InterpreterExecutor::buffer(NodeId id, std::int64_t position) const {
  return buffers_.at(static_cast<std::size_t>(program_->layout.buffer_of.at(id))).at(at(position));
}

}  // namespace lossc
