// Runs the functions of a plan on the CPU: rows of a region, steps of a seam.
//
// Promise: results do not depend on the number of threads, nor on how rows are cut into ranges: a row's sweep
// knows nothing of other rows, and sums over rows are formed over fixed blocks of positions, joined in order.
#pragma once

#include <memory>
#include <vector>

#include "compiler/cpu/kernel_abi.h"
#include "runtime/batch.h"

namespace lossc {

class CpuExecutor {
 public:
  explicit CpuExecutor(std::shared_ptr<const Program::Impl> program);
  ~CpuExecutor();

  /// Sizes the workspace for a batch; `parameters` in the layout's order.
  void begin(Batch& batch, const std::vector<float>& parameters);
  void prologue();
  void region(int index, std::int64_t row_begin, std::int64_t row_end);
  void seam(int index);
  void epilogue();

  float scalar(ir::NodeId id) const;
  /// The stored value of a materialised node at a position.
  float buffer(ir::NodeId id, std::int64_t position) const;

 private:
  struct Worker;  // a thread's frames and kept exponentials
  struct Workers;

  void run_steps(const std::vector<Step>& steps, const std::vector<cpu::StepFunction>& functions);
  void run_rows(const Region& region, const cpu::RegionFunctions& f, std::int64_t begin, std::int64_t end,
                Worker& worker);
  void clear_gradient(std::int64_t row);
  char* gradient_row(std::int64_t row) const;
  void finish_gradient(const cpu::RegionFunctions& f, void* frame, std::int64_t row);

  std::shared_ptr<const Program::Impl> program_;
  Batch* batch_ = nullptr;
  std::vector<float> parameters_, scalars_, storage_;
  std::vector<float*> buffers_;
  cpu::KernelArgs args_{};
  std::unique_ptr<Workers> workers_;
};

}  // namespace lossc
