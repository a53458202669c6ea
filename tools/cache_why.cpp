// lossc cache why: what a spec's kernels depend on, and what sets them apart from an entry.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <set>
#include <sstream>

#include "compiler/layout.h"
#include "compiler/plan.h"
#include "lossc/error.h"
#include "runtime/program_key.h"
#include "tools/arguments.h"
#include "tools/cache.h"
#include "tools/console.h"

namespace lossc::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::string spec, key = "nearest", device = "cpu";
  bool json = false;
};

struct Other {
  EntryHead head;
  KeyFields fields;
};

std::string shortened(const std::string& value) {
  constexpr std::size_t width = 80;
  if (value.find('\n') == std::string::npos && value.size() <= width) return value;
  return fmt::format("{} bytes, sha256 {}", value.size(), sha256_hex(value).substr(0, 12));
}

// Equal, different, or not to be told.
std::string verdict(const KeyField& field, const KeyFields& other) {
  const KeyField* theirs = other.find(field.name);
  if (theirs == nullptr) return "not in the entry";
  if (!field.known) return "not compared";
  return theirs->value == field.value ? "same" : "differs";
}

int agreement(const KeyFields& own, const KeyFields& other) {
  int same = 0;
  for (const KeyField& field : own.fields()) same += verdict(field, other) == "same" ? 1 : 0;
  return same;
}

// The entry asked for; or that of the same backend which agrees in most fields, the latest of several.
std::optional<Other> other_entry(const KeyFields& own, const std::string& key) {
  Folders folders;
  if (key != "nearest") {
    const Found found = find_entry(folders, key);
    auto [head, fields] = found.cache->peek(found.entry);
    return Other{std::move(head), std::move(fields)};
  }
  std::optional<Other> best;
  int best_agreement = -1;
  for (const Found& found : all_entries(folders)) {
    try {
      auto [head, fields] = found.cache->peek(found.entry);
      const KeyField* backend = fields.find("backend");
      if (backend == nullptr || backend->value != own.find("backend")->value) continue;
      const int same = agreement(own, fields);
      if (same < best_agreement || (same == best_agreement && head.created <= best->head.created)) continue;
      best_agreement = same;
      best = Other{std::move(head), std::move(fields)};
    } catch (const Error&) {  // `lossc cache verify` tells of damaged entries
    }
  }
  return best;
}

std::vector<std::string> pieces(const std::string& text, char separator) {
  std::vector<std::string> result;
  std::istringstream stream(text);
  for (std::string piece; std::getline(stream, piece, separator);) result.push_back(piece);
  return result;
}

// Where two values part: the first line of a text, or the members of a list.
Json difference(const std::string& own, const std::string& other) {
  if (own.find('\n') == std::string::npos && own.find(',') != std::string::npos) {
    const auto a = pieces(own, ','), b = pieces(other, ',');
    const std::set<std::string> x(a.begin(), a.end()), y(b.begin(), b.end());
    Json here = Json::array(), there = Json::array();
    for (const auto& piece : x) {
      if (y.count(piece) == 0) here.push_back(piece);
    }
    for (const auto& piece : y) {
      if (x.count(piece) == 0) there.push_back(piece);
    }
    if (!here.empty() || !there.empty()) return {{"here", here}, {"entry", there}};
  }
  const auto a = pieces(own, '\n'), b = pieces(other, '\n');
  std::size_t line = 0;
  while (line < a.size() && line < b.size() && a[line] == b[line]) ++line;
  Json json = {{"here", line < a.size() ? a[line] : ""}, {"entry", line < b.size() ? b[line] : ""}};
  if (a.size() > 1 || b.size() > 1) json["line"] = line + 1;
  return json;
}

std::string listed(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  std::string text;
  for (const Json& piece : value) text += (text.empty() ? "" : ",") + piece.get<std::string>();
  return text.empty() ? "(nothing more)" : text;
}

Json explain(const Options& options) {
  const Spec spec = load_spec(options.spec);
  const Plan plan = plan_spec(spec, LossRegistry::builtin());
  const KeyFields own = program_key(plan, make_layout(plan, spec), spec, options.device);
  Json json = {{"key", own.complete() ? Json(own.digest()) : Json(nullptr)},
               {"device", options.device},
               {"fields", Json::array()},
               {"entry", nullptr},
               {"first_difference", nullptr}};
  const std::optional<Other> other = other_entry(own, options.key);
  if (other) {
    json["entry"] = {{"key", other->head.key}, {"title", info_text(other->head, "title")}};
    json["cached"] = own.complete() && own.digest() == other->head.key;
  }
  for (const KeyField& field : own.fields()) {
    Json item = {{"name", field.name}, {"value", field.known ? Json(field.value) : Json(nullptr)}};
    if (other) {
      const KeyField* theirs = other->fields.find(field.name);
      item["entry"] = theirs == nullptr ? Json(nullptr) : Json(theirs->value);
      item["verdict"] = verdict(field, other->fields);
      if (item["verdict"] == "differs" && json["first_difference"].is_null()) {
        json["first_difference"] = difference(field.value, theirs->value);
        json["first_difference"]["field"] = field.name;
      }
    }
    json["fields"].push_back(std::move(item));
  }
  return json;
}

void print_text(const Json& json) {
  std::string text;
  text += fmt::format("key    {}\n", json["key"].is_null() ? "unknown: this build cannot tell every field"
                                                           : json["key"].get<std::string>());
  const bool compared = !json["entry"].is_null();
  if (compared) {
    text += fmt::format("entry  {} ({})\n", json["entry"]["key"].get<std::string>(),
                        json["entry"]["title"].get<std::string>());
  } else {
    text += "entry  none of this backend\n";
  }
  using Align = Table::Align;
  Table table(compared ? std::vector{Align::left, Align::left, Align::left}
                       : std::vector{Align::left, Align::left});
  table.add(compared ? std::vector<std::string>{"FIELD", "ENTRY", "VALUE"}
                     : std::vector<std::string>{"FIELD", "VALUE"});
  for (const Json& field : json["fields"]) {
    std::string value = "unknown in this build";
    if (!field["value"].is_null()) {
      value = shortened(field["value"].get<std::string>());
    } else if (compared && !field["entry"].is_null()) {
      value += "; the entry has " + shortened(field["entry"].get<std::string>());
    }
    if (compared) {
      table.add({field["name"].get<std::string>(), field["verdict"].get<std::string>(), value});
    } else {
      table.add({field["name"].get<std::string>(), value});
    }
  }
  text += table.text();
  if (compared && json["cached"].get<bool>()) {
    text += "the entry is this spec's: it is not compiled again\n";
  } else if (!json["first_difference"].is_null()) {
    const Json& d = json["first_difference"];
    text += fmt::format("first difference: {}{}\n  here   {}\n  entry  {}\n", d["field"].get<std::string>(),
                        d.contains("line") ? fmt::format(", line {}", d["line"].get<int>()) : "",
                        listed(d["here"]), listed(d["entry"]));
  }
  print(text);
}

}  // namespace

void add_cache_why(CLI::App& cache) {
  CLI::App* verb =
      cache.add_subcommand("why", "Print what a spec's key is made of, and how an entry differs");
  const auto options = std::make_shared<Options>();
  verb->add_option("SPEC", options->spec, "A spec's file, or - for standard input")->required();
  verb->add_option("--key", options->key, "The entry to compare with; the nearest when not named")
      ->option_text("KEY|nearest");
  verb->add_option("--device", options->device, "Whose key it is")
      ->option_text("cpu|cuda:N|cuda:sm_90a|interpreter");
  verb->add_flag("--json", options->json, "Print JSON");
  verb->callback([options] {
    const Json json = explain(*options);
    if (options->json) {
      print_json(json);
    } else {
      print_text(json);
    }
  });
}

}  // namespace lossc::cli
