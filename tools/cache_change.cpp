// lossc cache prune, clear, export, import: what changes the folder or carries it to another machine.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <ctime>

#include "lossc/error.h"
#include "runtime/cache/archive.h"
#include "tools/cache.h"
#include "tools/console.h"

namespace lossc::cli {
namespace {

using Json = nlohmann::ordered_json;

struct PruneOptions {
  std::string max_size, older_than, target;
  bool dry_run = false, json = false;
};

// Which entries go: all that are too old or of the target, then the least recently used until the rest fits.
std::vector<StoredEntry> to_prune(const DiskCache& cache, const PruneOptions& options) {
  const std::int64_t max_bytes =
      options.max_size.empty() ? -1 : parse_byte_count(options.max_size, "--max-size");
  const std::int64_t before =
      options.older_than.empty() ? 0 : std::time(nullptr) - parse_age(options.older_than, "--older-than");
  std::vector<StoredEntry> kept, gone;
  for (StoredEntry& entry : cache.list()) {
    bool goes = entry.last_used < before;
    if (!options.target.empty()) {
      try {
        const auto [head, fields] = cache.peek(entry);
        // The target chooses; an age besides narrows the choice.
        goes = target_of(head, fields) == options.target && (options.older_than.empty() || goes);
      } catch (const Error&) {
        goes = false;
      }
    }
    (goes ? gone : kept).push_back(std::move(entry));
  }
  if (max_bytes >= 0) {
    std::stable_sort(kept.begin(), kept.end(),
                     [](const auto& a, const auto& b) { return a.last_used < b.last_used; });
    std::int64_t total = 0;
    for (const StoredEntry& entry : kept) total += entry.bytes;
    for (auto it = kept.begin(); it != kept.end() && total > max_bytes; ++it) {
      total -= it->bytes;
      gone.push_back(*it);
    }
  }
  return gone;
}

void prune(const PruneOptions& options) {
  if (options.max_size.empty() && options.older_than.empty() && options.target.empty()) {
    throw Error(
        ErrorCode::invalid_argument,
        "what to prune is missing: --max-size, --older-than or --target; `lossc cache clear` removes all");
  }
  Folders folders;
  DiskCache& cache = folders.own();
  std::int64_t count = 0, bytes = 0;
  Json list = Json::array();
  for (const StoredEntry& entry : to_prune(cache, options)) {
    if (!options.dry_run && !cache.remove(entry)) continue;
    ++count;
    bytes += entry.bytes;
    list.push_back(entry.key);
  }
  cache.flush_totals();
  if (options.json) {
    print_json({{"entries", count}, {"bytes", bytes}, {"dry_run", options.dry_run}, {"keys", list}});
  } else {
    print(fmt::format("{} {} entries, {}", options.dry_run ? "would remove" : "removed", count,
                      byte_count(static_cast<double>(bytes))));
  }
}

void clear() {
  Folders folders;
  DiskCache& cache = folders.own();
  std::int64_t count = 0, bytes = 0;
  for (const StoredEntry& entry : cache.list()) {
    if (!cache.remove(entry.key)) continue;
    ++count;
    bytes += entry.bytes;
  }
  cache.shrink(0);  // what came meanwhile, and what killed writers left
  print(fmt::format("removed {} entries, {}", count, byte_count(static_cast<double>(bytes))));
}

void export_to(const std::string& file, const std::vector<std::string>& keys, int& status) {
  Folders folders;
  std::vector<StoredEntry> entries;
  if (keys.empty()) {
    entries = folders.own().list();
  } else {
    for (const std::string& key : keys) {
      const Found found = find_entry(folders, key);
      if (found.cache->folder().readonly()) {
        throw Error(ErrorCode::invalid_argument,
                    fmt::format("{} stands in the read-only folder; export that with LOSSC_CACHE_DIR={}",
                                short_key(found.entry.key), found.cache->folder().path()));
      }
      entries.push_back(found.entry);
    }
  }
  ExportResult result;
  {
    Progress progress("exporting");
    result = export_entries(folders.own(), entries, file,
                            [&](std::size_t done) { progress.update(done, entries.size()); });
  }
  for (const std::string& text : result.refused) warn("left out " + text);
  print(fmt::format("exported {} entries, {}, to {}", result.entries,
                    byte_count(static_cast<double>(result.bytes)), file));
  if (!result.refused.empty()) status = 1;
}

void import_from(const std::string& file, int& status) {
  Folders folders;
  DiskCache& cache = folders.own();
  const ImportResult result = import_entries(cache, file);
  cache.shrink_if_over(folders.options().max_bytes);
  for (const std::string& text : result.refused) warn("left out " + text);
  print(fmt::format("imported {} entries; {} were there already", result.added, result.present));
  if (!result.refused.empty()) status = 1;
}

}  // namespace

void add_cache_change(CLI::App& cache, int& status) {
  CLI::App* verb = cache.add_subcommand("prune", "Remove entries by size, age or target");
  const auto options = std::make_shared<PruneOptions>();
  verb->add_option("--max-size", options->max_size, "Until the rest fits, least recently used first")
      ->option_text("BYTES");
  verb->add_option("--older-than", options->older_than, "What was not used for so long")->option_text("AGE");
  verb->add_option("--target", options->target, "Kernels for a target, as `lossc cache list` names it")
      ->option_text("NAME");
  verb->add_flag("--dry-run", options->dry_run, "Say what would be removed");
  verb->add_flag("--json", options->json, "Print JSON");
  verb->callback([options] { prune(*options); });

  cache.add_subcommand("clear", "Remove all entries")->callback(clear);

  CLI::App* out = cache.add_subcommand("export", "Write entries into one tar file, for another machine");
  const auto out_file = std::make_shared<std::string>();
  const auto keys = std::make_shared<std::vector<std::string>>();
  out->add_option("FILE", *out_file, "The file to write")->required();
  out->add_option("KEY", *keys, "The beginnings of keys; all entries when none is named");
  out->callback([out_file, keys, &status] { export_to(*out_file, *keys, status); });

  CLI::App* in = cache.add_subcommand("import", "Add the entries of an exported file, each checked first");
  const auto in_file = std::make_shared<std::string>();
  in->add_option("FILE", *in_file, "The file, or - for standard input")->required();
  in->callback([in_file, &status] { import_from(*in_file, status); });
}

}  // namespace lossc::cli
