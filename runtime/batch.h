// One batch, checked and brought into the form that kernels read.
//
// Promise: after prepare() every address a kernel can form lies inside a tensor; labels and segment ids
// outside of their range are marked and counted, never followed. What cannot be computed at all throws
// Error(invalid_argument) with the tensor's name, what was found and what is allowed.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "compiler/cpu/kernel_abi.h"
#include "lossc/program.h"
#include "runtime/program_impl.h"
#include "runtime/tensor_layout.h"

namespace lossc {

class Batch {
 public:
  /// `rows` < 0: taken from the logits, which must then be bound.
  void prepare(const Program::Impl& program, const TensorMap& bound, std::int64_t rows);

  /// Points the element tensors at rows [begin, end) of a chunk; those not in it keep what is bound over all
  /// rows.
  void set_chunk(const Program::Impl& program, const TensorMap& bound, const TensorMap& chunk,
                 std::int64_t begin, std::int64_t end);

  /// Throws unless the element tensors that a region reads (and writes) are bound.
  void require_elements(const Program::Impl& program, const std::vector<ir::NodeId>& reads,
                        bool gradient) const;

  /// Copies outputs that kernels could not write in place to where the caller wants them.
  void finish_outputs();

  std::int64_t rows() const { return rows_; }
  std::int64_t size(ir::Space space) const;
  const std::vector<cpu::Strided>& tensors() const { return tensors_; }
  const std::vector<cpu::MapIndex>& maps() const { return maps_; }
  const std::vector<float>& sizes() const { return sizes_; }
  /// Bytes of a gradient row past the vocabulary, to be filled with zeros.
  std::int64_t gradient_padding() const { return gradient_padding_; }
  const ExecutionStatus& status() const { return status_; }

 private:
  struct Grouped {  // a map's positions by segment
    std::vector<std::int64_t> offsets;
    std::vector<std::int32_t> order;
  };

  void find_rows(const Program::Impl& program, const TensorMap& bound, std::int64_t rows);
  void find_segments(const Program::Impl& program, const TensorMap& bound);
  void find_pairs(const TensorMap& bound);
  void read_cu_seqlens(const TensorView& cu);
  void read_segment_ids(const TensorView& ids, const TensorMap& bound);
  void group(const std::string& map, const std::vector<std::int32_t>& index, std::int64_t groups);
  cpu::Strided labels(const Program::Impl& program, const TensorSlot& slot, const TensorView& view,
                      const TensorMap& bound);
  void bind_slot(const Program::Impl& program, const TensorMap& bound, std::size_t index);
  void bind_elements(const Program::Impl& program, const TensorMap& bound);
  void stage(const TensorSlot& slot, bool is_output, cpu::Strided& target);
  void mark_bad(std::int64_t row);

  std::int64_t rows_ = 0, segments_ = 0, pairs_ = 0;
  std::vector<cpu::Strided> tensors_;
  std::vector<cpu::MapIndex> maps_;
  std::vector<float> sizes_;
  std::map<std::string, std::vector<std::int32_t>>
      indices_;  // labels, segment_ids, pairs.* as kernels read them
  std::map<std::string, std::vector<float>>
      expanded_;  // a segment's value at each of its rows; unbound outputs
  std::map<std::string, std::vector<char>> staged_;
  std::vector<std::pair<cpu::Strided, const char*>> staged_outputs_;
  std::map<std::string, Grouped> grouped_;
  std::map<std::string, std::int64_t> fallback_;  // storage of constants for absent tensors
  bool identity_order_ = false;
  std::int64_t gradient_padding_ = 0;
  std::vector<std::int64_t> bad_rows_;
  ExecutionStatus status_;
};

}  // namespace lossc
