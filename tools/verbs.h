// The verbs of the command. Each function adds one; when the verb is called, it does its work and sets
// `status`, the exit status: 0, or 1 when the work was done and its result is bad. What goes wrong is thrown.
#pragma once

#include <CLI/CLI.hpp>

namespace lossc::cli {

void add_plan(CLI::App& app, int& status);
void add_compile(CLI::App& app, int& status);
void add_run(CLI::App& app, int& status);
void add_check(CLI::App& app, int& status);
void add_losses(CLI::App& app, int& status);
void add_schema(CLI::App& app, int& status);
void add_bench(CLI::App& app, int& status);
void add_cache(CLI::App& app, int& status);
void add_doctor(CLI::App& app, int& status);

}  // namespace lossc::cli
