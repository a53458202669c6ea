// lossc losses: the loss types that a spec may name.
#include <fmt/format.h>

#include "ir/names.h"
#include "ir/registry.h"
#include "ir/spec_parameters.h"
#include "lossc/loss.h"
#include "tools/console.h"
#include "tools/html_text.h"
#include "tools/verbs.h"

namespace lossc::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string type;
  bool json = false, markdown = false;
};

std::string_view domain_name(LossDomain domain) {
  switch (domain) {
    case LossDomain::rows:
      return "rows";
    case LossDomain::segments:
      return "segments";
    case LossDomain::pairs:
      return "pairs";
  }
  return "";
}

std::string fallback_text(const ParameterDefinition& parameter) {
  return parameter.fallback ? number(*parameter.fallback) : "off";
}

Json describe(const LossDefinition& loss) {
  Json inputs = Json::array(), parameters = Json::array(), options = Json::array(), flags = Json::array();
  for (const InputDefinition& input : loss.inputs) {
    inputs.push_back(
        {{"name", input.name}, {"space", input.space}, {"required", input.required}, {"doc", input.doc}});
  }
  for (const ParameterDefinition& parameter : loss.parameters) {
    parameters.push_back({{"name", parameter.name},
                          {"default", parameter.fallback ? Json(*parameter.fallback) : Json(nullptr)},
                          {"allowed", ir::range_text(parameter.range)},
                          {"doc", parameter.doc}});
  }
  for (const OptionDefinition& option : loss.options) {
    options.push_back({{"name", option.name},
                       {"allowed", option.allowed},
                       {"default", option.allowed.front()},
                       {"doc", option.doc}});
  }
  for (const FlagDefinition& flag : loss.flags) {
    flags.push_back({{"name", flag.name}, {"default", flag.fallback}, {"doc", flag.doc}});
  }
  return {{"type", loss.name},
          {"summary", loss.summary},
          {"formula", loss.formula},
          {"domain", domain_name(loss.domain)},
          {"inputs", inputs},
          {"parameters", parameters},
          {"options", options},
          {"flags", flags},
          {"reductions", ir::allowed_reductions(loss)},
          {"metrics", ir::child_metrics(loss)}};
}

// Everything that a spec may set, with its default: `epsilon_low=0.2 epsilon_high=0.2`.
std::string settings(const LossDefinition& loss) {
  std::vector<std::string> items;
  for (const OptionDefinition& option : loss.options) {
    std::string words;
    for (const std::string& word : option.allowed) words += (words.empty() ? "" : "|") + word;
    items.push_back(fmt::format("{}={}", option.name, words));
  }
  for (const ParameterDefinition& parameter : loss.parameters) {
    items.push_back(fmt::format("{}={}", parameter.name, fallback_text(parameter)));
  }
  for (const FlagDefinition& flag : loss.flags)
    items.push_back(fmt::format("{}={}", flag.name, flag.fallback));
  return items.empty() ? "-" : ir::comma_list(items);
}

std::string input_names(const LossDefinition& loss) {
  std::vector<std::string> names;
  for (const InputDefinition& input : loss.inputs) names.push_back(input.name + (input.required ? "" : "?"));
  return names.empty() ? "-" : ir::comma_list(names);
}

std::string code(const std::string& text) {
  return text == "-" ? text : "`" + text + "`";
}

void print_markdown(const std::vector<const LossDefinition*>& losses) {
  using Align = Table::Align;
  Table table({Align::left, Align::left, Align::left, Align::left, Align::left});
  table.add({"type", "loss of one row, segment or pair", "reads", "settings and defaults", "reductions"});
  for (const LossDefinition* loss : losses) {
    table.add({code(loss->name), loss->summary + ": " + code(loss->formula), input_names(*loss),
               code(settings(*loss)), ir::comma_list(ir::allowed_reductions(*loss))});
  }
  print(table.markdown());
}

void print_text(const std::vector<const LossDefinition*>& losses) {
  std::string text;
  const auto line = [&](std::string_view label, std::string_view what) {
    if (what.empty() || what == "-") return;
    for (const std::string& part : wrap(what, 96, 100)) {
      text += fmt::format("  {:<10} {}\n", label, part);
      label = "";
    }
  };
  for (const LossDefinition* loss : losses) {
    if (!text.empty()) text += '\n';
    text += fmt::format("{}: {}\n", loss->name, loss->summary);
    line("formula", loss->formula);
    line("per", domain_name(loss->domain));
    line("inputs", input_names(*loss));
    line("settings", settings(*loss));
    line("reduction", ir::comma_list(ir::allowed_reductions(*loss)));
    line("metrics", ir::comma_list(ir::child_metrics(*loss)));
  }
  text +=
      "\nThe first reduction, and the first word of a setting, is the default. Every loss also takes weight, "
      "scale,\n"
      "softcap, temperature, order, inputs and reduction.\n";
  print(text);
}

void run(const Options& options) {
  const LossRegistry& registry = LossRegistry::builtin();
  std::vector<const LossDefinition*> losses;
  if (!options.type.empty()) {
    losses.push_back(&registry.at(options.type));
  } else {
    for (const std::string& name : registry.names()) losses.push_back(&registry.at(name));
  }
  if (options.json) {
    Json list = Json::array();
    for (const LossDefinition* loss : losses) list.push_back(describe(*loss));
    print_json(list);
  } else if (options.markdown) {
    print_markdown(losses);
  } else {
    print_text(losses);
  }
}

}  // namespace

void add_losses(CLI::App& app, int&) {
  CLI::App* verb =
      app.add_subcommand("losses", "List the loss types: formulas, inputs, parameters, defaults");
  const auto options = std::make_shared<Options>();
  verb->add_option("TYPE", options->type, "Only this loss type");
  const auto json = verb->add_flag("--json", options->json, "Print JSON");
  verb->add_flag("--markdown", options->markdown, "Print a Markdown table")->excludes(json);
  verb->callback([options] { run(*options); });
}

}  // namespace lossc::cli
