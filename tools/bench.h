// What the parts of `lossc bench` share: a random batch, and what one device measures.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "compiler/plan.h"
#include "lossc/program.h"

namespace lossc::cli {

/// A tensor that a program reads. Of one of the logits' shape only the first rows are held: the others repeat
/// them.
struct BenchTensor {
  std::string name;
  DType dtype = DType::fp32;
  std::vector<std::int64_t> shape;
  std::vector<char> bytes;

  std::size_t size_bytes() const;  ///< of the whole tensor
};

struct BenchBatch {
  std::int64_t rows = 0, segments = 0;
  std::vector<BenchTensor> inputs;
};

/// Random numbers for all that the program needs: every row has a label and a segment, so that all of the
/// plan's traffic happens; log-probabilities of another policy lie near those of the logits.
BenchBatch bench_batch(const Program& program, std::int64_t rows, std::int64_t segments, std::uint64_t seed);

/// Bytes that a plan moves for one row, by kind of pass.
struct BenchTraffic {
  double read_only = 0;  ///< by regions that write no gradient
  double mixed = 0;      ///< by the region that writes it, reads and writes together
  double all() const { return read_only + mixed; }
};
BenchTraffic bench_traffic(const Plan& plan, const Spec& spec);

/// Times in milliseconds, one a repeat; the yardsticks are taken between the runs.
struct BenchTimes {
  std::string device;  ///< its name, for people
  std::vector<double> run, read, copy;
  std::string copy_kernel;  ///< the fastest of several
  double bytes = 0;         ///< of the memory that is read, or copied once
  /// Microseconds until run() returned, repeated and with a tensor bound anew each time; empty where it waits
  /// for the results.
  std::vector<double> host, host_anew;
  std::size_t disturbed = 0;      ///< repeats in which another process took the core
  double load = 0;                ///< of kernels that are compiled, until they can be launched
  std::int64_t compilations = 0;  ///< during all runs
};

using Prepare = std::function<void(Execution&)>;  // sets parameters

BenchTimes bench_cpu(const Program& program, const BenchBatch& batch, const Prepare& prepare, int repeats);
/// Throws Error(unsupported) where this build has no CUDA backend.
BenchTimes bench_cuda(const Program& program, const BenchBatch& batch, const Prepare& prepare, int repeats);

double median(std::vector<double> values);

}  // namespace lossc::cli
