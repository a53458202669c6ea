// What the CUDA kernels and the runtime agree on. This file is compiled by both: by the host as part of the
// library, and by NVRTC as the beginning of every generated source, so it includes nothing.
//
// A kernel's only argument is one block of memory, in this order:
//
//   Head, Tensor[tensors], float* [buffers], Map[maps], const float* [parameters], float* [results],
//   float[parameters]
//
// All parts but the last hold 8-byte fields, so nothing is padded.
#pragma once

namespace lossc::cuda {

/// What an index or condition means; decides how it is read.
enum TensorRole : int {
  kRoleValues = 0,
  kRoleLabels = 1,    ///< negative or ignored: -1; beyond the vocabulary: vocab
  kRoleSegments = 2,  ///< negative: -1; not below the number of segments: -2
  kRolePairs = 3      ///< negative or not below the number of segments: -1
};

/// A tensor addressed by position: data + i * stride + (i / inner) * jump, in bytes, where i / inner is the
/// high half of i * factor, shifted. One stride alone has the factor 0; an absent optional tensor is a
/// constant with stride 0.
struct Tensor {
  char* data;
  long long stride;
  long long jump;
  unsigned factor;
  int shift;
  int wide;  ///< indices are 64 bits wide
  int role;  ///< TensorRole
};

constexpr int kStepThreads = 256;      ///< of a block of a step's kernel
constexpr int kReductionBlock = 1024;  ///< positions that one block reduces; part of the result's bits

/// Positions of the from-space of an index map, grouped by their element of the to-space, in ascending order.
struct Map {
  const long long* offsets;  ///< to-space size + 1
  const int* order;          ///< null: the identity
};

/// What runs found wrong with their inputs; 0 where nothing was.
struct Status {
  unsigned long long bad_rows;
  unsigned long long first_bad_row;  ///< as ~row, so that the largest is the first; 0: none
  unsigned long long
      bad_offset;  ///< of this run, as ~index: where cu_seqlens does not ascend, or ends elsewhere
  unsigned long long bad_pair;        ///< as ~index: a pair that names a segment that does not exist
  unsigned long long any_bad_offset;  ///< bad_offset of any run
};

struct Head {
  long long row_begin, row_end;  ///< rows of this launch, of a region
  long long counts[8];           ///< sizes by ir::Space
  long long gradient_padding;    ///< bytes of a gradient row past the vocabulary, filled with zeros
  long long ignore_index;
  const long long* ignore_pointer;  ///< read in place of ignore_index where it is not null
  long long ignores;                ///< 0: no label is ignored by its value
  float* scalars;
  double* partial;    ///< what the blocks of a reduction leave
  unsigned* tickets;  ///< one a kernel that ends in a last block; 0 between launches
  Status* status;
};

}  // namespace lossc::cuda
