#include "runtime/executor.h"

#include "runtime/interpreter_executor.h"
#ifdef LOSSC_HAS_LLVM
#include "runtime/cpu_executor.h"
#endif

namespace lossc {

std::unique_ptr<Executor> make_executor(std::shared_ptr<const Program::Impl> program) {
#ifdef LOSSC_HAS_LLVM
  if (program->kernels != nullptr) return std::make_unique<CpuExecutor>(std::move(program));
#endif
  return std::make_unique<InterpreterExecutor>(std::move(program));
}

}  // namespace lossc
