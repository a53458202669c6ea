// A step of a seam, prologue or epilogue as one function over positions of its domain.
//
// Promise: sums run in double, in ascending order of positions; what a step computes for a position depends
// on nothing else, so the runtime may cut its domain anywhere.
#pragma once

#include <string>

#include "compiler/cpu/codegen.h"

namespace lossc::cpu {

void generate_step(Codegen& codegen, const Step& step, const std::string& name);

}  // namespace lossc::cpu
