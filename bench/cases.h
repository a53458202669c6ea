// What is measured: loss specs, and a batch with everything that they read and write.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "bench/timing.h"
#include "lossc/program.h"

namespace lossc::bench {

struct Case {
  std::string name;    ///< The value of --spec.
  std::string losses;  ///< The spec's "losses" as JSON.
  bool gradient = true;
  int reads = 1;  ///< Tensors of the logits' shape that have to be read; the gradient is one write more.
  /// Time / copy to reach with 64-byte vectors. With 32-byte vectors fp32 may take 1.2 times as long; bf16,
  /// where arithmetic is the limit, has no target there.
  double target_fp32 = 0, target_bf16 = 0;

  int passes() const { return reads + (gradient ? 1 : 0); }
  bool reads_teacher() const { return losses.find("distillation") != std::string::npos; }
};

const std::vector<Case>& cases();
/// Throws Error(invalid_argument) with the known names.
const Case& find_case(const std::string& name);
/// 0: no target.
double target(const Case& measured, DType dtype);
Spec make_spec(const Case& measured, DType dtype, std::int64_t vocab);

/// Memory on huge pages where the system has them, aligned to 2 MB.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes);
  char* data() const { return data_.get(); }
  std::size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(char* data) const { std::free(data); }
  };
  std::size_t size_;
  std::unique_ptr<char, Free> data_;
};

/// Random logits and what belongs to them. One set of buffers serves every vocabulary.
class Batch {
 public:
  /// Logits and teacher logits are normal with standard deviation `sigma`.
  Batch(Team& team, DType dtype, std::size_t bytes, double sigma, bool teacher);

  /// Cuts the buffers into rows of `vocab`; makes labels, segments and old log-probabilities that lie near
  /// the present ones, so that some segments' ratios are clipped and some are not.
  void set_vocab(Team& team, std::int64_t vocab);

  DType dtype() const { return dtype_; }
  std::int64_t rows() const { return rows_; }
  std::int64_t segments() const { return static_cast<std::int64_t>(advantages_.size()); }
  std::int64_t vocab() const { return vocab_; }
  std::size_t bytes() const;  ///< Of one tensor of the logits' shape.
  char* logits() const { return logits_.data(); }
  char* gradient() const { return gradient_.data(); }

  /// Binds all that the program names.
  void bind(Execution& execution, const Program& program);
  /// Runs once and checks that all results are finite, that loss and log-probabilities are those of a plain
  /// double-precision computation, and that a row's gradient sums to what it must. Throws Error(internal).
  void check(Execution& execution, const Case& measured);

 private:
  double element(const Buffer& buffer, std::int64_t row, std::int64_t column) const;
  void check_gradient(const Case& measured) const;

  DType dtype_;
  Buffer logits_, gradient_;
  std::unique_ptr<Buffer> teacher_;
  std::int64_t rows_ = 0, vocab_ = 0;
  std::vector<std::int32_t> labels_, cu_seqlens_;
  std::vector<float> advantages_, old_logprobs_, logprobs_, entropy_;
  std::vector<double> lse_, reference_logprobs_;
};

}  // namespace lossc::bench
