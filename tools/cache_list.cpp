// lossc cache path, stats, list: what there is.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>

#include "lossc/error.h"
#include "tools/cache.h"
#include "tools/console.h"

namespace lossc::cli {
namespace {

using Json = nlohmann::ordered_json;

void print_path() {
  print(Folders().own().folder().path());
}

Json folder_stats(const DiskCache& cache) {
  std::int64_t bytes = 0;
  std::map<std::string, std::pair<std::int64_t, std::int64_t>> kinds;
  std::int64_t unreadable = 0;
  const std::vector<StoredEntry> entries = cache.list();
  for (const StoredEntry& entry : entries) {
    bytes += entry.bytes;
    try {
      auto& [count, size] = kinds[cache.peek(entry).first.kind];
      ++count;
      size += entry.bytes;
    } catch (const Error&) {
      ++unreadable;
    }
  }
  Json json = {{"path", cache.folder().path()}, {"readonly", cache.folder().readonly()},
               {"entries", entries.size()},     {"bytes", bytes},
               {"unreadable", unreadable},      {"kinds", Json::object()}};
  for (const auto& [kind, numbers] : kinds) {
    json["kinds"][kind] = {{"entries", numbers.first}, {"bytes", numbers.second}};
  }
  return json;
}

void print_stats(bool as_json) {
  Folders folders;
  Json json = {{"from", folders.options().from},
               {"max_bytes", folders.options().max_bytes},
               {"no_compile", folders.options().no_compile},
               {"folders", Json::array()},
               {"totals", Json::object()}};
  for (const DiskCache* cache : folders.all()) json["folders"].push_back(folder_stats(*cache));
  const TotalValues totals = folders.options().folder.empty() ? TotalValues{} : folders.own().totals();
  for (const Total total :
       {Total::disk_hits, Total::compilations, Total::writes, Total::damaged, Total::evictions}) {
    json["totals"][kTotalNames[static_cast<std::size_t>(total)]] = totals[static_cast<std::size_t>(total)];
  }
  if (as_json) return print_json(json);
  std::string text;
  const auto line = [&](std::string_view label, const std::string& what) {
    text += fmt::format("{:<14} {}\n", label, what);
  };
  if (folders.options().folder.empty()) line("folder", "none: " + folders.options().from);
  for (const Json& folder : json["folders"]) {
    const bool readonly = folder["readonly"].get<bool>();
    line(readonly ? "read only" : "folder",
         fmt::format("{}{}", folder["path"].get<std::string>(),
                     readonly ? "" : " (from " + folders.options().from + ")"));
    line("entries",
         fmt::format(
             "{}, {}{}", folder["entries"].get<std::int64_t>(),
             byte_count(static_cast<double>(folder["bytes"].get<std::int64_t>())),
             readonly ? ""
                      : fmt::format(" of {}", byte_count(static_cast<double>(folders.options().max_bytes)))));
    for (const auto& [kind, numbers] : folder["kinds"].items()) {
      line("  " + kind, fmt::format("{}, {}", numbers["entries"].get<std::int64_t>(),
                                    byte_count(static_cast<double>(numbers["bytes"].get<std::int64_t>()))));
    }
    if (folder["unreadable"] != 0)
      line("  unreadable", fmt::format("{}", folder["unreadable"].get<std::int64_t>()));
  }
  for (const auto& [name, value] : json["totals"].items()) {
    std::string label = name;
    std::replace(label.begin(), label.end(), '_', ' ');
    line(label, fmt::format("{}", value.get<std::int64_t>()));
  }
  print(text);
}

struct ListOptions {
  std::string sort = "used";
  bool json = false;
};

void print_list(const ListOptions& options) {
  Folders folders;
  std::vector<Found> entries = all_entries(folders);
  if (options.sort == "size") {
    std::stable_sort(entries.begin(), entries.end(),
                     [](const Found& a, const Found& b) { return a.entry.bytes > b.entry.bytes; });
  } else if (options.sort == "used") {
    std::stable_sort(entries.begin(), entries.end(),
                     [](const Found& a, const Found& b) { return a.entry.last_used > b.entry.last_used; });
  }
  Json list = Json::array();
  using Align = Table::Align;
  Table table({Align::left, Align::left, Align::left, Align::right, Align::right, Align::left});
  table.add({"KEY", "KIND", "TARGET", "SIZE", "USED", "COMPUTES"});
  for (const Found& found : entries) {
    Json json = {{"key", found.entry.key},
                 {"path", found.entry.path},
                 {"readonly", found.cache->folder().readonly()},
                 {"bytes", found.entry.bytes},
                 {"last_used", found.entry.last_used}};
    std::string kind = "?", target, title;
    try {
      const auto [head, fields] = found.cache->peek(found.entry);
      kind = head.kind;
      target = target_of(head, fields);
      title = info_text(head, "title");
      json["kind"] = kind;
      json["target"] = target;
      json["title"] = title;
      json["created"] = head.created;
      json["lossc"] = head.library;
      json["info"] = head.info;
    } catch (const Error& error) {
      json["unreadable"] = error.what();
      title = fmt::format("unreadable: {}", error.what());
    }
    if (options.json) {
      list.push_back(std::move(json));
    } else {
      table.add({short_key(found.entry.key), kind, target, byte_count(static_cast<double>(found.entry.bytes)),
                 age(found.entry.last_used), title});
    }
  }
  if (options.json) {
    print_json(list);
  } else if (entries.empty()) {
    print("no entries");
  } else {
    print(table.text());
  }
}

}  // namespace

void add_cache_list(CLI::App& cache) {
  cache.add_subcommand("path", "Print the cache's folder")->callback(print_path);

  CLI::App* stats = cache.add_subcommand("stats", "Count entries, bytes, hits and compilations");
  const auto json = std::make_shared<bool>(false);
  stats->add_flag("--json", *json, "Print JSON");
  stats->callback([json] { print_stats(*json); });

  CLI::App* list = cache.add_subcommand("list", "List the entries");
  const auto options = std::make_shared<ListOptions>();
  list->add_option("--sort", options->sort, "The order: last used first, largest first, or by key")
      ->option_text("used|size|key")
      ->check(CLI::IsMember({"used", "size", "key"}));
  list->add_flag("--json", options->json, "Print JSON");
  list->callback([options] { print_list(*options); });
}

}  // namespace lossc::cli
