// Runs the functions of a plan on the CPU: rows of a region, steps of a seam.
//
// Promise: results do not depend on the number of threads, nor on how rows are cut into ranges: a row's sweep
// knows nothing of other rows, and sums over rows are formed over fixed blocks of positions, joined in order.
#pragma once

#include <memory>
#include <vector>

#include "compiler/cpu/kernel_abi.h"
#include "runtime/executor.h"

namespace lossc {

class CpuExecutor final : public HostExecutor {
 public:
  explicit CpuExecutor(std::shared_ptr<const Program::Impl> program);
  ~CpuExecutor() override;

  void prologue() override;
  void region(int index, std::int64_t row_begin, std::int64_t row_end) override;
  void seam(int index) override;
  void epilogue() override;

  double scalar(ir::NodeId id) const override;
  double buffer(ir::NodeId id, std::int64_t position) const override;

 protected:
  void start(const std::vector<double>& parameters) override;

 private:
  struct Worker;  // frames and a scratch row, for one thread at a time
  struct Workers;

  std::unique_ptr<Worker> make_worker() const;

  void run_steps(const std::vector<Step>& steps, const std::vector<cpu::StepFunction>& functions);
  void run_rows(const Region& region, const cpu::RegionFunctions& f, std::int64_t begin, std::int64_t end,
                Worker& worker);
  /// Whether the gradient of these rows is to be written past the caches.
  bool streams_gradient(std::int64_t begin, std::int64_t end) const;
  void clear_gradient(std::int64_t row);
  char* gradient_row(std::int64_t row) const;
  void finish_gradient(const cpu::RegionFunctions& f, void* frame, std::int64_t row);

  std::vector<float> parameters_, scalars_, storage_;
  std::vector<float*> buffers_;
  cpu::KernelArgs args_{};
  std::unique_ptr<Workers> workers_;
};

}  // namespace lossc
