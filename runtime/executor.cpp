#include "runtime/executor.h"

#include <fmt/format.h>

#include "lossc/error.h"
#include "runtime/interpreter_executor.h"
#ifdef LOSSC_HAS_LLVM
#include "runtime/cpu_executor.h"
#endif
#ifdef LOSSC_HAS_CUDA
#include "runtime/cuda/cuda_executor.h"
#endif

namespace lossc {

void HostExecutor::begin(const TensorMap& bound, std::int64_t rows,
                         const std::vector<ParameterValue>& parameters, bool) {
  batch_.prepare(*program_, bound, rows);
  std::vector<double> values;
  for (const ParameterValue& p : parameters) values.push_back(p.value);
  start(values);
}

void HostExecutor::set_chunk(const TensorMap& bound, const TensorMap& chunk, std::int64_t begin,
                             std::int64_t end) {
  if (!chunk.empty() && !takes_chunks()) {
    throw Error(ErrorCode::unsupported,
                fmt::format("a chunk holds tensor \"{}\"; device \"interpreter\" computes all rows at once: "
                            "bind it over all rows and leave it out of the chunks",
                            chunk.begin()->first));
  }
  batch_.set_chunk(*program_, bound, chunk, begin, end);
}

void HostExecutor::finish(const TensorMap& bound) {
  batch_.finish_outputs();
  for (const ir::NamedNode& result : program_->plan.loss.scalars) {
    if (const TensorView* view = find(bound, result.name)) {
      *static_cast<float*>(view->data) = static_cast<float>(scalar(result.node));
    }
  }
}

std::unique_ptr<Executor> make_executor(std::shared_ptr<const Program::Impl> program) {
#ifdef LOSSC_HAS_LLVM
  if (program->kernels != nullptr) return std::make_unique<CpuExecutor>(std::move(program));
#endif
#ifdef LOSSC_HAS_CUDA
  if (program->cuda_kernels != nullptr) return cuda::make_cuda_executor(std::move(program));
#endif
  return std::make_unique<InterpreterExecutor>(std::move(program));
}

std::string bad_rows_message(const ExecutionStatus& status, std::int64_t vocab) {
  return fmt::format(
      "{} row{} a label or segment id out of range, the first is row {}; labels must be below {}; all "
      "outputs are "
      "written, those rows are NaN",
      status.bad_rows, status.bad_rows == 1 ? " has" : "s have", status.first_bad_row, vocab);
}

}  // namespace lossc
