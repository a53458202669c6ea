#include "runtime/cuda/cuda_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lossc/error.h"
#include "runtime/cuda/device_batch.h"

namespace lossc::cuda {

namespace {

class CudaExecutor final : public Executor {
 public:
  explicit CudaExecutor(std::shared_ptr<const Program::Impl> program)
      : program_(std::move(program)),
        kernels_(*program_->cuda_kernels),
        batch_(program_, nullptr),
        scalars_(std::max<std::size_t>(program_->layout.scalars.size(), 1)) {}

  void set_stream(void* stream) override { batch_.set_stream(static_cast<CUstream>(stream)); }

  void begin(const TensorMap& bound, std::int64_t rows, const std::vector<ParameterValue>& parameters,
             bool changed) override {
    read_ = false;
    known_ = {};
    if (!changed && batch_.reusable(bound, rows)) return;
    batch_.bind(bound, rows, parameters);
  }

  void set_chunk(const TensorMap& bound, const TensorMap& chunk, std::int64_t begin,
                 std::int64_t end) override {
    batch_.set_chunk(bound, chunk, begin, end);
  }

  void prologue() override {
    const ContextScope scope(*kernels_.device);
    batch_.prepare_segments();
    steps(kernels_.prologue);
  }

  void region(int index, std::int64_t row_begin, std::int64_t row_end) override {
    const auto i = static_cast<std::size_t>(index);
    const Region& region = program_->plan.regions[i];
    batch_.require_elements(region_tensors(program_->plan.loss.graph, region), region.emit);
    if (row_end > row_begin) {
      const ContextScope scope(*kernels_.device);
      Head& head = batch_.arguments().head();
      head.row_begin = row_begin;
      head.row_end = row_end;
      const RegionKernel& kernel = kernels_.regions[i].region;
      launch(kernels_.regions[i].kernel, (row_end - row_begin) * kernel.cluster, kernel.threads,
             kernel.shared_bytes);
    }
    batch_.return_chunk();
  }

  void seam(int index) override {
    const ContextScope scope(*kernels_.device);
    steps(kernels_.seams[static_cast<std::size_t>(index)]);
  }

  void epilogue() override {
    const ContextScope scope(*kernels_.device);
    steps(kernels_.epilogue);
  }

  void finish(const TensorMap&) override {
    if (!batch_.staged()) return;
    batch_.return_outputs();
    known_ = read_status();
    if (known_.bad_rows > 0)
      throw Error(ErrorCode::invalid_data, bad_rows_message(known_, program_->spec.vocab));
  }

  std::int64_t rows() const override { return batch_.rows(); }

  // finish() has read what a staged run found.
  ExecutionStatus status() override { return batch_.staged() ? known_ : read_status(); }

  // Waits, reports and clears.
  ExecutionStatus read_status() {
    const ContextScope scope(*kernels_.device);
    Status found{};
    copy(&found, batch_.status(), sizeof found);
    // On the same stream: a copy from host memory may end after the call that makes it, and orders nothing
    // here.
    check(driver().cuMemsetD8Async(reinterpret_cast<CUdeviceptr>(batch_.status()), 0, sizeof found,
                                   batch_.stream()),
          "clearing the status");
    if (found.any_bad_offset != 0) {
      throw Error(
          ErrorCode::invalid_data,
          fmt::format(
              "cu_seqlens[{}] does not fit: it must begin at 0, ascend and end at the number of rows; "
              "the batch's results are NaN",
              ~found.any_bad_offset));
    }
    if (found.bad_pair != 0) {
      throw Error(ErrorCode::invalid_data,
                  fmt::format("pairs[{}, {}] names a segment that does not exist; there are {}",
                              ~found.bad_pair / 2, ~found.bad_pair % 2, batch_.size(ir::Space::segments)));
    }
    ExecutionStatus status;
    status.bad_rows = static_cast<std::int64_t>(found.bad_rows);
    if (found.bad_rows > 0) status.first_bad_row = static_cast<std::int64_t>(~found.first_bad_row);
    return status;
  }

  double scalar(ir::NodeId id) const override {
    if (!read_) {
      const ContextScope scope(*kernels_.device);
      copy(scalars_.data(), batch_.scalars(), scalars_.size() * sizeof(float));
      read_ = true;
    }
    return scalars_[static_cast<std::size_t>(program_->layout.scalar_of.at(id))];
  }

  double buffer(ir::NodeId id, std::int64_t position) const override {
    const ContextScope scope(*kernels_.device);
    float v = 0;
    auto& arguments = const_cast<CudaExecutor*>(this)->batch_.arguments();
    copy(&v, arguments.buffer(static_cast<std::size_t>(program_->layout.buffer_of.at(id))) + position,
         sizeof v);
    return v;
  }

  const Batch& host_batch(const TensorMap& bound) override {
    if (!batch_.staged()) {
      throw Error(ErrorCode::unsupported,
                  "a row can be explained if its batch lies in host memory; this one lies on the device");
    }
    host_batch_.prepare(*program_, bound, batch_.rows());
    return host_batch_;
  }

 private:
  void launch(CUkernel kernel, std::int64_t blocks, int threads, int shared_bytes) {
    void* parameters[] = {batch_.arguments().data()};
    check(driver().cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), static_cast<unsigned>(blocks), 1, 1,
                                  static_cast<unsigned>(threads), 1, 1, static_cast<unsigned>(shared_bytes),
                                  batch_.stream(), parameters, nullptr),
          "launching a kernel");
  }

  void steps(const std::vector<StepLaunch>& list) {
    for (const StepLaunch& l : list) {
      const std::int64_t count = l.step.kind == StepKernel::Kind::scalar ? 1 : batch_.size(l.step.space);
      std::int64_t blocks = 1;
      if (l.step.kind == StepKernel::Kind::map) blocks = std::min<std::int64_t>((count + 255) / 256, 2048);
      if (l.step.kind == StepKernel::Kind::reduce) blocks = (count + kReductionBlock - 1) / kReductionBlock;
      if (l.step.kind == StepKernel::Kind::segment) blocks = std::min<std::int64_t>(count, 1 << 20);
      launch(l.kernel, std::max<std::int64_t>(blocks, 1), kStepThreads, 0);
    }
  }

  void copy(void* to, const void* from, std::size_t bytes) const {
    check(driver().cuMemcpyDtoHAsync(to, reinterpret_cast<CUdeviceptr>(from), bytes, batch_.stream()),
          "reading results");
    check(driver().cuStreamSynchronize(batch_.stream()), "waiting for the device");
  }

  std::shared_ptr<const Program::Impl> program_;
  const CudaKernels& kernels_;
  DeviceBatch batch_;
  Batch host_batch_;
  mutable std::vector<float> scalars_;
  mutable bool read_ = false;
  ExecutionStatus known_;
};

}  // namespace

std::unique_ptr<Executor> make_cuda_executor(std::shared_ptr<const Program::Impl> program) {
  return std::make_unique<CudaExecutor>(std::move(program));
}

}  // namespace lossc::cuda
