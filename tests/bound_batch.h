// A batch laid out in guarded memory and bound to an execution.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lossc/program.h"
#include "tests/batch.h"
#include "tests/loss_case.h"
#include "tests/storage.h"

namespace lossc::test {

/// How a batch lies in memory.
struct MemoryOptions {
  std::int64_t logits_pitch = 0, gradient_pitch = 0, element_pitch = 0;  ///< Added to the row length.
  std::int64_t padded_columns = 0;           ///< The last dimension is this much larger than the vocab.
  std::int64_t gradient_padded_columns = 0;  ///< ... of the gradient.
  std::int64_t misalign = 0;                 ///< Bytes.
  bool labels_i32 = false, segments_i32 = false, mask_bool = false;
  std::int64_t batch = 0;  ///< > 0: logits, teachers and gradient are [batch, rows / batch, vocab].
  /// Sequence positions that lie in memory behind each sequence and belong to no row (`[:, :-1]`).
  std::int64_t skipped_positions = 0;
};

/// A batch in guarded memory, bound to an execution by name.
class BoundBatch {
 public:
  BoundBatch(const LossCase& spec, const Batch& batch, const MemoryOptions& memory = {});

  /// Binds all inputs and outputs over all rows.
  void bind(Execution& execution);
  /// Binds all but the tensors of the logits' shape; chunk() then supplies those.
  void bind_without_elements(Execution& execution);
  std::map<std::string, TensorView> chunk(std::int64_t row_begin, std::int64_t row_end);
  /// Poisons all outputs and fills the gradient with what it must hold before a run.
  void reset();

  Storage& tensor(const std::string& name) { return tensors_.at(name); }
  bool has(const std::string& name) const { return tensors_.count(name) != 0; }
  Storage& gradient() { return tensors_.at(in_place_ ? "logits" : "grad_logits"); }
  /// Element (row, column) of the gradient, columns up to its last dimension.
  double gradient_at(std::int64_t row, std::int64_t column);
  /// What is wrong with memory after a run: inputs changed, guards or gaps written, padding columns not 0.
  std::vector<std::string> damage();

 private:
  void add(const std::string& name, DType dtype, Layout layout, const std::vector<double>& values);
  Layout element_layout(std::int64_t pitch, std::int64_t padded) const;
  void fill_elements(Storage& storage, const std::vector<double>& values);

  const LossCase& spec_;
  const Batch& batch_;
  MemoryOptions memory_;
  bool in_place_ = false;
  std::map<std::string, Storage> tensors_;
  std::vector<std::string> outputs_, element_names_;
};

}  // namespace lossc::test
