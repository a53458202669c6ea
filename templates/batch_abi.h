// The argument block of the kernels of batch.cuh; compiled by the host, too. Comes after abi.h.
#pragma once

namespace lossc::cuda {

struct BatchArguments {
  Tensor index;      ///< segment ids or members of pairs; or cu_seqlens
  Tensor values;     ///< one fp32 a segment, to be spread over the rows
  long long count;   ///< positions: rows or pairs
  long long groups;  ///< segments
  int* keys_in;
  int* keys_out;  ///< sorted by the bits done so far
  int* order_in;
  int* order_out;
  unsigned* histogram;  ///< [256][tiles]
  long long tiles;
  int shift;  ///< of the eight bits to sort by
  int vocab;
  long long* offsets;  ///< [groups + 1]
  float* spread;       ///< [rows]
  Status* status;
};

}  // namespace lossc::cuda
