#include "runtime/explain.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "ir/dump.h"
#include "ir/evaluate.h"
#include "lossc/error.h"

namespace lossc {

namespace {

using ir::NodeId;
using ir::Op;
using ir::Space;

double half_to_double(std::uint16_t h) {
  const int exponent = (h >> 10) & 31, mantissa = h & 1023;
  double v = exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  if (exponent == 31) v = mantissa == 0 ? HUGE_VAL : std::nan("");
  return (h & 0x8000) != 0 ? -v : v;
}

template <class T>
T read_as(const char* address) {
  T v;
  std::memcpy(&v, address, sizeof v);
  return v;
}

double number_at(const char* address, DType dtype) {
  switch (dtype) {
    case DType::fp32:
      return read_as<float>(address);
    case DType::bf16:
      return std::bit_cast<float>(static_cast<std::uint32_t>(read_as<std::uint16_t>(address)) << 16);
    case DType::fp16:
      return half_to_double(read_as<std::uint16_t>(address));
    case DType::fp64:
      return read_as<double>(address);
    case DType::i32:
      return read_as<std::int32_t>(address);
    case DType::i64:
      return static_cast<double>(read_as<std::int64_t>(address));
    default:
      return read_as<std::uint8_t>(address) != 0 ? 1 : 0;
  }
}

class RowExplainer {
 public:
  RowExplainer(const Program::Impl& program, const Batch& batch, const CpuExecutor& executor,
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
          number_at(address + k * static_cast<std::int64_t>(dtype_size(slot.dtype)), slot.dtype));
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
        v = number_at(batch_.tensors()[static_cast<std::size_t>(tensor->second)].row(place), DType::fp32);
      } else if (!none && p_.layout.buffer_of.count(n.in[0]) > 0) {
        v = executor_.buffer(n.in[0], place);
      }
      values.set(id, {v});
    }
  }

  const Program::Impl& p_;
  const ir::Graph& g_;
  const Batch& batch_;
  const CpuExecutor& executor_;
  std::int64_t row_;
  ir::EvaluationInputs inputs_;
};

}  // namespace

std::string explain_row(const Program::Impl& program, const Batch& batch, const CpuExecutor& executor,
                        const std::map<std::string, double, std::less<>>& parameters, std::int64_t row) {
  if (program.plan.gradient == GradientMode::in_place) {
    throw Error(
        ErrorCode::invalid_argument,
        "explain_row: the gradient stands where the logits were (mode in_place); run with mode overwrite");
  }
  return RowExplainer(program, batch, executor, parameters, row).text();
}

}  // namespace lossc
