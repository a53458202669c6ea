// Emits values of one vector of a row's elements, inside a sweep.
#pragma once

#include <map>
#include <set>

#include "compiler/cpu/sweep_place.h"

namespace lossc::cpu {

/// Where a sweep's operands come from; set up once a function, before its loops.
struct SweepOperands {
  /// exp(x - anchor) is formed as 2^(x * factor + offset).
  struct Exponent {
    llvm::Value *factor, *offset;
  };
  std::map<ir::NodeId, llvm::Value*> rows;   ///< row values, one copy in every lane
  std::map<ir::NodeId, Exponent> exponents;  ///< softmax argument -> in every lane
  std::map<ir::NodeId, llvm::Value*>
      inverses;                                ///< softmax argument -> 1 / sum of exponentials, in every lane
  std::map<ir::NodeId, llvm::Value*> tensors;  ///< element input -> the row's address
  /// (softmax argument x, a or no_node) -> stored exponentials of x, or their products with a, to read
  /// instead
  std::map<std::pair<ir::NodeId, ir::NodeId>, llvm::Value*> kept;
};

class ElementEmitter {
 public:
  ElementEmitter(Codegen& codegen, const SweepOperands& operands, const Place& place)
      : c_(codegen), operands_(operands), place_(place) {}

  llvm::Value* value(ir::NodeId id);
  /// exp(x - anchor(x)), up to a factor near 1 that is the same for the whole row
  llvm::Value* exponential(ir::NodeId x);
  /// exp(x - anchor(x)) * a, 0 where the exponential is.
  llvm::Value* weighted(ir::NodeId x, ir::NodeId a);

 private:
  llvm::Value* input(ir::NodeId id);
  llvm::Value* form_weighted(ir::NodeId x, ir::NodeId a);
  /// Stored by the phase, or null.
  llvm::Value* kept(ir::NodeId x, ir::NodeId a);

  Codegen& c_;
  const SweepOperands& operands_;
  Place place_;
  std::map<ir::NodeId, llvm::Value*> memo_;
  std::map<ir::NodeId, llvm::Value*> exponentials_;
  std::map<std::pair<ir::NodeId, ir::NodeId>, llvm::Value*> weighted_;
};

}  // namespace lossc::cpu
