#include "runtime/cuda/cuda_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lossc/error.h"
#include "runtime/cuda/device_batch.h"
#include "runtime/cuda/launch.h"
#include "runtime/cuda/recorded_run.h"

namespace lossc::cuda {

namespace {

constexpr int kRunsBeforeRecording = 4;  // recording costs as much host time as several runs

class CudaExecutor final : public Executor {
 public:
  explicit CudaExecutor(std::shared_ptr<const Program::Impl> program)
      : program_(std::move(program)),
        kernels_(*program_->cuda_kernels),
        batch_(program_, nullptr),
        recorded_(*kernels_.device),
        scalars_(std::max<std::size_t>(program_->layout.scalars.size(), 1)) {
    for (const Region& region : program_->plan.regions) {
      std::vector<int>& slots = elements_.emplace_back();
      for (const ir::NodeId id : region_tensors(program_->plan.loss.graph, region)) {
        slots.push_back(program_->layout.tensor_of.at(id));
      }
      if (region.emit) slots.push_back(program_->layout.gradient);
    }
  }

  void set_stream(void* stream) override { batch_.set_stream(static_cast<CUstream>(stream)); }

  void begin(const TensorMap& bound, std::int64_t rows, const std::vector<ParameterValue>& parameters,
             bool changed) override {
    read_ = false;
    known_ = {};
    if (!changed && batch_.reusable(bound, rows)) return;
    recorded_.clear();
    repeats_ = 0;
    batch_.bind(bound, rows, parameters);
  }

  bool run_again(const TensorMap& bound) override {
    if (!batch_.reusable(bound, -1)) return false;
    if (!recorded_ && ++repeats_ < kRunsBeforeRecording) return false;
    const StreamScope scope(*kernels_.device, batch_.stream());
    if (is_recorded(batch_.stream()))
      return false;  // by the caller, whose graph holds the kernels themselves
    if (!recorded_ && !record(bound)) {
      repeats_ = 0;
      return false;
    }
    read_ = false;
    known_ = {};
    recorded_.launch(batch_.stream());
    return true;
  }

  void set_chunk(const TensorMap& bound, const TensorMap& chunk, std::int64_t begin,
                 std::int64_t end) override {
    batch_.set_chunk(bound, chunk, begin, end);
  }

  void prologue() override {
    const StreamScope scope(*kernels_.device, batch_.stream());
    batch_.prepare_segments();
    steps(kernels_.prologue);
  }

  void region(int index, std::int64_t row_begin, std::int64_t row_end) override {
    const auto i = static_cast<std::size_t>(index);
    batch_.require_elements(elements_[i]);
    if (row_end > row_begin) {
      const StreamScope scope(*kernels_.device, batch_.stream());
      Head& head = batch_.arguments().head();
      head.row_begin = row_begin;
      head.row_end = row_end;
      const RegionKernel& kernel = kernels_.regions[i].region;
      put(kernels_.regions[i].kernel, (row_end - row_begin) * kernel.cluster, kernel.threads,
          kernel.shared_bytes);
    }
    batch_.return_chunk();
  }

  void seam(int index) override {
    const StreamScope scope(*kernels_.device, batch_.stream());
    steps(kernels_.seams[static_cast<std::size_t>(index)]);
  }

  void epilogue() override {
    const StreamScope scope(*kernels_.device, batch_.stream());
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
          "clearing the status", *kernels_.device);
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
  void put(CUkernel kernel, std::int64_t blocks, int threads, int shared_bytes = 0) {
    launch(*kernels_.device, {kernel, blocks, threads, shared_bytes, batch_.arguments().data()},
           batch_.stream());
  }

  bool record(const TensorMap& bound) {
    const CUstream stream = batch_.stream();
    const bool recorded = recorded_.record([&](CUstream recording) {
      batch_.set_stream(recording);
      batch_.set_chunk(bound, {}, 0, batch_.rows());
      prologue();
      for (int i = 0; i < static_cast<int>(kernels_.regions.size()); ++i) {
        if (i > 0) seam(i - 1);
        region(i, 0, batch_.rows());
      }
      epilogue();
    });
    batch_.set_stream(stream);
    return recorded;
  }

  void steps(const std::vector<StepLaunch>& list) {
    for (const StepLaunch& l : list) {
      const std::int64_t count = l.step.kind == StepKernel::Kind::scalar ? 1 : batch_.size(l.step.space);
      std::int64_t blocks = 1;
      if (l.step.kind == StepKernel::Kind::map) blocks = std::min<std::int64_t>((count + 255) / 256, 2048);
      if (l.step.kind == StepKernel::Kind::reduce) blocks = (count + kReductionBlock - 1) / kReductionBlock;
      if (l.step.kind == StepKernel::Kind::segment) blocks = std::min<std::int64_t>(count, 1 << 20);
      put(l.kernel, blocks, kStepThreads);
    }
  }

  void copy(void* to, const void* from, std::size_t bytes) const {
    check(driver().cuMemcpyDtoHAsync(to, reinterpret_cast<CUdeviceptr>(from), bytes, batch_.stream()),
          "reading results", *kernels_.device);
    check(driver().cuStreamSynchronize(batch_.stream()), "waiting for the device", *kernels_.device);
  }

  std::shared_ptr<const Program::Impl> program_;
  const CudaKernels& kernels_;
  DeviceBatch batch_;
  std::vector<std::vector<int>> elements_;  ///< slots of the tensors of the logits' shape, by region
  RecordedRun recorded_;                    ///< of all rows, with what is bound now
  int repeats_ = 0;                         ///< runs since something was bound
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
