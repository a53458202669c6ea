// One batch on a GPU: tensors as the kernels' argument block, checked by shape alone, for their contents are
// on the device.
//
// Promise: binding reads nothing from the device and waits for nothing, unless a tensor lies in host memory.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "runtime/cuda/argument_block.h"
#include "runtime/cuda/cuda_kernels.h"
#include "runtime/cuda/device_segments.h"
#include "runtime/cuda/staging.h"
#include "runtime/executor.h"

namespace lossc::cuda {

class DeviceBatch {
 public:
  DeviceBatch(std::shared_ptr<const Program::Impl> program, CUstream stream);

  /// `rows` < 0: as many as the logits have. Throws Error(invalid_argument) for what does not fit.
  void bind(const TensorMap& bound, std::int64_t rows, const std::vector<ParameterValue>& parameters);
  /// Whether a batch can run again without bind(), where nothing was bound or set since: nothing lies in host
  /// memory, and the numbers in it that decide how a run is made are the same.
  bool reusable(const TensorMap& bound, std::int64_t rows) const;
  /// What the segments and pairs need before the prologue.
  void prepare_segments() const { segments_.prepare(stream_); }
  void set_chunk(const TensorMap& bound, const TensorMap& chunk, std::int64_t begin, std::int64_t end);
  /// Throws unless the element tensors that a region reads (and writes) are bound.
  void require_elements(const std::vector<int>& slots);
  /// Copies staged outputs of a chunk, or of the batch, back to host memory.
  void return_chunk();
  void return_outputs();

  ArgumentBlock& arguments() { return arguments_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t size(ir::Space space) const;
  bool staged() const { return staging_.used(); }
  Status* status() const { return status_; }
  float* scalars() const { return scalars_; }
  CUstream stream() const { return stream_; }
  void set_stream(CUstream stream) { stream_ = stream; }

 private:
  void set_constants();
  void allocate();
  TensorView on_device(const std::string& name, const TensorView& view, bool written,
                       std::vector<Returned>& back);
  void bind_slot(const TensorMap& bound, std::size_t index);
  void bind_rows(const TensorView& view, std::size_t index, bool is_output);
  void bind_elements(const TensorMap& bound);
  void bind_element(std::size_t index, const std::string& name, const TensorView& view, std::int64_t rows,
                    std::int64_t first, std::vector<Returned>& back);
  void bind_ignore_index(const TensorMap& bound);
  void bind_numbers(const TensorMap& bound, const std::vector<ParameterValue>& parameters);

  std::shared_ptr<const Program::Impl> program_;
  const CudaKernels& kernels_;
  CUstream stream_;
  Workspace workspace_;
  Staging staging_;
  DeviceSegments segments_;
  ArgumentBlock arguments_;
  std::vector<Tensor> fallbacks_;

  std::int64_t rows_ = 0, asked_rows_ = 0;
  bool chunked_ = false;
  Status* status_ = nullptr;
  float* scalars_ = nullptr;
  std::vector<Returned> returned_, chunk_returned_;
};

}  // namespace lossc::cuda
