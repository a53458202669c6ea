#include "tests/verify.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <cmath>
#include <cstdlib>
#include <sstream>

namespace lossc::test {
namespace {

std::size_t at(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

constexpr std::size_t lines_a_kind = 4;

// Collects a few lines and counts the rest.
class Report {
 public:
  void add(std::string line) {
    if (lines_.size() < lines_a_kind) lines_.push_back(std::move(line));
    ++count_;
  }
  void append_to(std::vector<std::string>& all) {
    if (count_ > lines_.size()) lines_.push_back(fmt::format("... {} more", count_ - lines_.size()));
    all.insert(all.end(), lines_.begin(), lines_.end());
  }

 private:
  std::vector<std::string> lines_;
  std::size_t count_ = 0;
};

std::string difference(const std::string& where, double got, Bounded right) {
  return fmt::format("{}: got {:.9g}, right is {:.9g} within {:.2g}", where, got, right.value, right.error);
}

void compare_gradient(const LossCase& spec, const Batch& batch, const Reference& right, BoundBatch& memory,
                      Report& report) {
  const bool accumulate = spec.gradient_mode == "accumulate";
  const DType dtype = spec.gradient_mode == "in_place" ? spec.logits_dtype : spec.grad_dtype();
  for (std::int64_t r = 0; r < batch.rows; ++r) {
    for (std::int64_t k = 0; k < batch.vocab; ++k) {
      const std::size_t i = at(r * batch.vocab + k);
      const double got = memory.gradient_at(r, k);
      const double before = accumulate ? batch.previous_gradient[i] : 0;
      if (!right.live[at(r)]) {
        // Not within rounding: exactly.
        if (got != before)
          report.add(
              difference(fmt::format("gradient[{}, {}] of a row that does not count", r, k), got, before));
        continue;
      }
      Bounded expected = right.gradient[i];
      if (accumulate) expected = Bounded(before) + expected;
      if (!agrees(got, expected, dtype))
        report.add(difference(fmt::format("gradient[{}, {}]", r, k), got, expected));
    }
  }
}

}  // namespace

std::vector<std::string> differences(const LossCase& spec, const Batch& batch, const Reference& right,
                                     Execution& execution, BoundBatch& memory) {
  std::vector<std::string> all;
  for (const auto& [name, value] : right.scalars) {
    std::string result = name;
    if (const auto mark = result.find('@'); mark != result.npos) result.erase(mark);
    const double got = execution.value(result);
    if (!agrees(got, value, DType::fp32)) all.push_back(difference(name, got, value));
  }
  for (const auto& [name, values] : right.rows) {
    Report report;
    for (std::size_t r = 0; r < values.size(); ++r) {
      const double got = memory.tensor(name).get(static_cast<std::int64_t>(r));
      if (!agrees(got, values[r], DType::fp32))
        report.add(difference(fmt::format("{}[{}]", name, r), got, values[r]));
    }
    report.append_to(all);
  }
  if (spec.gradient_mode != "none") {
    Report report;
    compare_gradient(spec, batch, right, memory, report);
    report.append_to(all);
  }
  for (std::string& line : memory.damage()) all.push_back(std::move(line));
  return all;
}

const std::vector<std::string>& devices() {
  static const std::vector<std::string> names = [] {
    LossCase spec;
    spec.vocab = 2;
    spec.children.push_back({.name = "ce", .type = "cross_entropy"});
    std::vector<std::string> found, wanted = {"cpu", "interpreter"};
    if (const char* named = std::getenv("LOSSC_TEST_DEVICES")) {
      wanted.clear();
      std::istringstream list(named);
      for (std::string device; std::getline(list, device, ',');) wanted.push_back(device);
    }
    for (const std::string& device : wanted) {
      try {
        compile(spec, device);
        found.emplace_back(device);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::unsupported) throw;
      }
    }
    return found;
  }();
  return names;
}

Program compile(const LossCase& spec, const std::string& device) {
  CompileOptions options;
  options.device = device;
  return Program::compile(spec.spec(), options);
}

std::string verify(const LossCase& spec, const Batch& batch, const MemoryOptions& memory,
                   const std::string& device) {
  Execution execution(compile(spec, device));
  BoundBatch bound(spec, batch, memory);
  bound.bind(execution);
  execution.run();
  const std::vector<std::string> found = differences(spec, batch, reference(spec, batch), execution, bound);
  if (found.empty()) return "";
  return fmt::format("on {}, {} rows, {} segments:\n{}\n{}", device, batch.rows, batch.segments,
                     fmt::join(found, "\n"), spec.to_json());
}

std::string verify_everywhere(const LossCase& spec, const Batch& batch) {
  std::string report;
  for (const std::string& device : devices()) report += verify(spec, batch, {}, device);
  return report;
}

Run::Run(const LossCase& spec, const Batch& batch, const std::string& device, const MemoryOptions& layout)
    : program(compile(spec, device)), execution(program), memory(spec, batch, layout) {
  memory.bind(execution);
  execution.run();
}

std::vector<double> Run::gradient() {
  std::vector<double> all;
  const Storage& storage = memory.gradient();
  for (std::int64_t i = 0; i < storage.size(); ++i) all.push_back(storage.get(i));
  return all;
}

std::string verify_random(const LossCase& spec, const BatchOptions& options, std::uint64_t seed,
                          const MemoryOptions& memory) {
  std::mt19937_64 random(seed);
  const Batch batch = decided_batch(spec, options, random);
  std::string report = verify(spec, batch, memory);
  constexpr std::int64_t small = 1 << 14;
  for (std::size_t i = 1; i < devices().size() && batch.rows * batch.vocab <= small; ++i) {
    report += verify(spec, batch, memory, devices()[i]);
  }
  return report;
}

std::size_t differing(const std::vector<std::uint64_t>& a, const std::vector<std::uint64_t>& b) {
  if (a.size() != b.size()) return std::max(a.size(), b.size());
  std::size_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) count += a[i] != b[i];
  return count;
}

std::vector<std::uint64_t> result_bits(const Program& program, const Execution& execution,
                                       BoundBatch& memory) {
  std::vector<std::uint64_t> bits;
  for (const TensorInfo& output : program.outputs()) {
    if (output.space == "scalar") {
      bits.push_back(std::bit_cast<std::uint32_t>(execution.value(output.name)));
    } else if (memory.has(output.name)) {
      const std::vector<std::uint64_t> tensor = memory.tensor(output.name).bits();
      bits.insert(bits.end(), tensor.begin(), tensor.end());
    }
  }
  return bits;
}

}  // namespace lossc::test
