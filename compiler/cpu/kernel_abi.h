// What generated CPU code and the runtime agree on. Plain data: generated code reads these by offset.
#pragma once

#include <cstdint>

namespace lossc::cpu {

/// A tensor addressed by position i: data + i * stride; strides count bytes, an absent optional tensor is a
/// constant with stride 0. Of tensors of the logits' shape only the runtime forms addresses, and those may be
/// nested: data + (i / inner) * outer_stride + (i % inner) * stride where inner > 0.
struct Strided {
  char* data;
  std::int64_t stride;
  std::int64_t inner;
  std::int64_t outer_stride;

  char* row(std::int64_t i) const {
    return inner > 0 ? data + (i / inner) * outer_stride + (i % inner) * stride : data + i * stride;
  }
};

/// Positions of the from-space of an index map, grouped by their element of the to-space, in ascending order.
struct MapIndex {
  const std::int64_t* offsets;  // to-space size + 1
  const std::int32_t* order;    // null: the identity
};

struct KernelArgs {
  const Strided* tensors;
  float* const* buffers;
  float* scalars;
  const float* parameters;
  const float* sizes;  // by ir::Space
  const MapIndex* maps;
};

/// Bits of what begin_row returns.
inline constexpr std::int32_t kRowActive = 1;  // its logits are read
inline constexpr std::int32_t kRowLive = 2;    // it has a gradient

// A row's frame: the addresses of the row in the region's element tensors (region_tensors, in order) and in
// the gradient, filled in by the runtime; then floats that the functions of the region share.
using BeginRow = std::int32_t (*)(const KernelArgs*, std::int64_t row, void* frame);
/// Chooses the anchors of a phase: from a sample of the row, or (max) exactly.
using Anchor = void (*)(void* frame);
/// Accumulates a phase's statistics; `kept` receives exponentials for later sweeps.
using Sweep = void (*)(void* frame, float* kept);
/// Forms what follows from a phase's sums. Returns 0 when a sum has outgrown its sampled anchor.
using Finish = std::int32_t (*)(const KernelArgs*, std::int64_t row, void* frame);
/// Writes a row's gradient.
using Emit = void (*)(void* frame, const float* kept);
/// Writes the gradient of `previous` while it accumulates the only phase of `current`: reads and writes
/// overlap.
using Fused = void (*)(void* previous, void* current, float* kept);
/// What is written after the dense gradient: single elements.
using Sparse = void (*)(void* frame);

struct PhaseFunctions {
  Anchor sample = nullptr;  // null: the phase has no softmax of its own
  Anchor exact = nullptr;
  Sweep sweep = nullptr;
  Finish finish = nullptr;
};

struct RegionFunctions {
  BeginRow begin = nullptr;
  static constexpr int kMaxPhases = 8;
  PhaseFunctions phases[kMaxPhases];
  int phase_count = 0;
  Emit emit = nullptr;      // null: the region writes no gradient
  Sparse sparse = nullptr;  // null: no sparse terms
  Fused fused = nullptr;    // null: not a region of one phase and a gradient
  // The same with stores that go past the caches; the gradient's row must be aligned to its elements, and a
  // fence is due before other threads read it. Null: they are not worth it here.
  Emit emit_stream = nullptr;
  Fused fused_stream = nullptr;
  std::int64_t frame_bytes = 0;
  std::int64_t kept_floats = 0;
};

/// A step over positions [begin, end) of its domain; reductions leave one double a value in `partial`.
using StepFunction = void (*)(const KernelArgs*, std::int64_t begin, std::int64_t end, double* partial);

}  // namespace lossc::cpu
