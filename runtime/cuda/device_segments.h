// The segments and pairs of a batch on a GPU: their numbers, and what brings rows into the order of segments.
#pragma once

#include <deque>
#include <set>
#include <string>
#include <vector>

#include "runtime/cuda/argument_block.h"
#include "runtime/cuda/cuda_kernels.h"
#include "runtime/cuda/launch.h"
#include "runtime/cuda/staging.h"
#include "runtime/program_impl.h"
#include "runtime/tensor_layout.h"
#include "templates/batch_abi.h"

namespace lossc::cuda {

class DeviceSegments {
 public:
  DeviceSegments(const Program::Impl& program, Workspace& workspace, Staging& staging);

  /// Finds the numbers of segments and pairs, and where their tensors lie. Reads no device memory. Throws
  /// Error(invalid_argument) for what does not fit.
  void bind(const TensorMap& bound, std::int64_t rows, CUstream stream);
  /// Whether the numbers that `bound` holds in host memory are still those of bind().
  bool unchanged(const TensorMap& bound) const;
  std::int64_t segments() const { return segments_; }
  std::int64_t pairs() const { return pairs_; }

  /// The segment of each row; an absent tensor's constant is left as it is.
  void set_rows(Tensor& target);
  /// One side of the pairs: of slot "pairs.chosen" or "pairs.rejected".
  Tensor pair_side(const std::string& slot) const;
  /// Whether a tensor that is read a row holds one number a segment.
  bool is_per_segment(const TensorView& view) const;
  /// The rows that values of segments will be spread over.
  Tensor spread(const std::string& name, const Tensor& values);

  /// Makes the launches that a run begins with, once all tensors of the arguments are bound, and sets the
  /// arguments' maps.
  void make_launches(ArgumentBlock& arguments, Status* status);
  /// Puts them on the stream.
  void prepare(CUstream stream) const;

 private:
  void add(CUkernel kernel, std::int64_t blocks, const BatchArguments& arguments, int threads = 256);
  void group(const std::string& map, const Tensor& index, std::int64_t count, ArgumentBlock& arguments,
             Status* status);
  char* memory(const std::string& name, std::int64_t count, std::size_t size);

  struct Spread {
    Tensor values;
    float* rows;
  };

  const Program::Impl& program_;
  const CudaKernels& kernels_;
  Workspace& workspace_;
  Staging& staging_;
  bool needed_ = false;
  std::int64_t rows_ = 0, segments_ = 0, pairs_ = 0;
  bool has_cu_ = false, has_ids_ = false, has_pairs_ = false;
  TensorView cu_, ids_, pairs_view_;  ///< in device memory
  std::vector<Spread> spreads_;
  std::vector<Returned> nothing_;  ///< these tensors are never written
  std::deque<BatchArguments> arguments_;
  std::vector<Launch> launches_;
  CUdeviceptr cleared_ = 0;  ///< two words that each run begins with as zeros; 0: none
};

}  // namespace lossc::cuda
