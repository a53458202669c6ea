// The device "interpreter": double precision, rounded once where a result is stored. It is compared with the
// reference, within double's rounding, and with the CPU backend, within fp32's.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "runtime/numbers.h"
#include "tests/cases.h"
#include "tests/catch.h"
#include "tests/verify.h"

namespace lossc::test {
namespace {

const std::string interpreter = "interpreter";

bool has_cpu() {
  return std::find(devices().begin(), devices().end(), "cpu") != devices().end();
}

std::vector<NamedCase> cases() {
  Child smooth = cross_entropy();
  smooth.numbers = {{"label_smoothing", 0.1}};
  NamedCase capped{"softcap", losses({smooth, gspo()}, 57), {}};
  capped.spec.logits = {.scale = 0.7, .softcap = 4};
  std::vector<NamedCase> all = {
      {"cross entropy with smoothing, z-loss", losses({smooth, z_loss()}, 131), {}},
      {"GSPO, z-loss, cross entropy", losses({gspo(), z_loss(), cross_entropy()}, 131), {}},
      {"DPO", losses({dpo()}, 43), {}},
      {"reverse KL", losses({distillation("reverse_kl")}, 57), {}},
      capped};
  for (NamedCase& c : all) {
    c.spec.metrics = {"entropy"};
    c.spec.outputs = {"logprobs"};
    c.options.rows = 24;
    c.options.segments = 5;
    c.options.grad_scale = BatchOptions::GradScale::rows;
  }
  return all;
}

std::vector<LossCase> variants(const LossCase& spec) {
  std::vector<LossCase> all;
  for (const char* mode : {"overwrite", "accumulate", "in_place", "none"}) {
    for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
      LossCase variant = spec;
      variant.gradient_mode = mode;
      variant.logits_dtype = dtype;
      all.push_back(variant);
    }
  }
  return all;
}

// The reference's bounds are first order in fp32's unit; double's is 2^-29 of it. Its library functions err
// by up to an ulp where the bounds' constants count roundings: 2^-26 leaves them room.
Reference in_double(Reference right) {
  const auto tighten = [](Bounded& b) { b.error *= 0x1p-26; };
  for (auto& [name, value] : right.scalars) tighten(value);
  for (auto& [name, values] : right.rows) std::for_each(values.begin(), values.end(), tighten);
  std::for_each(right.gradient.begin(), right.gradient.end(), tighten);
  return right;
}

// The interpreter's results as what is right, with the reference's bounds; a stored number has half an ulp
// more.
Reference of_run(Run& run, const LossCase& spec, Reference right) {
  const auto replace = [](Bounded& b, double value, DType dtype) {
    const double stored = std::isfinite(value) ? half_ulp(dtype, value) : 0;
    b = {value, b.error + stored};
  };
  for (auto& [name, value] : right.scalars) {
    replace(value, run.execution.value(name.substr(0, name.find('@'))), DType::fp32);
  }
  for (auto& [name, values] : right.rows) {
    for (std::size_t r = 0; r < values.size(); ++r) {
      replace(values[r], run.memory.tensor(name).get(static_cast<std::int64_t>(r)), DType::fp32);
    }
  }
  for (std::size_t i = 0; i < right.gradient.size(); ++i) {
    replace(right.gradient[i],
            run.memory.gradient_at(static_cast<std::int64_t>(i) / spec.vocab,
                                   static_cast<std::int64_t>(i) % spec.vocab),
            spec.grad_dtype());
  }
  return right;
}

TEST_CASE("the interpreter computes in double precision and rounds once") {
  for (const NamedCase& named : cases()) {
    for (const LossCase& spec : variants(named.spec)) {
      std::mt19937_64 random(11);
      const Batch batch = decided_batch(spec, named.options, random);
      INFO(named.name << "\n" << spec.to_json());
      MemoryOptions memory;
      memory.logits_pitch = 3;
      memory.gradient_pitch = 5;
      memory.padded_columns = memory.gradient_padded_columns = 2;
      Run run(spec, batch, interpreter, memory);
      CHECK(differences(spec, batch, in_double(reference(spec, batch)), run.execution, run.memory) ==
            std::vector<std::string>{});
    }
  }
}

TEST_CASE("the CPU backend agrees with the interpreter") {
  if (!has_cpu()) return;
  for (const NamedCase& named : cases()) {
    LossCase spec = named.spec;
    std::mt19937_64 random(12);
    const Batch batch = decided_batch(spec, named.options, random);
    INFO(named.name);
    Run right(spec, batch, interpreter), compiled(spec, batch, "cpu");
    CHECK(differences(spec, batch, of_run(right, spec, reference(spec, batch)), compiled.execution,
                      compiled.memory) == std::vector<std::string>{});
  }
}

TEST_CASE("the interpreter gives the same bits again, in steps too") {
  for (const NamedCase& named : cases()) {
    LossCase spec = named.spec;
    spec.logits_dtype = DType::bf16;
    std::mt19937_64 random(13);
    const Batch batch = random_batch(spec, named.options, random);
    INFO(named.name);
    Run first(spec, batch, interpreter), second(spec, batch, interpreter);
    const auto bits = result_bits(first.program, first.execution, first.memory);
    CHECK(result_bits(second.program, second.execution, second.memory) == bits);

    Execution& e = second.execution;
    second.memory.reset();
    e.begin(batch.rows);
    for (int region = 0; region + 1 < e.regions(); ++region) {
      e.forward(0, 7);
      e.forward(7, batch.rows);
      e.seam();
    }
    e.backward(9, batch.rows);
    e.backward(0, 9);
    e.finish();
    CHECK(result_bits(second.program, e, second.memory) == bits);
  }
}

TEST_CASE("the interpreter refuses chunks of tensors") {
  const LossCase spec = losses({gspo(), cross_entropy()}, 13);
  std::mt19937_64 random(14);
  const Batch batch = random_batch(spec, {}, random);
  Execution execution(compile(spec, interpreter));
  BoundBatch memory(spec, batch);
  memory.bind_without_elements(execution);
  execution.begin(batch.rows);
  const auto code_of = [](const auto& f) {
    try {
      f();
    } catch (const Error& error) {
      return error.code();
    }
    return ErrorCode::internal;
  };
  CHECK(code_of([&] { execution.forward(0, 4, memory.chunk(0, 4)); }) == ErrorCode::unsupported);
  // Without chunks the tensors are missing.
  CHECK(code_of([&] { execution.forward(0, 4); }) == ErrorCode::invalid_argument);
  CHECK(code_of([&] { execution.finish(); }) == ErrorCode::invalid_argument);
}

TEST_CASE("the interpreter compiles nothing and has a key of its own") {
  const LossCase spec = losses({cross_entropy()}, 1237);
  const std::int64_t before = statistics().compilations;
  const Program program = compile(spec, interpreter);
  CHECK(statistics().compilations == before);
  CHECK(program.source().empty());
  CHECK(program.key().size() == 64);
  CHECK(compile(spec, interpreter).key() == program.key());
  CHECK(compile(losses({cross_entropy()}, 1238), interpreter).key() != program.key());
  if (has_cpu()) CHECK(compile(spec, "cpu").key() != program.key());
}

TEST_CASE("a device that this build has not is refused with those it has") {
  const LossCase spec = losses({cross_entropy()}, 5);
  for (const std::string device : {"cpu", "tpu"}) {
    if (device == "cpu" && has_cpu()) continue;
    INFO(device);
    try {
      compile(spec, device);
      FAIL("no error was thrown");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::unsupported);
      CHECK(std::string(error.what()).find("interpreter") != std::string::npos);
    }
  }
}

TEST_CASE("explain_row after a run of the interpreter") {
  const LossCase spec = losses({gspo(), cross_entropy()}, 13);
  BatchOptions options;
  options.masked_fraction = options.ignored_fraction = options.outside_fraction = 0;
  std::mt19937_64 random(15);
  const Batch batch = random_batch(spec, options, random);
  Run run(spec, batch, interpreter);
  const std::string text = run.execution.explain_row(3);
  INFO(text);
  CHECK(text.find("statistics") != std::string::npos);
  // The label's whole gradient is what the tensor holds.
  const std::string label = "grad_logits[" + std::to_string(batch.labels.at("labels")[3]) + "]";
  const auto place = text.find(label);
  REQUIRE(place != std::string::npos);
  const double explained = std::stod(text.substr(place + label.size()));
  const double stored = run.memory.gradient_at(3, batch.labels.at("labels")[3]);
  // Nine digits are printed.
  CHECK(std::abs(explained - stored) <= half_ulp(DType::fp32, stored) + 1e-8 * std::abs(stored));
}

TEST_CASE("numbers are read and written exactly, and rounded to the nearest, ties to even") {
  for (DType dtype : {DType::bf16, DType::fp16}) {
    for (std::uint32_t bits = 0; bits < 65536; ++bits) {
      const auto stored = static_cast<std::uint16_t>(bits);
      char memory[2];
      std::memcpy(memory, &stored, 2);
      const double value = read_number(memory, dtype), right = decode(dtype, bits);
      bool good = std::isnan(right) ? std::isnan(value) : value == right;
      std::uint16_t written = 0;
      const auto written_is = [&](double number, std::uint64_t expected) {
        write_number(memory, dtype, number);
        std::memcpy(&written, memory, 2);
        good = good && (std::isnan(number) ? std::isnan(decode(dtype, written)) : written == expected);
      };
      written_is(right, bits);
      // Half way to the next number, and a little to both sides: less than fp32 could hold.
      const double next = decode(dtype, bits + 1);
      if (bits + 1 < 65536 && std::isfinite(right) && std::isfinite(next)) {
        const double middle = (right + next) / 2;
        written_is(middle, encode(dtype, middle));
        for (double toward : {right, next}) {
          const double near = std::nextafter(middle, toward);
          written_is(near, encode(dtype, near));
          good = good && decode(dtype, written) == toward;
        }
      }
      if (!good) FAIL(dtype_name(dtype) << " bits " << bits << ": read " << value << ", wrote " << written);
    }
    for (double value : {1e300, 65520.0, 65519.99, 3.4e38, -1e300, 1e-300, -1e-300}) {
      char memory[2];
      std::uint16_t written = 0;
      write_number(memory, dtype, value);
      std::memcpy(&written, memory, 2);
      INFO(value);
      CHECK(written == encode(dtype, value));
    }
  }
}

}  // namespace
}  // namespace lossc::test
