// Prints values of rows, segments, pairs and scalars at one position of their space as statements: the small
// graph between sweeps.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "compiler/cuda/context.h"

namespace lossc::cuda {

class ValuePrinter {
 public:
  /// `position` is the source text of an index into `space` (unused for scalars); `statistic` supplies the
  /// text of what sweeps computed.
  ValuePrinter(const SourceContext& context, std::string position, ir::Space space,
               std::function<std::string(ir::NodeId)> statistic, std::string indent);

  /// A name or literal that holds the value; statements() then holds all that it needs.
  std::string value(ir::NodeId id);
  /// The same, computed even if the value is materialised elsewhere.
  std::string compute(ir::NodeId id);
  /// The element of the row that begins at `row`, at an index.
  std::string pick(ir::NodeId id, const std::string& row);
  /// Adds a statement.
  void line(const std::string& statement);
  const std::string& statements() const { return statements_; }

  /// Where to find a value that need not be computed here; empty for others. Optional.
  std::function<std::string(ir::NodeId)> known;

 private:
  std::string leaf(ir::NodeId id);
  std::string gather(const ir::Node& node, ir::NodeId id);
  std::string tensor(int index, const std::string& position) const;
  std::string as_index(const std::string& text, ir::NodeId of) const;
  std::string declare(ir::NodeId id, const std::string& expression);

  const SourceContext& c_;
  std::string position_;
  ir::Space space_;
  std::function<std::string(ir::NodeId)> statistic_;
  std::string indent_, statements_;
  std::map<ir::NodeId, std::string> memo_;
};

}  // namespace lossc::cuda
