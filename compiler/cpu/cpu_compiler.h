// Plan -> machine code of this CPU, through LLVM's ORC JIT. The one door to the CPU backend: knows no LLVM
// type.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compiler/cpu/kernel_abi.h"
#include "compiler/layout.h"

namespace lossc::cpu {

/// Functions of one plan, in the plan's order. Owns the machine code.
struct CpuKernels {
  std::vector<RegionFunctions> regions;
  std::vector<StepFunction> prologue, epilogue;
  std::vector<std::vector<StepFunction>> seams;
  std::shared_ptr<void> code;
};

/// "znver3 +avx2,+fma,... width 8": the part of the kernel key that names the machine and the compiler.
std::string cpu_target_text();

/// The LLVM IR that compile_cpu compiles, as text.
std::string cpu_source(const Plan& plan, const Layout& layout, const Spec& spec);

/// Throws Error(compile_failed) with LLVM's message. Thread safe.
std::shared_ptr<const CpuKernels> compile_cpu(const Plan& plan, const Layout& layout, const Spec& spec);

}  // namespace lossc::cpu
