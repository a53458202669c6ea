// What carries out a plan on one batch after another: compiled kernels or the interpreter.
//
// An execution calls begin and prologue once a batch; then, region after region, `region` over a cover of the
// rows and, between regions, `seam`; then epilogue, after which every result is written or can be read.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "ir/graph.h"
#include "runtime/batch.h"
#include "runtime/program_impl.h"

namespace lossc {

class Executor {
 public:
  Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  virtual ~Executor() = default;

  /// False if element tensors must be bound over all rows, and stay as they are until the epilogue.
  virtual bool takes_chunks() const = 0;

  /// Starts on a batch, which must stay until its results are read; `parameters` in the layout's order.
  virtual void begin(Batch& batch, const std::vector<double>& parameters) = 0;
  virtual void prologue() = 0;
  virtual void region(int index, std::int64_t row_begin, std::int64_t row_end) = 0;
  virtual void seam(int index) = 0;
  virtual void epilogue() = 0;

  /// A materialised scalar.
  virtual double scalar(ir::NodeId id) const = 0;
  /// The stored value of a materialised node at a position.
  virtual double buffer(ir::NodeId id, std::int64_t position) const = 0;
};

/// The executor of a program's device.
std::unique_ptr<Executor> make_executor(std::shared_ptr<const Program::Impl> program);

}  // namespace lossc
