// One vector of a row's elements inside the loop of a sweep.
#pragma once

#include <array>
#include <map>

#include "compiler/cpu/codegen.h"

namespace lossc::cpu {

/// Two vectors' worth of neighbouring elements, dealt to both in fours, as the unpack instructions split
/// 16-bit numbers: of every eight the first four go to vector 0, the others to vector 1.
struct PairedUnit {
  llvm::Value* j;                                              ///< offset of its first element
  std::map<llvm::Value*, std::array<llvm::Value*, 2>> inputs;  ///< a row's address -> what was loaded of it
  llvm::Value* result = nullptr;                               ///< what waits for its partner to be stored

  /// Offset in the unit of a lane's element.
  static int element(unsigned vector, unsigned lane) {
    return static_cast<int>(lane / 4 * 8 + vector * 4 + lane % 4);
  }
};

struct Place {
  llvm::Value* j;              ///< offset in the row; in a pair: of its place in scratch rows
  unsigned u;                  ///< the vector's number in the loop's body
  llvm::Value* mask;           ///< the lanes inside the row; null: all
  PairedUnit* pair = nullptr;  ///< null: neighbouring elements in neighbouring lanes
};

}  // namespace lossc::cpu
