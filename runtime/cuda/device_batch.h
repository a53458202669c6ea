// One batch on a GPU: tensors as the kernels' argument block, checked by shape alone, for their contents are
// on the device.
//
// Promise: binding reads nothing from the device and waits for nothing, unless a tensor lies in host memory.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/cuda/argument_block.h"
#include "runtime/cuda/cuda_kernels.h"
#include "runtime/cuda/staging.h"
#include "runtime/executor.h"

namespace lossc::cuda {

class DeviceBatch {
 public:
  DeviceBatch(std::shared_ptr<const Program::Impl> program, CUstream stream);

  /// Throws Error(invalid_argument) for what does not fit.
  void bind(const TensorMap& bound, std::int64_t rows, const std::vector<ParameterValue>& parameters);
  /// Whether a batch can run again without bind(): nothing lies in host memory, and `bound` holds the same
  /// sizes.
  bool reusable(const TensorMap& bound, std::int64_t rows) const;
  /// What the segments and pairs need before the prologue.
  void prepare_segments();
  void set_chunk(const TensorMap& bound, const TensorMap& chunk, std::int64_t begin, std::int64_t end);
  /// Throws unless the element tensors that a region reads (and writes) are bound.
  void require_elements(const std::vector<ir::NodeId>& reads, bool gradient);
  /// Copies staged outputs of a chunk, or of the batch, back to host memory.
  void return_chunk();
  void return_outputs();

  ArgumentBlock& arguments() { return arguments_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t size(ir::Space space) const;
  bool staged() const { return staged_; }
  Status* status() const { return status_; }
  float* scalars() const { return scalars_; }
  CUstream stream() const { return stream_; }
  void set_stream(CUstream stream) { stream_ = stream; }

 private:
  struct Returned {
    TensorView device, host;
  };

  void find_sizes(const TensorMap& bound, std::int64_t rows);
  void allocate();
  /// The tensor in device memory: itself, or a staged copy.
  TensorView on_device(const std::string& name, const TensorView& view, bool written,
                       std::vector<Returned>& back);
  bool in_host_memory(const std::string& name, const TensorView& view);
  void bind_slot(const TensorMap& bound, std::size_t index);
  void bind_elements(const TensorMap& bound);
  void bind_element(std::size_t index, const std::string& name, const TensorView& view, std::int64_t rows,
                    std::int64_t first, std::vector<Returned>& back);
  void bind_ignore_index(const TensorMap& bound);
  void group(const std::string& map, const Tensor& index, std::int64_t count);
  void launch_batch(CUkernel kernel, std::int64_t blocks, int threads, void* arguments);
  Tensor tensor_of(const cpu::Strided& s) const;

  std::shared_ptr<const Program::Impl> program_;
  const CudaKernels& kernels_;
  CUstream stream_;
  Workspace workspace_;
  Staging staging_;
  ArgumentBlock arguments_;
  std::vector<Tensor> fallbacks_;

  std::int64_t rows_ = 0, segments_ = 0, pairs_ = 0;
  bool staged_ = false, chunked_ = false;
  Status* status_ = nullptr;
  float* scalars_ = nullptr;
  std::map<std::string, std::pair<const void*, bool>> host_memory_;  ///< what a pointer was found to be
  std::vector<Returned> returned_, chunk_returned_;
  std::map<std::string, TensorView> device_views_;      ///< of cu_seqlens, segment_ids and pairs
  std::vector<std::pair<std::size_t, Tensor>> spread_;  ///< slot, values a segment
};

}  // namespace lossc::cuda
