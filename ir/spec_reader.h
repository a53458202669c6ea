// JSON for specs: a strict, bounded reader, and a cursor that knows its path so that every message can name
// it.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lossc/loss.h"
#include "lossc/spec.h"

namespace lossc::ir {

using Json = nlohmann::json;

/// The longest spec that is read.
inline constexpr std::size_t max_spec_bytes = std::size_t{16} << 20;

/// Reads JSON text. Refuses, with Error(invalid_spec) and before any tree is built: more than 16 MiB, more
/// than 64 levels, more than 100000 values, a key that stands twice in one object, invalid UTF-8, a NUL byte,
/// and everything that is not JSON (trailing commas, comments, NaN).
Json read_json(std::string_view text);

/// A value of the spec and where it stands: "losses.policy.epsilon_low", "metrics[2]", "$" for the whole.
class Cursor {
 public:
  Cursor(const Json& json, std::string path) : json_(&json), path_(std::move(path)) {}

  const Json& json() const { return *json_; }
  const std::string& path() const { return path_; }

  /// The path of a key of this object, there or not.
  std::string path_of(std::string_view key) const;

  /// Throws Error(invalid_spec): "PATH: found X; allowed: Y", with `hint` appended.
  [[noreturn]] void refuse(std::string_view allowed, std::string_view hint = "") const;
  /// Throws Error(invalid_spec): "PATH: what".
  [[noreturn]] void fail(std::string_view what) const;

  bool is_null() const { return json_->is_null(); }

  /// Checks that this is an object; with `keys`, that it has no other key.
  void expect_object(std::string_view what) const;
  void expect_object(std::string_view what, const std::vector<std::string>& keys) const;

  /// The value under a key; nullopt where it is absent or null.
  std::optional<Cursor> get(std::string_view key) const;
  /// The value under a key, null included; nullopt where it is absent.
  std::optional<Cursor> get_or_null(std::string_view key) const;
  /// The value under a key that must be there and not null.
  Cursor require(std::string_view key, std::string_view allowed) const;
  /// The members of this object, null ones too, sorted by key.
  std::vector<std::pair<std::string, Cursor>> members() const;
  /// The elements of this array.
  std::vector<Cursor> items(std::string_view what) const;

  std::string string(std::string_view allowed) const;
  bool boolean() const;
  double number(Range range) const;
  /// An integer from `low` to `high`, however it is written (131072, 1.31072e5).
  std::int64_t integer(std::int64_t low, std::int64_t high) const;
  /// One of the words.
  std::string word(const std::vector<std::string>& allowed) const;

 private:
  const Json* json_;
  std::string path_;
};

/// The numbers of `params`, with what refers to them.
class References {
 public:
  explicit References(std::map<std::string, double> values) : values_(std::move(values)) {}

  /// A number, or "$name" that stands for params.name; `parameter` is the run-time name of a number of one's
  /// own.
  Number read(const Cursor& at, Range range, std::string parameter);
  /// Throws for a parameter that nothing refers to.
  void expect_all_used() const;
  const std::map<std::string, double>& values() const { return values_; }

 private:
  struct Use {
    Range range;
    std::string path;
  };
  std::map<std::string, double> values_;
  std::map<std::string, Use> uses_;
};

/// `["a", "b"]` -> `"a", "b"`: names as a message lists them.
std::string quoted_list(const std::vector<std::string>& names);

}  // namespace lossc::ir
