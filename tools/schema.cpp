// lossc schema: the JSON Schema of specs.
#include "lossc/loss.h"
#include "lossc/spec.h"
#include "tools/console.h"
#include "tools/verbs.h"

namespace lossc::cli {

void add_schema(CLI::App& app, int&) {
  CLI::App* verb = app.add_subcommand("schema", "Print the JSON Schema of loss specs");
  verb->footer("Editors check and complete a spec with it. The text is that of docs/spec.schema.json.");
  verb->callback([] { print(spec_schema(LossRegistry::builtin())); });
}

}  // namespace lossc::cli
