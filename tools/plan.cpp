// lossc plan: what a spec compiles to.
#include "compiler/plan.h"

#include <fmt/format.h>

#include "compiler/layout.h"
#include "compiler/plan_print.h"
#ifdef LOSSC_HAS_CUDA
#include "compiler/cuda/cuda_source.h"
#include "compiler/cuda/source_legend.h"
#include "runtime/cuda/cuda_images.h"
#include "runtime/cuda/cuda_kernels.h"
#endif
#include "ir/build_graph.h"
#include "ir/differentiate.h"
#include "ir/dump.h"
#include "lossc/error.h"
#include "lossc/program.h"
#include "runtime/file.h"
#include "runtime/program_key.h"
#include "tools/arguments.h"
#include "tools/console.h"
#include "tools/html.h"
#include "tools/html_text.h"
#include "tools/verbs.h"

namespace lossc::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string spec, html, graph, device = "cpu";
  bool json = false, math = false, source = false;
};

std::string dump(const ir::LossGraph& loss) {
  std::vector<std::pair<std::string, ir::NodeId>> roots;
  for (const ir::NamedNode& root : loss.roots()) roots.emplace_back(root.name, root.node);
  return ir::dump(loss.graph, roots);
}

// The graph after a pass.
std::string graph_after(const std::string& pass, const Spec& spec, const Plan& plan) {
  if (pass == "simplify") return graph_text(plan);
  ir::LossGraph loss = ir::build_graph(spec, LossRegistry::builtin());
  if (pass == "differentiate") ir::differentiate(loss);
  return dump(loss);
}

// The plan with what names its kernels on this machine.
Json plan_with_key(const Plan& plan, const Spec& spec, const std::string& device) {
  Json json = Json::parse(plan_json(plan, spec));
  const KeyFields key = program_key(plan, make_layout(plan, spec), spec, device);
  if (key.complete()) {
    json["target"] = fmt::format("{} {}", key.find("compiler")->value,
                                 key.find(key.find("target") != nullptr ? "target" : "cpu")->value);
    json["key"] = key.digest();
  }
  return json;
}

// For people who read the page: what each child computes.
void add_formulas(Json& json) {
  for (Json& child : json["spec"]["children"]) {
    const LossDefinition* loss = LossRegistry::builtin().find(child.value("type", ""));
    if (loss == nullptr) continue;
    if (!child.contains("formula")) child["formula"] = loss->formula;
    child["summary"] = loss->summary;
  }
}

// Of a GPU no kernel is compiled: its source needs neither NVRTC nor a card.
std::string source(const Plan& plan, const Spec& spec, const std::string& device) {
  const bool gpu = device == "cuda" || device.starts_with("cuda:");
#ifdef LOSSC_HAS_CUDA
  if (gpu) {
    std::string arch = "sm_90a";  // cuda:N, for the source is written without a look at the card
    if (device.starts_with("cuda:sm_")) {
      arch = cuda::card_arch(std::string_view(device).substr(5));
    } else if (cuda::cuda_ordinal(device) < 0) {
      throw Error(ErrorCode::invalid_argument,
                  fmt::format("device \"{}\" is none; allowed are cpu, cuda:N and cuda:sm_90a", device));
    }
    const Layout layout = make_layout(plan, spec);
    return cuda::source_legend(plan, layout, spec) + cuda::cuda_source(plan, layout, spec, arch).text;
  }
#else
  if (gpu) {
    throw Error(
        ErrorCode::unsupported,
        "this build has no CUDA backend (it needs cuda.h and nvrtc.h: ./dev setup); leave --device out");
  }
#endif
  const std::string text = Program::compile(spec, {.device = device}).source();
  if (text.empty()) {
    throw Error(
        ErrorCode::invalid_argument,
        fmt::format("device \"{}\" runs no generated code; allowed are cpu, cuda:N and cuda:sm_90a", device));
  }
  return text;
}

void run(const Options& options) {
  const Spec spec = load_spec(options.spec);
  const Plan plan = plan_spec(spec, LossRegistry::builtin());
  if (!options.html.empty()) {
    Json json = plan_with_key(plan, spec, options.device);
    add_formulas(json);
    json["math"] = plan_math(plan, spec);
    json["spec_json"] = spec.to_json();
    json["gradient_mode"] = member(member(Json::parse(spec.to_json()), "gradient"), "mode");
    write_text(options.html, plan_page(json));
  }
  if (options.json) {
    print_json(plan_with_key(plan, spec, options.device));
  } else if (options.math) {
    print(plan_math(plan, spec));
  } else if (!options.graph.empty()) {
    print(graph_after(options.graph, spec, plan));
  } else if (options.source) {
    print(source(plan, spec, options.device));
  } else if (options.html.empty()) {
    print(plan_text(plan, spec));
  }
}

}  // namespace

void add_plan(CLI::App& app, int&) {
  CLI::App* verb = app.add_subcommand("plan", "Show what a spec compiles to: passes, regions, seams");
  const auto options = std::make_shared<Options>();
  verb->add_option("SPEC", options->spec, "A spec's file, or - for standard input")->required();
  CLI::Option* json = verb->add_flag("--json", options->json, "Print the plan as JSON");
  CLI::Option* math =
      verb->add_flag("--math", options->math, "Print the derivative of each child as formulas");
  CLI::Option* graph = verb->add_option("--graph", options->graph, "Print the graph after a pass");
  graph->option_text("build|differentiate|simplify")
      ->check(CLI::IsMember({"build", "differentiate", "simplify"}));
  CLI::Option* source =
      verb->add_flag("--source", options->source, "Print the generated code: LLVM IR or CUDA C++");
  verb->add_option("--device", options->device, "Whose source and key; a GPU's needs no GPU")
      ->option_text("cpu|cuda:sm_90a")
      ->capture_default_str();
  verb->add_option("--html", options->html, "Write the plan as a page that stands alone")
      ->option_text("FILE");
  math->excludes(json);
  graph->excludes(json)->excludes(math);
  source->excludes(json)->excludes(math)->excludes(graph);
  verb->callback([options] { run(*options); });
}

}  // namespace lossc::cli
