// Compile a loss spec once, run it on many batches.
//
//   Program program = Program::compile(Spec::parse(text));
//   Execution execution(program);
//   execution.bind("logits", tensor(logits, {rows, vocab}));
//   execution.bind("labels", tensor(labels));
//   execution.bind("grad_logits", tensor(gradient, {rows, vocab}));
//   execution.run();
//   float loss = execution.value("loss");
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lossc/error.h"
#include "lossc/loss.h"
#include "lossc/spec.h"
#include "lossc/tensor.h"

namespace lossc {

struct CompileOptions {
  /// The loss types the spec may name; the built-in ones when null. Must outlive the call only.
  const LossRegistry* registry = nullptr;
  /// "cpu": LLVM machine code. "cuda:N" ("cuda" is "cuda:0"): kernels for the N-th GPU. "interpreter": double
  /// precision, slow, for small checks; in every build. It keeps 8 bytes for each element of the logits and
  /// each value of their shape that the losses are made of.
  std::string device = "cpu";
};

struct ParameterInfo {
  std::string name;  ///< "policy.epsilon_low", "logits.scale", "params.tau"
  double value;      ///< The spec's number: the default at run time.
  Range range;
};

struct TensorInfo {
  std::string name;
  std::string space;          ///< "scalar", "rows", "segments", "pairs", "element"
  std::vector<DType> dtypes;  ///< Accepted element types.
  bool required = true;
  std::string doc;
};

/// The devices that CompileOptions::device may name in this build, the fastest first.
std::vector<std::string> available_devices();

/// A plan with its machine code (the interpreter has none): immutable, cheap to copy, shared by threads.
class Program {
 public:
  /// Throws Error(invalid_spec | unsupported | compile_failed).
  static Program compile(const Spec& spec, const CompileOptions& options = {});

  const Spec& spec() const;
  const std::vector<ParameterInfo>& parameters() const;
  const std::vector<TensorInfo>& inputs() const;
  /// "loss", "loss.<child>", "metric.<name>" (scalar), "output.<name>" (rows), "grad_logits" (element).
  const std::vector<TensorInfo>& outputs() const;

  /// Hex digest that names the kernels: structure, vocabulary, dtypes, target; never a size that varies.
  const std::string& key() const;
  /// The plan as text and as JSON (what `lossc plan` prints).
  std::string plan_text() const;
  std::string plan_json() const;
  /// The generated source (LLVM IR or CUDA C++); empty for the interpreter.
  std::string source() const;

  struct Impl;
  const std::shared_ptr<const Impl>& impl() const { return impl_; }

 private:
  explicit Program(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<const Impl> impl_;
};

/// Rows whose labels or segment ids were out of range: their results are NaN.
struct ExecutionStatus {
  std::int64_t bad_rows = 0;
  std::int64_t first_bad_row = -1;
};

/// One batch at a time on one thread; many executions of one program may run at once.
/// Workspace grows to the largest batch seen and is then reused.
class Execution {
 public:
  explicit Execution(Program program);
  ~Execution();
  Execution(Execution&&) noexcept;
  Execution& operator=(Execution&&) noexcept;

  /// Sets a run-time parameter for the runs that follow. Throws Error(invalid_argument) for a name that the
  /// spec does not have (with the nearest) or a value out of range.
  void set(std::string_view parameter, double value);

  /// The parameter is read from device memory whenever kernels run, so that a captured graph sees what stands
  /// there then. Its range is not checked. For programs on a GPU; Error(unsupported) elsewhere. set() ends
  /// it.
  void bind_parameter(std::string_view parameter, const float* device);

  /// The CUstream that the following work is put on; null: the default stream. For programs on a GPU; ignored
  /// elsewhere.
  void set_stream(void* stream);

  /// Binds an input or output by name; the memory must stay valid while runs use it. "num_segments" is a 0-d
  /// i32/i64 tensor. A tensor the program does not know throws; unbind() forgets one.
  void bind(std::string_view name, TensorView tensor);
  void unbind(std::string_view name);
  void unbind_all();

  /// Computes everything. Throws Error(invalid_argument) before any work when tensors do not fit, and
  /// Error(invalid_data) after all outputs are written when a label or segment id was out of range.
  ///
  /// On a GPU, tensors lie in device memory, but for "num_segments". run() then puts its work on the stream
  /// and returns: value() and status() wait for it, and bad rows are told by status() alone. Tensors in host
  /// memory are copied there and back, and run() waits: for files and checks.
  void run();

  // The same in steps, for logits that are made in chunks of rows. All tensors but those of the logits' shape
  // are bound over all rows. `forward` may be called over any cover of the rows by disjoint ranges, then
  // `seam()`; programs of R regions take R - 1 such rounds (regions()); then `backward` over a cover of the
  // rows, then finish(). `chunk` holds the element tensors of just these rows (logits, teacher_logits, ...,
  // grad_logits); those bound over all rows need not be in it. Results are bitwise those of run().
  // The interpreter computes everything in finish(): its element tensors must be bound over all rows and hold
  // the whole batch by then, and a chunk throws Error(unsupported).
  void begin(std::int64_t rows);
  void forward(std::int64_t row_begin, std::int64_t row_end,
               const std::map<std::string, TensorView>& chunk = {});
  void seam();
  void backward(std::int64_t row_begin, std::int64_t row_end,
                const std::map<std::string, TensorView>& chunk = {});
  void finish();
  int regions() const;

  /// A scalar result of the last run, waiting for it: "loss", "loss.<child>", "metric.<name>".
  float value(std::string_view name) const;
  /// On a GPU: waits, reports what was found since the last call, and clears it. Throws Error(invalid_data)
  /// for cu_seqlens that do not ascend and for pairs of segments that do not exist.
  ExecutionStatus status() const;

  /// What one row's results are made of, after run(): statistics, coefficients and gradient terms per child,
  /// as text.
  std::string explain_row(std::int64_t row) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Process-wide counters.
struct Statistics {
  std::int64_t compilations = 0;  ///< Programs for which machine code was generated.
  std::int64_t memory_hits = 0;   ///< Programs whose kernels were already in this process.
  std::int64_t disk_hits = 0;     ///< Programs whose kernels came from the kernel cache's folder.
  double compile_seconds = 0;
};
Statistics statistics();

/// Threads the CPU backend uses: LOSSC_NUM_THREADS, else the machine's.
int num_threads();

}  // namespace lossc
