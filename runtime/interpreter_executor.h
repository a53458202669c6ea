// Runs a plan's graph in double precision over a whole batch: slow and plain, in every build.
//
// Promise: results are those of the mathematics, rounded once to the type they are stored in; the same batch
// gives the same bits. As compiled kernels do, it never reads the logits of rows that count for nothing.
// Everything is computed in the epilogue. Memory: 8 bytes a row, element of the vocabulary and value of the
// graph that has this shape.
#pragma once

#include <memory>
#include <vector>

#include "ir/evaluate.h"
#include "runtime/executor.h"

namespace lossc {

class InterpreterExecutor final : public HostExecutor {
 public:
  explicit InterpreterExecutor(std::shared_ptr<const Program::Impl> program)
      : HostExecutor(std::move(program)) {}

  bool takes_chunks() const override { return false; }
  void prologue() override {}
  /// Checks that what the region needs is bound.
  void region(int index, std::int64_t row_begin, std::int64_t row_end) override;
  void seam(int) override {}
  void epilogue() override;

  double scalar(ir::NodeId id) const override;
  double buffer(ir::NodeId id, std::int64_t position) const override;

 protected:
  void start(const std::vector<double>& parameters) override;

 private:
  std::vector<double> read(std::size_t tensor) const;
  std::vector<double> read_rows(std::size_t tensor, const std::vector<double>& active) const;
  ir::EvaluationInputs read_inputs() const;
  void write_rows(ir::Evaluator& values) const;
  void write_gradient(ir::Evaluator& values) const;

  std::vector<double> parameters_;
  std::vector<double> scalars_;               // in the layout's order
  std::vector<std::vector<double>> buffers_;  // in the layout's order
};

}  // namespace lossc
