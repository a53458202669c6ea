// What carries out a plan on one batch after another: compiled kernels or the interpreter.
//
// An execution calls begin and prologue once a batch; then, region after region, `region` over a cover of the
// rows and, between regions, `seam`; then epilogue and finish, after which every result is written or on its
// way.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ir/graph.h"
#include "runtime/batch.h"
#include "runtime/program_impl.h"

namespace lossc {

/// A run-time parameter: a number, or where to read it when kernels run.
struct ParameterValue {
  double value = 0;
  const float* device = nullptr;
};

class Executor {
 public:
  Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  virtual ~Executor() = default;

  /// False if element tensors must be bound over all rows, and stay as they are until the epilogue.
  virtual bool takes_chunks() const { return true; }

  /// The stream that the following work is put on; devices without streams ignore it.
  virtual void set_stream(void*) {}

  /// Starts on a batch; `rows` < 0: as many as the logits have. `bound` must stay until results are read;
  /// `parameters` in the layout's order. `changed`: something was bound or set since the last batch.
  virtual void begin(const TensorMap& bound, std::int64_t rows, const std::vector<ParameterValue>& parameters,
                     bool changed) = 0;
  /// Carries out a whole run over all rows once more, where nothing was bound or set since the last one and
  /// the executor has a shorter way to do that. False where it has done nothing.
  virtual bool run_again(const TensorMap&) { return false; }
  /// Element tensors of rows [begin, end) alone.
  virtual void set_chunk(const TensorMap& bound, const TensorMap& chunk, std::int64_t begin,
                         std::int64_t end) = 0;
  virtual void prologue() = 0;
  virtual void region(int index, std::int64_t row_begin, std::int64_t row_end) = 0;
  virtual void seam(int index) = 0;
  virtual void epilogue() = 0;
  /// Brings scalars and outputs to where the caller wants them. Throws Error(invalid_data) where the device
  /// has found bad rows by then.
  virtual void finish(const TensorMap& bound) = 0;

  virtual std::int64_t rows() const = 0;
  /// Rows whose labels or segments were out of range; waits for them to be known.
  virtual ExecutionStatus status() = 0;

  /// A materialised scalar.
  virtual double scalar(ir::NodeId id) const = 0;
  /// The stored value of a materialised node at a position.
  virtual double buffer(ir::NodeId id, std::int64_t position) const = 0;
  /// The batch as tensors in host memory, to explain a row. Throws Error(unsupported) where there is none.
  virtual const Batch& host_batch(const TensorMap& bound) = 0;
};

/// An executor that reads tensors in host memory.
class HostExecutor : public Executor {
 public:
  explicit HostExecutor(std::shared_ptr<const Program::Impl> program) : program_(std::move(program)) {}

  void begin(const TensorMap& bound, std::int64_t rows, const std::vector<ParameterValue>& parameters,
             bool changed) final;
  void set_chunk(const TensorMap& bound, const TensorMap& chunk, std::int64_t begin, std::int64_t end) final;
  void finish(const TensorMap& bound) final;
  std::int64_t rows() const final { return batch_.rows(); }
  ExecutionStatus status() final { return batch_.status(); }
  const Batch& host_batch(const TensorMap&) final { return batch_; }

 protected:
  /// Sizes the workspace for batch_.
  virtual void start(const std::vector<double>& parameters) = 0;

  std::shared_ptr<const Program::Impl> program_;
  Batch batch_;
};

/// The executor of a program's device.
std::unique_ptr<Executor> make_executor(std::shared_ptr<const Program::Impl> program);

/// The message of Error(invalid_data): which rows are NaN.
std::string bad_rows_message(const ExecutionStatus& status, std::int64_t vocab);

}  // namespace lossc
