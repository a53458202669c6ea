// Prints values of one element of a row as statements, inside a sweep.
//
// Row values are members of the sweep's operand struct: what an expression needs of them is collected here.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "compiler/cuda/context.h"

namespace lossc::cuda {

class ElementPrinter {
 public:
  ElementPrinter(const SourceContext& context, std::string indent)
      : c_(context), indent_(std::move(indent)) {}

  std::string value(ir::NodeId id);
  /// exp(x - anchor(x))
  std::string exponential(ir::NodeId x);
  /// exponential(x) * a, 0 where the exponential is.
  std::string weighted(ir::NodeId x, ir::NodeId a);

  const std::string& statements() const { return statements_; }
  const std::vector<ir::NodeId>& rows() const { return rows_; }          ///< row operands, by name()
  const std::vector<ir::NodeId>& divisors() const { return divisors_; }  ///< row operands needed as 1 / value
  const std::set<ir::NodeId>& anchors() const { return anchors_; }       ///< softmax arguments
  const std::set<ir::NodeId>& inverses() const { return inverses_; }     ///< softmax arguments, as 1 / sum
  const std::set<ir::NodeId>& tensors() const { return tensors_; }       ///< element inputs

 private:
  std::string declare(const std::string& name, std::string_view type, const std::string& expression);
  std::string row_value(ir::NodeId id);

  const SourceContext& c_;
  std::string indent_, statements_;
  std::vector<ir::NodeId> rows_, divisors_;
  std::set<ir::NodeId> anchors_, inverses_, tensors_;
  std::map<ir::NodeId, std::string> memo_, exponentials_;
  std::map<std::pair<ir::NodeId, ir::NodeId>, std::string> weighted_;
};

}  // namespace lossc::cuda
