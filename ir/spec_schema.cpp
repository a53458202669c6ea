// The JSON Schema of loss specs: what the reader checks, as far as a schema can say it. Names that must exist
// elsewhere in the spec (a metric's child, a tensor, a parameter) are the reader's alone.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "ir/names.h"
#include "ir/registry.h"
#include "ir/spec_child.h"
#include "ir/spec_parameters.h"
#include "ir/spec_words.h"
#include "lossc/loss.h"
#include "lossc/spec.h"

namespace lossc {
namespace ir {
namespace {

using Schema = nlohmann::ordered_json;

constexpr std::string_view name_regex = "[A-Za-z_][A-Za-z0-9_]*";

Schema def_ref(std::string_view name) {
  return {{"$ref", fmt::format("#/$defs/{}", name)}};
}

Schema or_null(Schema schema) {
  Schema out;
  if (schema.contains("description")) out["description"] = schema["description"];
  if (schema.contains("default")) out["default"] = schema["default"];
  schema.erase("description");
  schema.erase("default");
  out["anyOf"] = Schema::array({std::move(schema), {{"type", "null"}}});
  return out;
}

// One of the words, or null: the first is the default.
Schema words_or_null(const std::vector<std::string>& words) {
  Schema out = {{"default", words.front()}, {"enum", words}};
  out["enum"].push_back(nullptr);
  return out;
}

Schema exactly(std::string_view regex) {
  return {{"type", "string"}, {"pattern", fmt::format("^(?:{})$", regex)}};
}

Schema any_name() {
  Schema out = exactly(name_regex);
  out["maxLength"] = max_name_length;
  return out;
}

std::string any_of(const std::vector<std::string>& names) {
  return fmt::format("(?:{})", fmt::join(names, "|"));
}

std::string_view range_name(Range range) {
  switch (range) {
    case Range::any:
      return "number";
    case Range::non_negative:
      return "non_negative_number";
    case Range::positive:
      return "positive_number";
    case Range::probability:
      return "probability";
  }
  return "";
}

Schema plain_number(Range range) {
  const Bounds allowed = bounds(range);
  Schema out = {{"description", fmt::format("{}, once rounded to fp32", range_text(range))},
                {"type", "number"}};
  out[allowed.low_included ? "minimum" : "exclusiveMinimum"] = allowed.low;
  out["exclusiveMaximum"] = allowed.high;
  return out;
}

// A number of the range, or a reference into params.
Schema number_or_reference(Range range) {
  Schema number = plain_number(range);
  Schema out = {{"description", fmt::format("{}, or \"$NAME\" for the number NAME of params",
                                            number["description"].get<std::string>())}};
  number.erase("description");
  out["anyOf"] = Schema::array({std::move(number), exactly(fmt::format("\\${}", name_regex))});
  return out;
}

void add_transform(Schema& properties) {
  for (const char* key : {"scale", "softcap", "temperature"})
    properties[key] = or_null(def_ref("positive_number"));
  properties["order"] = words_or_null({"scale_first", "cap_first"});
}

Schema inputs_schema(const LossDefinition& definition) {
  Schema properties = Schema::object();
  for (const std::string& input : child_inputs(definition)) {
    properties[input] =
        may_opt_out(definition, input) ? or_null(def_ref("tensor_name")) : def_ref("tensor_name");
  }
  return {{"type", "object"}, {"additionalProperties", false}, {"properties", std::move(properties)}};
}

// A divisor stands exactly where the reduction needs one.
Schema divisor_rule(const std::vector<std::string>& reductions) {
  const bool by_default = needs_divisor(reductions.front());
  Schema dividing = Schema::array();
  for (const std::string& reduction : reductions) {
    if (needs_divisor(reduction)) dividing.push_back(reduction);
  }
  Schema condition = {{"properties", {{"reduction", {{"enum", std::move(dividing)}}}}}};
  if (by_default) {
    condition["properties"]["reduction"]["enum"].push_back(nullptr);
  } else {
    condition["required"] = {"reduction"};
  }
  const Schema present = {{"properties", {{"divisor", {{"not", {{"type", "null"}}}}}}},
                          {"required", {"divisor"}}};
  const Schema absent = {{"properties", {{"divisor", {{"type", "null"}}}}}};
  return {{"if", std::move(condition)}, {"then", present}, {"else", absent}};
}

Schema child_schema(const LossDefinition& definition) {
  const std::vector<std::string>& reductions = allowed_reductions(definition);
  Schema properties;
  properties["type"] = {{"const", definition.name}};
  properties["weight"] = or_null(def_ref("non_negative_number"));
  for (const ParameterDefinition& parameter : definition.parameters) {
    Schema number = or_null(def_ref(range_name(parameter.range)));
    if (!parameter.doc.empty()) number["description"] = parameter.doc;
    if (parameter.fallback) number["default"] = *parameter.fallback;
    properties[parameter.name] = std::move(number);
  }
  for (const OptionDefinition& option : definition.options) {
    properties[option.name] = words_or_null(option.allowed);
    if (!option.doc.empty()) properties[option.name]["description"] = option.doc;
  }
  for (const FlagDefinition& flag : definition.flags) {
    properties[flag.name] = {{"type", {"boolean", "null"}}, {"default", flag.fallback}};
    if (!flag.doc.empty()) properties[flag.name]["description"] = flag.doc;
  }
  add_transform(properties);
  properties["inputs"] = or_null(inputs_schema(definition));
  properties["reduction"] = words_or_null(reductions);
  properties["divisor"] = or_null(def_ref("positive_number"));
  properties["count_empty"] = {{"type", {"boolean", "null"}}, {"default", false}};

  Schema out = {{"title", definition.summary}};
  if (!definition.formula.empty()) out["description"] = definition.formula;
  out["type"] = "object";
  out["required"] = {"type"};
  out["additionalProperties"] = false;
  out["properties"] = std::move(properties);
  out.update(divisor_rule(reductions));
  return out;
}

// Any child: the type decides which keys it has.
Schema any_child(const LossRegistry& registry) {
  Schema cases = Schema::array();
  for (const std::string& type : registry.names()) {
    const Schema is_type = {{"properties", {{"type", {{"const", type}}}}}, {"required", {"type"}}};
    cases.push_back({{"if", is_type}, {"then", def_ref("loss_" + type)}});
  }
  Schema out = {{"type", "object"}, {"required", {"type"}}};
  out["properties"]["type"]["enum"] = registry.names();
  if (!cases.empty()) out["allOf"] = std::move(cases);
  return out;
}

Schema metrics_schema(const LossRegistry& registry) {
  std::set<std::string> means, of_pairs, others;
  for (const std::string& type : registry.names()) {
    for (const std::string& metric : child_metrics(registry.at(type))) {
      const MetricForm form = metric_form(registry.at(type), metric);
      (!form.mean ? others : form.of_pairs ? of_pairs : means).insert(metric);
    }
  }
  means.insert(batch_metrics().begin(), batch_metrics().end());
  const std::vector<std::string> mean_list(means.begin(), means.end()),
      pair_list(of_pairs.begin(), of_pairs.end()), other_list(others.begin(), others.end());
  constexpr std::string_view suffix = "(?:\\.(?:sum|count))?";
  const std::string row_mean = fmt::format("(?:(?:{0}\\.)?{1}|{0}\\.{2}){3}", name_regex,
                                           any_of(batch_metrics()), any_of(mean_list), suffix);
  const std::string mean = pair_list.empty()
                               ? row_mean
                               : fmt::format("{}|{}\\.{}{}", row_mean, name_regex, any_of(pair_list), suffix);
  const std::string any =
      other_list.empty() ? mean : fmt::format("{}|{}\\.{}", mean, name_regex, any_of(other_list));
  Schema object = {{"type", "object"}, {"required", {"name"}}, {"additionalProperties", false}};
  object["properties"]["name"] = exactly(any);
  object["properties"]["weighting"] = words_or_null({"token", "document"});
  object["if"] = {{"properties", {{"weighting", {{"const", "document"}}}}}, {"required", {"weighting"}}};
  object["then"]["properties"]["name"] = exactly(row_mean);
  Schema item;
  item["anyOf"] = Schema::array({exactly(any), std::move(object)});
  return {{"type", "array"}, {"uniqueItems", true}, {"items", std::move(item)}};
}

Schema logits_schema() {
  Schema out = {{"type", "object"}, {"required", {"dtype", "vocab"}}, {"additionalProperties", false}};
  out["properties"]["dtype"] = {{"enum", element_dtypes()}};
  out["properties"]["vocab"] = {{"type", "integer"}, {"minimum", 1}, {"maximum", 2147483647}};
  add_transform(out["properties"]);
  return out;
}

Schema losses_schema() {
  Schema out = {{"type", "object"}};
  out["propertyNames"] = any_name();
  out["propertyNames"]["not"]["enum"] = {"logits", "params"};
  out["additionalProperties"] = or_null(def_ref("loss"));
  return out;
}

Schema gradient_schema() {
  Schema out = {{"type", "object"}, {"additionalProperties", false}};
  out["properties"]["mode"] = words_or_null(gradient_modes());
  out["properties"]["dtype"]["enum"] = element_dtypes();
  out["properties"]["dtype"]["enum"].push_back(nullptr);
  out["properties"]["dtype"]["description"] =
      "the logits' by default; it must be theirs when the mode is in_place";
  out["properties"]["form"] = words_or_null({"dense"});
  return out;
}

Schema tensors_schema() {
  Schema tensor = {{"type", "object"}, {"additionalProperties", false}};
  tensor["properties"]["dtype"]["enum"] = element_dtypes();
  tensor["properties"]["dtype"]["enum"].push_back(nullptr);
  tensor["properties"]["space"]["enum"] = {"rows", "segments", nullptr};
  tensor["properties"]["space"]["description"] =
      "of advantages: one a row, or one a segment; where it is not named, as many numbers as the batch has "
      "rows are one a row";
  return {{"type", "object"}, {"additionalProperties", or_null(std::move(tensor))}};
}

// A gradient over the logits has their dtype.
Schema in_place_rules() {
  Schema rules = Schema::array();
  for (const std::string& dtype : element_dtypes()) {
    Schema gradient = {{"type", "object"}, {"required", {"mode", "dtype"}}};
    gradient["properties"] = {{"mode", {{"const", "in_place"}}}, {"dtype", {{"const", dtype}}}};
    Schema rule;
    rule["if"] = {{"properties", {{"gradient", std::move(gradient)}}}, {"required", {"gradient"}}};
    rule["then"]["properties"]["logits"]["properties"]["dtype"]["const"] = dtype;
    rules.push_back(std::move(rule));
  }
  return rules;
}

// A spec asks for something: a loss that is not null, a metric or an output.
Schema asks_for_something() {
  Schema loss, out = Schema::array();
  loss["required"] = {"losses"};
  loss["properties"]["losses"] = {{"type", "object"},
                                  {"not", {{"additionalProperties", {{"type", "null"}}}}}};
  out.push_back(std::move(loss));
  for (const char* key : {"metrics", "outputs"}) {
    Schema list;
    list["required"] = {key};
    list["properties"][key] = {{"type", "array"}, {"minItems", 1}};
    out.push_back(std::move(list));
  }
  return out;
}

Schema definitions(const LossRegistry& registry) {
  Schema defs;
  for (const Range range : {Range::any, Range::non_negative, Range::positive, Range::probability}) {
    defs[std::string(range_name(range))] = number_or_reference(range);
  }
  defs["tensor_name"] = any_name();
  defs["tensor_name"]["not"]["enum"] = reserved_tensors();
  defs["loss"] = any_child(registry);
  for (const std::string& type : registry.names()) defs["loss_" + type] = child_schema(registry.at(type));
  return defs;
}

}  // namespace
}  // namespace ir

std::string spec_schema(const LossRegistry& registry) {
  using namespace ir;
  Schema properties;
  properties["version"] = {{"const", 1}};
  properties["logits"] = logits_schema();
  Schema params = {{"type", "object"}, {"propertyNames", any_name()}};
  params["additionalProperties"] = or_null(plain_number(Range::any));
  properties["params"] = or_null(std::move(params));
  properties["tensors"] = or_null(tensors_schema());
  properties["losses"] = or_null(losses_schema());
  properties["metrics"] = or_null(metrics_schema(registry));
  std::string outputs = any_of(batch_outputs());
  properties["outputs"] = or_null({{"type", "array"},
                                   {"uniqueItems", true},
                                   {"items", exactly(fmt::format("{}|{}\\.loss", outputs, name_regex))}});
  properties["gradient"] = or_null(gradient_schema());
  Schema parallel = {{"type", "object"}, {"additionalProperties", false}};
  for (const char* dimension : {"vocab", "sequence", "data"}) {
    parallel["properties"][dimension] = or_null(any_name());
  }
  properties["parallel"] = or_null(std::move(parallel));

  Schema out = {{"$schema", "https://json-schema.org/draft/2020-12/schema"}, {"title", "lossc loss spec"}};
  out["type"] = "object";
  out["required"] = {"version", "logits"};
  out["additionalProperties"] = false;
  out["properties"] = std::move(properties);
  out["anyOf"] = asks_for_something();
  out["allOf"] = in_place_rules();
  out["$defs"] = definitions(registry);
  return out.dump(2) + "\n";
}

}  // namespace lossc
