// lossc cache show, extract, verify: what is in an entry, and whether it is whole.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <ctime>

#include "ir/names.h"
#include "lossc/error.h"
#include "tools/cache.h"
#include "tools/console.h"

namespace lossc::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kLineWidth = 100;

// KEY or a file.
CacheEntry named_entry(const std::string& name, std::string& path) {
  const bool is_file = name.find('/') != std::string::npos || name.ends_with(".lossc");
  path = is_file ? name : find_entry(Folders(), name).entry.path;
  return read_entry(path);
}

std::string local_time(std::int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts = {};
  ::localtime_r(&time, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &parts);
  return text;
}

std::string shortened(const std::string& value) {
  const std::size_t end = value.find('\n');
  if (end == std::string::npos && value.size() <= kLineWidth) return value;
  return fmt::format("{}... ({} bytes, {} lines)", value.substr(0, std::min(end, kLineWidth)), value.size(),
                     std::count(value.begin(), value.end(), '\n') + (value.ends_with('\n') ? 0 : 1));
}

void show(const std::string& name, bool as_json) {
  std::string path;
  const CacheEntry entry = named_entry(name, path);
  if (as_json) {
    Json json = {{"key", entry.head.key},       {"path", path},
                 {"kind", entry.head.kind},     {"created", entry.head.created},
                 {"lossc", entry.head.library}, {"info", entry.head.info},
                 {"fields", Json::object()},    {"sections", Json::object()}};
    for (const KeyField& field : entry.fields.fields()) json["fields"][field.name] = field.value;
    for (const auto& [section, size] : entry.head.sections) json["sections"][section] = size;
    return print_json(json);
  }
  std::string text;
  const auto line = [&](std::string_view label, const std::string& what) {
    text += fmt::format("{:<14} {}\n", label, what);
  };
  line("key", entry.head.key);
  line("file", path);
  line("kind", entry.head.kind);
  line("created", fmt::format("{} by lossc {}", local_time(entry.head.created), entry.head.library));
  for (const auto& [label, value] : entry.head.info.items()) {
    line(label, shortened(value.is_string() ? value.get<std::string>() : value.dump()));
  }
  text += "key fields\n";
  for (const KeyField& field : entry.fields.fields()) line("  " + field.name, shortened(field.value));
  text += "sections\n";
  for (const auto& [section, size] : entry.head.sections) {
    line("  " + section, byte_count(static_cast<double>(size)));
  }
  line("checksum", "good");
  print(text);
}

struct ExtractOptions {
  std::string entry, section, out;
};

void extract(const ExtractOptions& options) {
  std::string path;
  const CacheEntry entry = named_entry(options.entry, path);
  std::string content;
  if (options.section == "key") {
    for (const KeyField& field : entry.fields.fields())
      content += fmt::format("[{}]\n{}\n", field.name, field.value);
  } else if (options.section == "source" && !entry.image.source.empty()) {
    content = entry.image.source;
  } else if (options.section == "log" && !entry.image.log.empty()) {
    content = entry.image.log;
  } else if (const auto blob = entry.image.blobs.find(options.section); blob != entry.image.blobs.end()) {
    content = blob->second;
  } else {
    std::vector<std::string> names;
    for (const auto& section : entry.head.sections) names.push_back(section.first);
    throw Error(ErrorCode::invalid_argument,
                fmt::format("the entry {} has no section {}{}; it has: {}", short_key(entry.head.key),
                            ir::in_quotes(options.section), ir::did_you_mean(options.section, names),
                            ir::comma_list(names)));
  }
  if (!options.out.empty()) {
    write_text(options.out, content);
  } else if (content.find('\0') != std::string::npos && ::isatty(STDOUT_FILENO) != 0) {
    throw Error(ErrorCode::invalid_argument, "this section is no text; --out FILE writes it into a file");
  } else {
    print_bytes(content);
  }
}

struct VerifyOptions {
  bool remove = false, json = false;
};

void verify(const VerifyOptions& options, int& status) {
  Folders folders;
  const std::vector<Found> entries = all_entries(folders);
  Json bad = Json::array();
  std::int64_t removed = 0;
  {
    Progress progress("verifying");
    for (std::size_t i = 0; i < entries.size(); ++i) {
      progress.update(i, entries.size());
      const StoredEntry& stored = entries[i].entry;
      std::string why;
      try {
        if (read_entry(stored.path).head.key != stored.key) why = "it is the entry of another key";
      } catch (const Error& error) {
        const std::string text = error.what();
        why = text.substr(std::min(text.size(), stored.path.size() + 2));
      }
      if (why.empty()) continue;
      const bool gone =
          options.remove && !entries[i].cache->folder().readonly() && entries[i].cache->remove(stored);
      removed += gone ? 1 : 0;
      bad.push_back({{"key", stored.key}, {"path", stored.path}, {"why", why}, {"removed", gone}});
    }
  }
  for (DiskCache* cache : folders.all()) cache->flush_totals();
  if (options.json) {
    print_json({{"entries", entries.size()}, {"damaged", bad}});
  } else {
    std::string text;
    for (const Json& entry : bad) {
      text += fmt::format("{}: {}{}\n", entry["path"].get<std::string>(), entry["why"].get<std::string>(),
                          entry["removed"].get<bool>() ? " (removed)" : "");
    }
    print(text + fmt::format("{} entries, {} damaged{}", entries.size(), bad.size(),
                             options.remove ? fmt::format(", {} removed", removed) : ""));
  }
  if (static_cast<std::size_t>(removed) != bad.size()) status = 1;
}

}  // namespace

void add_cache_show(CLI::App& cache) {
  CLI::App* verb = cache.add_subcommand("show", "Show what is in an entry");
  const auto name = std::make_shared<std::string>();
  const auto json = std::make_shared<bool>(false);
  verb->add_option("KEY", *name, "The beginning of a key, or a file")->required();
  verb->add_flag("--json", *json, "Print JSON");
  verb->callback([name, json] { show(*name, *json); });

  CLI::App* out = cache.add_subcommand("extract", "Print a section of an entry: code, source, log, key");
  const auto options = std::make_shared<ExtractOptions>();
  out->add_option("KEY", options->entry, "The beginning of a key, or a file")->required();
  out->add_option("SECTION", options->section, "The section, as `lossc cache show` names it")->required();
  out->add_option("--out", options->out, "Write it into a file")->option_text("FILE");
  out->callback([options] { extract(*options); });
}

void add_cache_verify(CLI::App& cache, int& status) {
  CLI::App* verb =
      cache.add_subcommand("verify", "Check every entry to its last byte; exit status 1 if one is damaged");
  const auto options = std::make_shared<VerifyOptions>();
  verb->add_flag("--delete", options->remove, "Remove what is damaged; then the exit status is 0");
  verb->add_flag("--json", options->json, "Print JSON");
  verb->callback([options, &status] { verify(*options, status); });
}

}  // namespace lossc::cli
