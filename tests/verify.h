// Runs a case on a batch and says what differs from the reference.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "lossc/program.h"
#include "tests/batch.h"
#include "tests/bound_batch.h"
#include "tests/loss_case.h"
#include "tests/reference.h"

namespace lossc::test {

/// What differs: scalars, rows, gradient, memory. At most a few lines a kind; empty when all is right.
std::vector<std::string> differences(const LossCase& spec, const Batch& batch, const Reference& right,
                                     Execution& execution, BoundBatch& memory);

/// The devices of this build: "cpu", "interpreter". Small batches run on each.
/// LOSSC_TEST_DEVICES, a list with commas, names others.
const std::vector<std::string>& devices();

/// Compiles for `device`, runs the batch and compares. Returns "" when all is right, else a report with the
/// spec.
std::string verify(const LossCase& spec, const Batch& batch, const MemoryOptions& memory = {},
                   const std::string& device = devices().front());

/// One batch through one program, with what belongs to it.
struct Run {
  Run(const LossCase& spec, const Batch& batch, const std::string& device = devices().front(),
      const MemoryOptions& layout = {});
  /// All elements of the gradient, padding columns included.
  std::vector<double> gradient();

  Program program;
  Execution execution;
  BoundBatch memory;
};

/// verify() on a decided random batch, on the CPU backend and, where the batch is small, on the interpreter
/// too.
std::string verify_random(const LossCase& spec, const BatchOptions& options, std::uint64_t seed,
                          const MemoryOptions& memory = {});

/// verify() on every device.
std::string verify_everywhere(const LossCase& spec, const Batch& batch);

/// The bits of every result of the last run: scalars, rows and gradient. For bitwise comparisons.
std::vector<std::uint64_t> result_bits(const Program& program, const Execution& execution,
                                       BoundBatch& memory);

/// In how many places two results differ by a bit; all when their lengths do.
std::size_t differing(const std::vector<std::uint64_t>& a, const std::vector<std::uint64_t>& b);

Program compile(const LossCase& spec, const std::string& device = devices().front());

}  // namespace lossc::test
