// Plan -> machine code of this CPU, through LLVM's ORC JIT. The one door to the CPU backend: knows no LLVM
// type.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "compiler/cpu/kernel_abi.h"
#include "compiler/kernel_image.h"
#include "compiler/layout.h"

namespace lossc::cpu {

/// Functions of one plan, in the plan's order. Owns the machine code.
struct CpuKernels {
  std::vector<RegionFunctions> regions;
  std::vector<StepFunction> prologue, epilogue;
  std::vector<std::vector<StepFunction>> seams;
  std::shared_ptr<void> code;
};

/// The machine and the compiler, as far as generated code depends on them.
struct CpuDescription {
  std::string compiler;  ///< "LLVM 19.1.7 <build-id>"
  std::string triple, name;
  std::string features;  ///< every one that LLVM knows, on (+) or off (-)
  std::string data_layout;
  std::string options;  ///< "vectors of 8, unrolled by 1, ..."
};
CpuDescription describe_cpu();

/// The LLVM IR that compile_cpu compiles, as text.
std::string cpu_source(const Plan& plan, const Layout& layout, const Spec& spec);

/// The sweeps' machine code as text, for the processor that LLVM knows by the name `cpu`, which need not be
/// here. Throws Error(invalid_argument) for an unknown name.
std::string cpu_assembly(const Plan& plan, const Layout& layout, const Spec& spec, const std::string& cpu);

/// Machine code as object files, not linked yet. Throws Error(compile_failed) with LLVM's message. Thread
/// safe.
KernelImage compile_cpu(const Plan& plan, const Layout& layout, const Spec& spec);

/// The functions in an image of compile_cpu, of this process or an earlier one. Throws Error(compile_failed)
/// for what cannot be or must not be linked. Thread safe.
std::shared_ptr<const CpuKernels> link_cpu(const KernelImage& image);

}  // namespace lossc::cpu
