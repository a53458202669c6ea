// lossc run: one batch from a file through a spec.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>

#include "lossc/error.h"
#include "lossc/program.h"
#include "runtime/file.h"
#include "runtime/safetensors.h"
#include "tools/arguments.h"
#include "tools/console.h"
#include "tools/verbs.h"

namespace lossc::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string spec, in, out, device = "cpu";
  std::vector<std::string> set;
  std::optional<std::int64_t> explain_row;
  bool json = false;
};

/// Memory of the outputs, by name.
class Outputs {
 public:
  TensorView allocate(const std::string& name, DType dtype, std::vector<std::int64_t> shape) {
    TensorView view{nullptr, dtype, std::move(shape), {}};
    const std::size_t bytes = static_cast<std::size_t>(view.size()) * dtype_size(dtype);
    memory_.push_back(allocate_bytes(bytes));
    std::memset(memory_.back().get(), 0, bytes);
    view.data = memory_.back().get();
    tensors_[name] = view;
    return view;
  }
  void add(const std::string& name, const TensorView& view) { tensors_[name] = view; }
  const TensorMap& tensors() const { return tensors_; }

 private:
  std::vector<std::shared_ptr<std::byte>> memory_;
  TensorMap tensors_;
};

const TensorInfo* find(const std::vector<TensorInfo>& infos, std::string_view name) {
  const auto found =
      std::find_if(infos.begin(), infos.end(), [&](const TensorInfo& i) { return i.name == name; });
  return found == infos.end() ? nullptr : &*found;
}

// Binds what the program reads; says what it does not.
void bind_inputs(const Program& program, const SafetensorsFile& batch, Execution& execution) {
  for (const auto& [name, tensor] : batch.tensors()) {
    if (find(program.inputs(), name) != nullptr) {
      execution.bind(name, tensor);
    } else if (name == "grad_logits" && program.spec().gradient_mode == GradientMode::accumulate) {
      // bind_outputs starts from it
    } else {
      warn(fmt::format("the spec does not use tensor '{}' of the batch", name));
    }
  }
}

// Gives every row output and the gradient memory. Rows have the logits' leading shape.
void bind_outputs(const Program& program, const SafetensorsFile& batch, const TensorView& logits,
                  Execution& execution, Outputs& outputs) {
  const std::vector<std::int64_t> leading(logits.shape.begin(), logits.shape.end() - 1);
  for (const TensorInfo& output : program.outputs()) {
    if (output.space == "rows")
      execution.bind(output.name, outputs.allocate(output.name, output.dtypes.front(), leading));
    if (output.space != "element") continue;
    const TensorView* before = batch.find(output.name);
    switch (program.spec().gradient_mode) {
      case GradientMode::in_place:
        outputs.add(output.name, logits);
        break;
      case GradientMode::accumulate:
        if (before != nullptr) {
          outputs.add(output.name, *before);
          execution.bind(output.name, *before);
          break;
        }
        [[fallthrough]];
      default:
        execution.bind(output.name, outputs.allocate(output.name, output.dtypes.front(), logits.shape));
    }
  }
}

void add_scalars(const Program& program, const Execution& execution, Outputs& outputs) {
  for (const TensorInfo& output : program.outputs()) {
    if (output.space != "scalar") continue;
    const float value = execution.value(output.name);
    std::memcpy(outputs.allocate(output.name, DType::fp32, {}).data, &value, sizeof value);
  }
}

// run() in slices of rows where a person waits for it; the results are the same bits.
void compute(Execution& execution, std::int64_t rows, std::int64_t elements) {
  constexpr std::int64_t slices = 64;
  if (elements < (std::int64_t{1} << 27) || rows < slices) {
    execution.run();
    return;
  }
  Progress progress("computing");
  const std::size_t all = static_cast<std::size_t>(execution.regions() * slices);
  std::size_t done = 0;
  const auto sweep = [&](const auto& slice) {
    for (std::int64_t i = 0; i < slices; ++i) {
      progress.update(done++, all);
      slice(rows * i / slices, rows * (i + 1) / slices);
    }
  };
  execution.begin(rows);
  for (int region = 0; region + 1 < execution.regions(); ++region) {
    sweep([&](std::int64_t begin, std::int64_t end) { execution.forward(begin, end); });
    execution.seam();
  }
  sweep([&](std::int64_t begin, std::int64_t end) { execution.backward(begin, end); });
  execution.finish();
}

Json results_json(const Program& program, const Execution& execution, const Options& options,
                  const TensorMap& tensors) {
  Json scalars = Json::object(), names = Json::array();
  for (const TensorInfo& output : program.outputs()) {
    if (output.space == "scalar") scalars[output.name] = json_number(execution.value(output.name));
  }
  for (const auto& [name, tensor] : tensors) names.push_back(name);
  const ExecutionStatus status = execution.status();
  return {{"loss", json_number(execution.value("loss"))},
          {"scalars", scalars},
          {"device", options.device},
          {"key", program.key()},
          {"bad_rows", status.bad_rows},
          {"first_bad_row", status.bad_rows > 0 ? Json(status.first_bad_row) : Json(nullptr)},
          {"out", options.out.empty() ? Json(nullptr) : Json(options.out)},
          {"tensors", names}};
}

std::string results_text(const Program& program, const Execution& execution) {
  Table table({Table::Align::left, Table::Align::right});
  for (const TensorInfo& output : program.outputs()) {
    if (output.space == "scalar") table.add({output.name, number(execution.value(output.name))});
  }
  return table.text();
}

void check_explained_row(std::int64_t row, std::int64_t rows) {
  if (row >= 0 && row < rows) return;
  throw Error(ErrorCode::invalid_argument,
              fmt::format("--explain-row {}: the batch has {} rows, counted from 0", row, rows));
}

int run(const Options& options) {
  const Spec spec = load_spec(options.spec);
  const Program program = Program::compile(spec, {.device = options.device});
  const SafetensorsFile batch = SafetensorsFile::read(options.in);
  Execution execution(program);
  for (const auto& [name, value] : parse_assignments(options.set)) execution.set(name, value);

  const TensorView* logits = batch.find("logits");
  if (logits == nullptr || logits->shape.size() < 2) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("{}: tensor 'logits' {}; [rows, {}] or [batch, sequence, {}] is needed", options.in,
                    logits == nullptr ? "is missing" : "is " + logits->describe(), spec.vocab, spec.vocab));
  }
  const std::int64_t rows = std::accumulate(logits->shape.begin(), logits->shape.end() - 1, std::int64_t{1},
                                            [](std::int64_t a, std::int64_t b) { return a * b; });
  if (options.explain_row) check_explained_row(*options.explain_row, rows);
  bind_inputs(program, batch, execution);
  Outputs outputs;
  bind_outputs(program, batch, *logits, execution, outputs);

  std::string bad_rows;
  try {
    compute(execution, rows, rows * spec.vocab);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::invalid_data) throw;
    bad_rows = error.what();  // all outputs are there, the rows it names are NaN
  }
  add_scalars(program, execution, outputs);
  if (!options.out.empty()) {
    write_safetensors(options.out, outputs.tensors(), {{"lossc", LOSSC_VERSION}, {"key", program.key()}});
  }
  const std::string explanation = options.explain_row ? execution.explain_row(*options.explain_row) : "";
  if (options.json) {
    Json json = results_json(program, execution, options, outputs.tensors());
    if (options.explain_row) json["explanation"] = explanation;
    print_json(json);
  } else {
    print(results_text(program, execution));
    if (options.explain_row) print("\n" + explanation);
  }
  if (bad_rows.empty()) return 0;
  fmt::print(stderr, "lossc: {}\n", bad_rows);
  return 1;
}

}  // namespace

void add_run(CLI::App& app, int& status) {
  CLI::App* verb = app.add_subcommand("run", "Compute the losses and the gradient of a batch");
  const auto options = std::make_shared<Options>();
  verb->add_option("SPEC", options->spec, "A spec's file, or - for standard input")->required();
  verb->add_option("--in", options->in, "The batch: a safetensors file with tensors by name")
      ->required()
      ->option_text("BATCH.safetensors");
  verb->add_option("--out", options->out, "Write all outputs there: scalars, output.*, grad_logits")
      ->option_text("RESULT.safetensors");
  verb->add_option("--device", options->device,
                   fmt::format("Where to run; this build has: {}", fmt::join(available_devices(), ", ")))
      ->option_text("DEVICE")
      ->capture_default_str();
  verb->add_option("--set", options->set, "Set a run-time parameter; may be given again")
      ->option_text("NAME=VALUE")
      ->allow_extra_args(false);
  verb->add_option("--explain-row", options->explain_row, "Say what the results of this row are made of")
      ->option_text("N");
  verb->add_flag("--json", options->json, "Print the scalars as JSON");
  verb->footer(
      "Prints loss, loss.<child> and metric.<name>. With gradient mode accumulate, grad_logits of the batch "
      "is what\n"
      "the gradient is added to. Exit status 1 when a label or segment id is out of range: everything is "
      "written,\n"
      "and those rows are NaN.");
  verb->callback([options, &status] { status = run(*options); });
}

}  // namespace lossc::cli
