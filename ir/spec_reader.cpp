#include "ir/spec_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "ir/names.h"
#include "ir/spec_parameters.h"
#include "lossc/error.h"

namespace lossc::ir {
namespace {

constexpr std::size_t max_depth = 64;
constexpr std::size_t max_values = 100000;

[[noreturn]] void throw_at(const std::string& path, std::string_view what) {
  throw Error(ErrorCode::invalid_spec, fmt::format("{}: {}", path, what));
}

std::string join_path(const std::string& path, std::string_view key) {
  const std::string start = path == "$" ? "" : path;
  if (!is_name(key) || key.size() > 64)
    return fmt::format("{}[{}]", start.empty() ? "$" : start, in_quotes(key));
  return start.empty() ? std::string(key) : fmt::format("{}.{}", start, key);
}

std::string join_path(const std::string& path, std::size_t index) {
  return fmt::format("{}[{}]", path, index);
}

// What a message calls a value.
std::string describe(const Json& json) {
  switch (json.type()) {
    case Json::value_t::null:
      return "null";
    case Json::value_t::object:
      return "an object";
    case Json::value_t::array:
      return "an array";
    case Json::value_t::string:
      return fmt::format("the string {}", in_quotes(json.get_ref<const std::string&>()));
    default:
      return json.dump();
  }
}

// Builds the tree as the parser reports values, keeps the bounds, and knows the path of what it reads.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Json take() { return std::move(root_); }

  bool null() override { return place(nullptr) != nullptr; }
  bool boolean(bool value) override { return place(value) != nullptr; }
  bool number_integer(std::int64_t value) override { return place(value) != nullptr; }
  bool number_unsigned(std::uint64_t value) override { return place(value) != nullptr; }
  bool number_float(double value, const std::string&) override { return place(value) != nullptr; }
  bool string(std::string& value) override { return place(std::move(value)) != nullptr; }
  bool binary(Json::binary_t&) override { return false; }  // Text has none.

  bool start_object(std::size_t) override { return open(Json::object()); }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_array() override { return close(); }

  bool key(std::string& key) override {
    Level& level = levels_.back();
    level.key = key;
    if (level.container->contains(key)) throw_at(path(), "the key stands twice in one object; remove one");
    return true;
  }

  bool parse_error(std::size_t, const std::string&, const Json::exception& error) override {
    std::string_view text = error.what();
    if (const std::size_t end = text.find("] "); text.starts_with("[") && end != text.npos)
      text.remove_prefix(end + 2);
    throw_at(path(), fmt::format("found text that is not JSON: {}", printable(text, 300)));
  }

 private:
  struct Level {
    Json* container;
    std::string key;
  };

  std::string path() const {
    std::string out = "$";
    for (std::size_t i = 0; i < levels_.size(); ++i) {
      const Level& level = levels_[i];
      if (level.container->is_array()) {
        // An open container is already its array's last element.
        const bool inside = i + 1 < levels_.size();
        out = join_path(out, level.container->size() - (inside ? 1 : 0));
      } else if (!level.key.empty()) {
        out = join_path(out, level.key);
      }
    }
    return printable(out, 200);
  }

  Json* place(Json value) {
    if (++values_ > max_values)
      throw_at(path(), fmt::format("found more than {} values in one spec", max_values));
    if (levels_.empty()) return &(root_ = std::move(value));
    Json& container = *levels_.back().container;
    if (container.is_array()) {
      container.push_back(std::move(value));
      return &container.back();
    }
    Json* placed = &(container[levels_.back().key] = std::move(value));
    if (!placed->is_structured())
      levels_.back().key.clear();  // What comes next is the object's, not the key's.
    return placed;
  }

  bool open(Json container) {
    if (levels_.size() >= max_depth) {
      throw_at(path(), fmt::format("found more than {} nested arrays and objects; a spec needs fewer than 8",
                                   max_depth));
    }
    Json* placed = place(std::move(container));
    levels_.push_back({placed, ""});
    return true;
  }

  bool close() {
    levels_.pop_back();
    if (!levels_.empty()) levels_.back().key.clear();
    return true;
  }

  Json root_;
  std::vector<Level> levels_;
  std::size_t values_ = 0;
};

}  // namespace

std::string quoted_list(const std::vector<std::string>& names) {
  std::vector<std::string> out;
  for (const std::string& name : names) out.push_back(in_quotes(name));
  return comma_list(out);
}

Json read_json(std::string_view text) {
  if (text.size() > max_spec_bytes) {
    throw_at("$", fmt::format("found {} bytes; a spec may have {} (16 MiB)", text.size(), max_spec_bytes));
  }
  // The parser takes a NUL byte for the end of its input.
  if (const std::size_t at = text.find('\0'); at != text.npos) {
    throw_at("$", fmt::format("found text that is not JSON: a NUL byte at offset {}", at));
  }
  Builder builder;
  Json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

std::string Cursor::path_of(std::string_view key) const {
  return join_path(path_, key);
}

void Cursor::refuse(std::string_view allowed, std::string_view hint) const {
  fail(fmt::format("found {}; allowed: {}{}", describe(*json_), allowed, hint));
}

void Cursor::fail(std::string_view what) const {
  throw_at(path_, what);
}

void Cursor::expect_object(std::string_view what) const {
  if (!json_->is_object()) refuse(what);
}

void Cursor::expect_object(std::string_view what, const std::vector<std::string>& keys) const {
  expect_object(what);
  for (const auto& [key, value] : json_->items()) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) continue;
    std::vector<std::string> sorted = keys;
    std::sort(sorted.begin(), sorted.end());
    throw_at(path_of(key), fmt::format("found an unknown key {}{} allowed: {}", in_quotes(key),
                                       nearest_name(key, keys).empty() ? ";" : did_you_mean(key, keys),
                                       comma_list(sorted)));
  }
}

std::optional<Cursor> Cursor::get_or_null(std::string_view key) const {
  const auto it = json_->find(key);
  if (it == json_->end()) return std::nullopt;
  return Cursor(*it, path_of(key));
}

std::optional<Cursor> Cursor::get(std::string_view key) const {
  std::optional<Cursor> value = get_or_null(key);
  if (value && value->json().is_null()) return std::nullopt;
  return value;
}

Cursor Cursor::require(std::string_view key, std::string_view allowed) const {
  if (std::optional<Cursor> value = get(key)) return *value;
  throw_at(path_of(key),
           fmt::format("found {}; required: {}", json_->contains(key) ? "null" : "nothing", allowed));
}

std::vector<std::pair<std::string, Cursor>> Cursor::members() const {
  std::vector<std::pair<std::string, Cursor>> out;
  for (const auto& [key, value] : json_->items()) {
    out.emplace_back(key, Cursor(value, path_of(key)));
  }
  return out;
}

std::vector<Cursor> Cursor::items(std::string_view what) const {
  if (!json_->is_array()) refuse(what);
  std::vector<Cursor> out;
  for (std::size_t i = 0; i < json_->size(); ++i) out.emplace_back((*json_)[i], join_path(path_, i));
  return out;
}

std::string Cursor::string(std::string_view allowed) const {
  if (!json_->is_string()) refuse(allowed);
  return json_->get<std::string>();
}

bool Cursor::boolean() const {
  if (!json_->is_boolean()) refuse("true, false");
  return json_->get<bool>();
}

double Cursor::number(Range range) const {
  const std::string allowed(range_text(range));
  if (!json_->is_number()) refuse(allowed);
  const double value = json_->get<double>();
  if (!in_range(value, range)) {
    const bool of_range = range == Range::any || (value >= 0 && (range != Range::positive || value > 0) &&
                                                  (range != Range::probability || value < 1));
    refuse(allowed, of_range ? " (in fp32, in which kernels hold it)" : "");
  }
  return value + 0.0;  // -0 becomes 0
}

std::int64_t Cursor::integer(std::int64_t low, std::int64_t high) const {
  const std::string allowed =
      low == high ? std::to_string(low) : fmt::format("an integer from {} to {}", low, high);
  if (!json_->is_number()) refuse(allowed);
  const double value = json_->get<double>();
  if (!(value >= static_cast<double>(low) && value <= static_cast<double>(high)) ||
      value != std::floor(value)) {
    refuse(allowed);
  }
  return static_cast<std::int64_t>(value);
}

std::string Cursor::word(const std::vector<std::string>& allowed) const {
  const std::string list = quoted_list(allowed);
  std::string found = string(list);
  if (std::find(allowed.begin(), allowed.end(), found) == allowed.end())
    refuse(list, did_you_mean(found, allowed));
  return found;
}

Number References::read(const Cursor& at, Range range, std::string parameter) {
  if (!at.json().is_string()) {
    if (!at.json().is_number()) at.refuse(fmt::format("{}, or \"$NAME\" of params", range_text(range)));
    return {at.number(range), std::move(parameter)};
  }
  const std::string text = at.string("");
  if (!text.starts_with("$")) at.refuse(fmt::format("{}, or \"$NAME\" of params", range_text(range)));
  const std::string name = text.substr(1);
  const auto it = values_.find(name);
  if (it == values_.end()) {
    std::vector<std::string> known;
    for (const auto& [key, value] : values_) known.push_back("$" + key);
    const std::string list = known.empty() ? "no reference, as params names nothing" : quoted_list(known);
    at.refuse(list, did_you_mean(text, known));
  }
  if (!in_range(it->second, range)) {
    at.fail(fmt::format("found {}, and params.{} is {}; allowed: {}", in_quotes(text), name, it->second,
                        range_text(range)));
  }
  auto [use, first] = uses_.try_emplace(name, Use{range, at.path()});
  if (!first) {
    const std::optional<Range> both = intersect(use->second.range, range);
    if (!both) {
      at.fail(fmt::format("found {}, which {} uses too, as {}; allowed here: {}. Use two params",
                          in_quotes(text), use->second.path, range_text(use->second.range),
                          range_text(range)));
    }
    use->second.range = *both;
  }
  return {it->second, "params." + name};
}

void References::expect_all_used() const {
  for (const auto& [name, value] : values_) {
    if (uses_.contains(name)) continue;
    throw_at("params." + name,
             fmt::format("found a parameter that nothing uses; allowed: params that a number of the "
                         "spec refers to as \"${}\". Remove it or refer to it",
                         name));
  }
}

}  // namespace lossc::ir
