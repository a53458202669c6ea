#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "ir/names.h"
#include "ir/registry.h"
#include "ir/spec_parameters.h"
#include "lossc/loss.h"
#include "lossc/program.h"
#include "runtime/batch.h"
#include "runtime/executor.h"
#include "runtime/explain.h"

namespace lossc {

struct Execution::Impl {
  explicit Impl(const Program& p) : program(p.impl()), executor(make_executor(p.impl())) {
    for (const ParameterInfo& parameter : program->parameters) values[parameter.name] = parameter.value;
    known = {"ignore_index"};
    for (const auto* list : {&program->inputs, &program->outputs}) {
      for (const TensorInfo& info : *list) {
        known.push_back(info.name);
      }
    }
  }

  void check_range(std::int64_t begin, std::int64_t end) const {
    if (!begun)
      throw Error(ErrorCode::invalid_argument, "begin() comes before forward, seam, backward and finish");
    if (begin < 0 || end < begin || end > executor->rows()) {
      throw Error(ErrorCode::invalid_argument, fmt::format("rows [{}, {}) are not within the batch's {} rows",
                                                           begin, end, executor->rows()));
    }
  }

  void set_chunk(const std::map<std::string, TensorView>& chunk, std::int64_t begin, std::int64_t end) {
    executor->set_chunk(bound, {chunk.begin(), chunk.end()}, begin, end);
  }

  std::shared_ptr<const Program::Impl> program;
  std::unique_ptr<Executor> executor;
  TensorMap bound;
  std::map<std::string, double, std::less<>> values;
  std::map<std::string, const float*, std::less<>> device_values;
  std::vector<ParameterValue> parameters;  // in the layout's order
  bool changed = true;                     // since the last begin
  std::vector<std::string> known;
  bool begun = false, finished = false;
  int round = 0;
};

namespace {

bool same(const TensorView& a, const TensorView& b) {
  return a.data == b.data && a.dtype == b.dtype && a.shape == b.shape && a.strides == b.strides;
}

}  // namespace

Execution::Execution(Program program) : impl_(std::make_unique<Impl>(program)) {}
Execution::~Execution() = default;
Execution::Execution(Execution&&) noexcept = default;
Execution& Execution::operator=(Execution&&) noexcept = default;

void Execution::set(std::string_view parameter, double value) {
  const auto& parameters = impl_->program->parameters;
  const auto it = std::find_if(parameters.begin(), parameters.end(),
                               [&](const ParameterInfo& p) { return p.name == parameter; });
  if (it == parameters.end()) {
    std::vector<std::string> names;
    for (const ParameterInfo& p : parameters) names.push_back(p.name);
    throw Error(ErrorCode::invalid_argument, fmt::format("the spec names no parameter \"{}\"{}", parameter,
                                                         ir::did_you_mean(parameter, names)));
  }
  if (!ir::in_range(value, it->range)) {
    throw Error(ErrorCode::invalid_argument, fmt::format("parameter \"{}\" is {}; {} is allowed", parameter,
                                                         value, ir::range_text(it->range)));
  }
  double& held = impl_->values[std::string(parameter)];
  const auto device = impl_->device_values.find(parameter);
  if (held == value && device == impl_->device_values.end()) return;
  held = value;
  if (device != impl_->device_values.end()) impl_->device_values.erase(device);
  impl_->changed = true;
}

void Execution::bind_parameter(std::string_view parameter, const float* device) {
  if (!impl_->program->asynchronous) {
    throw Error(ErrorCode::unsupported,
                "parameters are read from memory by programs for cuda alone; use set()");
  }
  const auto bound = impl_->device_values.find(parameter);
  if (bound != impl_->device_values.end() && bound->second == device) return;
  set(parameter, impl_->values.count(parameter) > 0 ? impl_->values.find(parameter)->second : 0);
  impl_->device_values[std::string(parameter)] = device;
  impl_->changed = true;
}

void Execution::set_stream(void* stream) {
  impl_->executor->set_stream(stream);
}

void Execution::bind(std::string_view name, TensorView tensor) {
  const auto& known = impl_->known;
  // One batch may serve several programs: what only another one needs is no error here.
  static const std::set<std::string, std::less<>> standard = [] {
    std::set<std::string, std::less<>> names = {"labels",       "mask",         "cu_seqlens",
                                                "segment_ids",  "num_segments", "pairs",
                                                "label_counts", "grad_scale",   "ignore_index"};
    for (const std::string& type : LossRegistry::builtin().names()) {
      const std::vector<std::string> inputs = ir::child_inputs(LossRegistry::builtin().at(type));
      names.insert(inputs.begin(), inputs.end());
    }
    return names;
  }();
  const bool is_known = std::find(known.begin(), known.end(), name) != known.end();
  if (!is_known && standard.count(name) > 0) return;
  if (!is_known) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("this program has no tensor \"{}\"{}", name, ir::did_you_mean(name, known)));
  }
  if (tensor.data == nullptr && tensor.size() > 0) {
    throw Error(ErrorCode::invalid_argument, fmt::format("tensor \"{}\" has no memory", name));
  }
  if (!tensor.strides.empty() && tensor.strides.size() != tensor.shape.size()) {
    throw Error(ErrorCode::invalid_argument, fmt::format("tensor \"{}\" has {} dimensions and {} strides",
                                                         name, tensor.shape.size(), tensor.strides.size()));
  }
  const auto& scalars = impl_->program->plan.loss.scalars;
  const bool is_scalar =
      std::any_of(scalars.begin(), scalars.end(), [&](const auto& s) { return s.name == name; });
  if (is_scalar && (tensor.dtype != DType::fp32 || tensor.size() != 1)) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("tensor \"{}\" is {}; one fp32 number is written", name, tensor.describe()));
  }
  TensorView& held = impl_->bound[std::string(name)];
  if (same(held, tensor)) return;
  held = std::move(tensor);
  impl_->changed = true;
}

void Execution::unbind(std::string_view name) {
  if (auto it = impl_->bound.find(name); it != impl_->bound.end()) impl_->bound.erase(it);
  impl_->changed = true;
}

void Execution::unbind_all() {
  impl_->bound.clear();
  impl_->changed = true;
}

int Execution::regions() const {
  return static_cast<int>(impl_->program->plan.regions.size());
}

void Execution::begin(std::int64_t rows) {
  Impl& e = *impl_;
  e.begun = e.finished = false;
  if (e.changed) {
    e.parameters.clear();
    for (const std::string& name : e.program->layout.parameters) {
      const auto device = e.device_values.find(name);
      e.parameters.push_back({e.values.at(name), device == e.device_values.end() ? nullptr : device->second});
    }
  }
  const bool changed = std::exchange(e.changed, true);  // until begin has succeeded
  e.executor->begin(e.bound, rows, e.parameters, changed);
  e.changed = false;
  e.executor->prologue();
  e.begun = true;
  e.round = 0;
}

void Execution::forward(std::int64_t row_begin, std::int64_t row_end,
                        const std::map<std::string, TensorView>& chunk) {
  Impl& e = *impl_;
  e.check_range(row_begin, row_end);
  if (e.round + 1 >= regions()) return;  // the last region is backward's
  e.set_chunk(chunk, row_begin, row_end);
  e.executor->region(e.round, row_begin, row_end);
}

void Execution::seam() {
  Impl& e = *impl_;
  e.check_range(0, 0);
  if (e.round + 1 >= regions()) return;
  e.executor->seam(e.round++);
}

void Execution::backward(std::int64_t row_begin, std::int64_t row_end,
                         const std::map<std::string, TensorView>& chunk) {
  Impl& e = *impl_;
  e.check_range(row_begin, row_end);
  if (e.round + 1 < regions()) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("backward comes after {} rounds of forward and seam; {} are done", regions() - 1,
                            e.round));
  }
  e.set_chunk(chunk, row_begin, row_end);
  e.executor->region(e.round, row_begin, row_end);
}

void Execution::finish() {
  Impl& e = *impl_;
  e.check_range(0, 0);
  e.executor->epilogue();
  e.finished = true;  // all that a thrown status speaks of is written
  e.executor->finish(e.bound);
  if (e.program->asynchronous) return;  // finish() has thrown what is known
  const ExecutionStatus status = e.executor->status();
  if (status.bad_rows > 0)
    throw Error(ErrorCode::invalid_data, bad_rows_message(status, e.program->spec.vocab));
}

void Execution::run() {
  Impl& e = *impl_;
  if (e.finished && !e.changed && e.executor->run_again(e.bound)) return;
  begin(-1);
  const std::int64_t rows = e.executor->rows();
  for (int i = 0; i + 1 < regions(); ++i) {
    forward(0, rows);
    seam();
  }
  backward(0, rows);
  finish();
}

float Execution::value(std::string_view name) const {
  const Impl& e = *impl_;
  if (!e.finished) throw Error(ErrorCode::invalid_argument, "value() comes after run() or finish()");
  std::vector<std::string> names;
  for (const ir::NamedNode& scalar : e.program->plan.loss.scalars) {
    if (scalar.name == name) return static_cast<float>(e.executor->scalar(scalar.node));
    names.push_back(scalar.name);
  }
  throw Error(ErrorCode::invalid_argument,
              fmt::format("this program has no result \"{}\"{}", name, ir::did_you_mean(name, names)));
}

ExecutionStatus Execution::status() const {
  return impl_->executor->status();
}

std::string Execution::explain_row(std::int64_t row) const {
  const Impl& e = *impl_;
  if (!e.finished) throw Error(ErrorCode::invalid_argument, "explain_row() comes after run() or finish()");
  e.check_range(row, row + 1);
  return lossc::explain_row(*e.program, e.executor->host_batch(e.bound), *e.executor, e.values, row);
}

}  // namespace lossc
