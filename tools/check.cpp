// lossc check: a spec's gradient against differences, in double precision.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "ir/check_gradient.h"
#include "ir/random_inputs.h"
#include "ir/spec_parameters.h"
#include "lossc/error.h"
#include "runtime/safetensors.h"
#include "tools/arguments.h"
#include "tools/check_inputs.h"
#include "tools/console.h"
#include "tools/verbs.h"

namespace lossc::cli {
namespace {

using Json = nlohmann::ordered_json;

// What the interpreter keeps in memory for a batch from a file: 8 bytes times this times the nodes of the
// graph.
constexpr std::int64_t max_elements_held = std::int64_t{1} << 19;
// A random batch has at most this vocabulary: the derivative's formulas do not depend on its size.
constexpr std::int64_t random_vocab = 32;

struct Options {
  std::string spec, in;
  std::uint64_t seed = 1;
  std::optional<std::int64_t> rows;
  std::optional<std::size_t> elements;
  std::vector<std::string> set;
  bool json = false;
};

struct Prepared {
  Spec spec;
  ir::EvaluationInputs inputs;
  std::vector<std::string> notes;
};

Prepared random_batch(Spec spec, const Options& options) {
  Prepared result;
  if (spec.vocab > random_vocab) {
    result.notes.push_back(
        fmt::format("the check uses a vocabulary of {} instead of {}", random_vocab, spec.vocab));
    spec.vocab = random_vocab;
  }
  const std::int64_t rows = options.rows.value_or(12);
  result.inputs = ir::random_inputs(spec, LossRegistry::builtin(), {.rows = rows, .seed = options.seed});
  result.spec = std::move(spec);
  return result;
}

Prepared batch_from_file(Spec spec, const Options& options) {
  const SafetensorsFile batch = SafetensorsFile::read(options.in);
  const std::int64_t limit = std::max<std::int64_t>(1, max_elements_held / spec.vocab);
  const std::int64_t rows = std::min(options.rows.value_or(limit), limit);
  Prepared result;
  result.inputs = inputs_from_file(spec, LossRegistry::builtin(), batch, rows);
  const TensorView& logits = *batch.find("logits");
  const std::int64_t all = logits.size() / logits.shape.back();
  if (result.inputs.rows < all) {
    result.notes.push_back(fmt::format("the check uses the first {} of {} rows", result.inputs.rows, all));
  }
  result.spec = std::move(spec);
  return result;
}

Json to_json(const GradientCheck& check, const Prepared& prepared, std::int64_t spec_vocab,
             double tolerance) {
  Json losses = Json::array();
  for (const GradientComparison& loss : check.losses) {
    losses.push_back({{"name", loss.name},
                      {"passed", loss.passed},
                      {"loss", json_number(loss.value)},
                      {"largest_gradient", json_number(loss.largest)},
                      {"error", json_number(loss.error)},
                      {"allowed_error", json_number(loss.allowed)},
                      {"row", loss.row},
                      {"column", loss.column},
                      {"derived", json_number(loss.derived)},
                      {"numeric", json_number(loss.numeric)},
                      {"compared", loss.compared},
                      {"kinks", loss.kinks},
                      {"note", loss.note}});
  }
  return {{"passed", check.passed()}, {"rows", prepared.inputs.rows}, {"vocab", prepared.inputs.vocab},
          {"spec_vocab", spec_vocab}, {"elements", check.elements},   {"tolerance", tolerance},
          {"notes", prepared.notes},  {"losses", std::move(losses)}};
}

std::string to_text(const GradientCheck& check, const Prepared& prepared) {
  if (check.losses.empty()) return fmt::format("the spec is valid\n{}\n", fmt::join(prepared.notes, "\n"));
  using Align = Table::Align;
  Table table({Align::left, Align::right, Align::right, Align::right, Align::right, Align::right,
               Align::right, Align::left});
  table.add({"", "loss", "largest |d|", "worst error", "at", "compared", "kinks", ""});
  for (const GradientComparison& loss : check.losses) {
    const std::string verdict = loss.passed ? "ok" : "WRONG";
    table.add({loss.name, number(loss.value), fmt::format("{:.3g}", loss.largest),
               fmt::format("{:.1e}", loss.error),
               loss.row < 0 ? "-" : fmt::format("[{}, {}]", loss.row, loss.column),
               fmt::format("{}", loss.compared), fmt::format("{}", loss.kinks),
               loss.note.empty() ? verdict : verdict + ": " + loss.note});
  }
  std::string text = table.text();
  for (const GradientComparison& loss : check.losses) {
    if (loss.passed || loss.row < 0) continue;
    text += fmt::format("{}: at [{}, {}] the derivative is {}, differences say {}\n", loss.name, loss.row,
                        loss.column, number(loss.derived), number(loss.numeric));
  }
  text += fmt::format("\n{} rows x {} tokens, {} elements moved\n", prepared.inputs.rows,
                      prepared.inputs.vocab, check.elements);
  for (const std::string& note : prepared.notes) text += note + "\n";
  return text;
}

int run(const Options& options) {
  const Spec spec = load_spec(options.spec);
  if (options.rows && *options.rows < 1)
    throw Error(ErrorCode::invalid_argument, "--rows: at least 1 is allowed");
  Prepared prepared = options.in.empty() ? random_batch(spec, options) : batch_from_file(spec, options);
  prepared.inputs.parameters = parameter_values(ir::parameters(prepared.spec, LossRegistry::builtin()),
                                                parse_assignments(options.set));
  if (spec.losses.empty()) prepared.notes = {"the spec has no losses: there is no gradient to check"};
  GradientCheckOptions check_options;
  check_options.seed = options.seed;
  // A difference costs four evaluations of the whole batch: fewer of them where it is large.
  const std::int64_t size = std::max<std::int64_t>(1, prepared.inputs.rows * prepared.inputs.vocab);
  check_options.max_elements = options.elements.value_or(
      static_cast<std::size_t>(std::clamp<std::int64_t>(4'000'000 / size, 16, 4096)));
  GradientCheck check;
  if (!spec.losses.empty()) {
    Progress progress("checking");
    check_options.progress = [&](std::size_t done, std::size_t all) { progress.update(done, all); };
    check = check_gradient(prepared.spec, LossRegistry::builtin(), prepared.inputs, check_options);
  }
  if (options.json) {
    print_json(to_json(check, prepared, spec.vocab, check_options.tolerance));
  } else {
    print(to_text(check, prepared));
  }
  return check.passed() ? 0 : 1;
}

}  // namespace

void add_check(CLI::App& app, int& status) {
  CLI::App* verb = app.add_subcommand("check", "Validate a spec and check its gradient numerically");
  const auto options = std::make_shared<Options>();
  verb->add_option("SPEC", options->spec, "A spec's file, or - for standard input")->required();
  verb->add_option("--in", options->in, "Check on this batch instead of a random one")
      ->option_text("BATCH.safetensors");
  verb->add_option("--seed", options->seed, "Of the random batch and of the choice of elements")
      ->option_text("N")
      ->capture_default_str();
  verb->add_option("--rows", options->rows, "Rows of the batch (12, or what a file has)")->option_text("N");
  verb->add_option("--elements", options->elements, "Logits to move at most")->option_text("N");
  verb->add_option("--set", options->set, "Set a run-time parameter; may be given again")
      ->option_text("NAME=VALUE")
      ->allow_extra_args(false);
  verb->add_flag("--json", options->json, "Print JSON");
  verb->footer(
      "Everything is computed in double precision by the interpreter: what is checked is the derivative that "
      "kernels\n"
      "are made from, not a kernel. Kinks are elements that lie at a clip or a maximum, where there is no "
      "derivative.");
  verb->callback([options, &status] { status = run(*options); });
}

}  // namespace lossc::cli
