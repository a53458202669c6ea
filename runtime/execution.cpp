#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "ir/names.h"
#include "ir/spec_parameters.h"
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
    if (begin < 0 || end < begin || end > batch.rows()) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("rows [{}, {}) are not within the batch's {} rows", begin, end, batch.rows()));
    }
  }

  void set_chunk(const std::map<std::string, TensorView>& chunk, std::int64_t begin, std::int64_t end) {
    if (!chunk.empty() && !executor->takes_chunks()) {
      throw Error(
          ErrorCode::unsupported,
          fmt::format("a chunk holds tensor \"{}\"; device \"interpreter\" computes all rows at once: "
                      "bind it over all rows and leave it out of the chunks",
                      chunk.begin()->first));
    }
    batch.set_chunk(*program, bound, {chunk.begin(), chunk.end()}, begin, end);
  }

  std::shared_ptr<const Program::Impl> program;
  std::unique_ptr<Executor> executor;
  Batch batch;
  TensorMap bound;
  std::map<std::string, double, std::less<>> values;
  std::vector<std::string> known;
  bool begun = false, finished = false;
  int round = 0;
};

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
  impl_->values[std::string(parameter)] = value;
}

void Execution::bind(std::string_view name, TensorView tensor) {
  const auto& known = impl_->known;
  // One batch may serve several programs: what only another one needs is no error here.
  static const std::set<std::string_view> standard = {
      "labels",       "mask",       "cu_seqlens",    "segment_ids",  "num_segments",
      "label_counts", "grad_scale", "ignore_index",  "old_logprobs", "ref_logprobs",
      "advantages",   "pairs",      "teacher_logits"};
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
  impl_->bound.insert_or_assign(std::string(name), std::move(tensor));
}

void Execution::unbind(std::string_view name) {
  if (auto it = impl_->bound.find(name); it != impl_->bound.end()) impl_->bound.erase(it);
}

void Execution::unbind_all() {
  impl_->bound.clear();
}

int Execution::regions() const {
  return static_cast<int>(impl_->program->plan.regions.size());
}

void Execution::begin(std::int64_t rows) {
  Impl& e = *impl_;
  e.begun = e.finished = false;
  e.batch.prepare(*e.program, e.bound, rows);
  std::vector<double> parameters;
  for (const std::string& name : e.program->layout.parameters) parameters.push_back(e.values.at(name));
  e.executor->begin(e.batch, parameters);
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
  e.batch.finish_outputs();
  for (const ir::NamedNode& scalar : e.program->plan.loss.scalars) {
    const auto it = e.bound.find(scalar.name);
    if (it == e.bound.end()) continue;
    *static_cast<float*>(it->second.data) = static_cast<float>(e.executor->scalar(scalar.node));
  }
  e.finished = true;
  const ExecutionStatus& status = e.batch.status();
  if (status.bad_rows > 0) {
    throw Error(
        ErrorCode::invalid_data,
        fmt::format(
            "{} row{} a label or segment id out of range, the first is row {}; labels must be below {}; "
            "all outputs are written, those rows are NaN",
            status.bad_rows, status.bad_rows == 1 ? " has" : "s have", status.first_bad_row,
            e.program->spec.vocab));
  }
}

void Execution::run() {
  begin(-1);
  const std::int64_t rows = impl_->batch.rows();
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
  return impl_->batch.status();
}

std::string Execution::explain_row(std::int64_t row) const {
  const Impl& e = *impl_;
  if (!e.finished) throw Error(ErrorCode::invalid_argument, "explain_row() comes after run() or finish()");
  e.check_range(row, row + 1);
  return lossc::explain_row(*e.program, e.batch, *e.executor, e.values, row);
}

}  // namespace lossc
