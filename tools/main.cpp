// The lossc command: one verb a file beside this one.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <new>
#include <string>
#include <vector>

#include "ir/names.h"
#include "lossc/error.h"
#include "tools/console.h"
#include "tools/verbs.h"

namespace {

constexpr int failed = 1, wrong_usage = 2;

int complain(const std::string& message, int status) {
  fmt::print(stderr, "lossc: {}\n", message);
  return status;
}

// The part of the command line that a usage error belongs to, for the hint at its help.
std::string called(const CLI::App& app) {
  std::string name = "lossc";
  for (const CLI::App* verb = &app; !verb->get_subcommands().empty();) {
    verb = verb->get_subcommands().front();
    name += " " + verb->get_name();
  }
  return name;
}

// What stands first is a verb or an option.
void check_verb(const CLI::App& app, int argc, char** argv) {
  std::vector<std::string> verbs;
  for (const CLI::App* verb : app.get_subcommands([](const CLI::App*) { return true; })) {
    verbs.push_back(verb->get_name());
  }
  const std::string first = argc > 1 ? argv[1] : "";
  if (first.starts_with('-') || std::find(verbs.begin(), verbs.end(), first) != verbs.end()) return;
  const std::string found =
      first.empty() ? "a verb is missing" : "there is no verb " + lossc::ir::in_quotes(first);
  throw lossc::Error(lossc::ErrorCode::invalid_argument,
                     fmt::format("{}{}; verbs: {}\nTry: lossc --help", found,
                                 lossc::ir::did_you_mean(first, verbs), lossc::ir::comma_list(verbs)));
}

int run(int argc, char** argv) {
  CLI::App app("Compiles language-model head losses from a JSON spec: plans, runs and checks them.", "lossc");
  app.set_version_flag("--version", "lossc " LOSSC_VERSION);
  app.require_subcommand(1);
  app.footer(
      "Exit status: 0, 1 when the work failed, 2 for wrong usage or a wrong spec.\n"
      "`lossc VERB --help` tells more. Ready specs stand in examples/specs.");
  int status = 0;
  lossc::cli::add_plan(app, status);
  lossc::cli::add_compile(app, status);
  lossc::cli::add_run(app, status);
  lossc::cli::add_check(app, status);
  lossc::cli::add_bench(app, status);
  lossc::cli::add_losses(app, status);
  lossc::cli::add_schema(app, status);
  lossc::cli::add_cache(app, status);
  lossc::cli::add_doctor(app, status);
  check_verb(app, argc, argv);
  try {
    app.parse(argc, argv);
    return status;
  } catch (const CLI::CallForHelp&) {
    lossc::cli::print(app.help());
  } catch (const CLI::CallForVersion& version) {
    lossc::cli::print(version.what());
  } catch (const CLI::ParseError& error) {
    return complain(fmt::format("{}\nTry: {} --help", error.what(), called(app)), wrong_usage);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  using lossc::ErrorCode;
  try {
    return run(argc, argv);
  } catch (const lossc::Error& error) {
    const bool usage = error.code() == ErrorCode::invalid_spec || error.code() == ErrorCode::invalid_argument;
    return complain(error.what(), usage ? wrong_usage : failed);
  } catch (const std::bad_alloc&) {
    return complain("not enough memory", failed);
  } catch (const std::exception& error) {
    return complain(fmt::format("a defect in lossc: {}", error.what()), failed);
  }
}
