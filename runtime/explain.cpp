#include "runtime/explain.h"

#include <fmt/format.h>

#include "ir/dump.h"
#include "ir/evaluate.h"
#include "lossc/error.h"
#include "runtime/numbers.h"

namespace lossc {

namespace {

using ir::NodeId;
using ir::Op;
using ir::Space;

class RowExplainer {
 public:
  RowExplainer(const Program::Impl& program, const Batch& batch, const Executor& executor,
               const std::map<std::string, double, std::less<>>& parameters, std::int64_t row)
      : p_(program), g_(program.plan.loss.graph), batch_(batch), executor_(executor), row_(row) {
    inputs_.rows = 1;
    inputs_.vocab = p_.spec.vocab;
    inputs_.segments = batch.size(Space::segments);
    inputs_.pairs = batch.size(Space::pairs);
    for (const auto& [name, value] : parameters) inputs_.parameters[name] = value;
    for (std::size_t i = 0; i < p_.layout.tensors.size(); ++i) read_tensor(i);
  }

  std::string text() {
    ir::Evaluator values(g_, inputs_);
    set_cross_row_values(values);
    std::string out = fmt::format("row {}\n", row_);
    auto line = [&](const std::string& name, double v) { out += fmt::format("  {:<44} {:.9g}\n", name, v); };
    out += "inputs\n";
    for (const auto& [name, tensor] : inputs_.tensors) {
      if (tensor.size() == 1) line(name, tensor[0]);
    }
    line("active", values.scalar(p_.plan.loss.active));
    line("live", values.scalar(p_.plan.loss.live));
    if (values.scalar(p_.plan.loss.active) == 0)
      return out + "the row counts for nothing: its logits are not read\n";
    out += "statistics\n";
    for (const Region& region : p_.plan.regions) {
      for (NodeId id : region.picks) line(ir::formula(g_, id), values.scalar(id));
      for (const Phase& phase : region.phases) {
        for (NodeId id : phase.statistics) line(ir::formula(g_, id), values.scalar(id));
      }
    }
    for (const ir::ChildGradient& child : p_.plan.loss.child_gradients) {
      out += fmt::format("gradient of {} (coefficient, basis)\n", child.name);
      for (const ir::DenseTerm& t : child.dense) line(ir::formula(g_, t.basis), values.scalar(t.coefficient));
      for (const ir::SparseTerm& t : child.sparse) {
        line(fmt::format("onehot({} = {})", ir::formula(g_, t.index), values.scalar(t.index)),
             values.scalar(t.coefficient));
      }
    }
    if (p_.plan.loss.has_gradient()) {
      out += "gradient in total\n";
      line("grad_scale", values.scalar(p_.plan.loss.grad_scale));
      for (const ir::DenseTerm& t : p_.plan.loss.dense)
        line(ir::formula(g_, t.basis), values.scalar(t.coefficient));
      for (const ir::SparseTerm& t : p_.plan.loss.sparse) {
        line(fmt::format("grad_logits[{}]", values.scalar(t.index)), values.scalar(t.value));
      }
    }
    return out;
  }

 private:
  void read_tensor(std::size_t i) {
    const TensorSlot& slot = p_.layout.tensors[i];
    const cpu::Strided& s = batch_.tensors()[i];
    if (static_cast<int>(i) == p_.layout.gradient || slot.name.rfind("output.", 0) == 0) return;
    if (slot.space != Space::rows && slot.space != Space::element && slot.space != Space::scalar) return;
    if (s.data == nullptr) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("explain_row needs \"{}\" bound over all rows", slot.name));
    }
    const char* address = s.row(slot.space == Space::scalar ? 0 : row_);
    const std::int64_t count = slot.space == Space::element ? p_.spec.vocab : 1;
    std::vector<double>& values = inputs_.tensors[slot.name];
    for (std::int64_t k = 0; k < count; ++k) {
      values.push_back(
          read_number(address + k * static_cast<std::int64_t>(dtype_size(slot.dtype)), slot.dtype));
    }
  }

  // What comes from other rows was computed by the run.
  void set_cross_row_values(ir::Evaluator& values) {
    for (NodeId id : p_.layout.scalars) values.set(id, {executor_.scalar(id)});
    for (NodeId id = 0; id < g_.size(); ++id) {
      const ir::Node& n = g_.node(id);
      if (n.op != Op::gather || n.space != Space::rows) continue;
      const auto& index = inputs_.tensors.find(g_.symbol(n.symbol));
      const bool none = index == inputs_.tensors.end() || index->second[0] < 0;
      const auto place = none ? 0 : static_cast<std::int64_t>(index->second[0]);
      double v = 0;
      if (auto tensor = p_.layout.tensor_of.find(n.in[0]); !none && tensor != p_.layout.tensor_of.end()) {
        v = read_number(batch_.tensors()[static_cast<std::size_t>(tensor->second)].row(place), DType::fp32);
      } else if (!none && p_.layout.buffer_of.count(n.in[0]) > 0) {
        v = executor_.buffer(n.in[0], place);
      }
      values.set(id, {v});
    }
  }

  const Program::Impl& p_;
  const ir::Graph& g_;
  const Batch& batch_;
  const Executor& executor_;
  std::int64_t row_;
  ir::EvaluationInputs inputs_;
};

}  // namespace

std::string explain_row(const Program::Impl& program, const Batch& batch, const Executor& executor,
                        const std::map<std::string, double, std::less<>>& parameters, std::int64_t row) {
  if (program.plan.gradient == GradientMode::in_place) {
    throw Error(
        ErrorCode::invalid_argument,
        "explain_row: the gradient stands where the logits were (mode in_place); run with mode overwrite");
  }
  return RowExplainer(program, batch, executor, parameters, row).text();
}

}  // namespace lossc
