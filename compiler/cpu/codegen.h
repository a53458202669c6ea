// What the code generators of the CPU backend share: the module being built, the machine, the plan.
#pragma once

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/LLVMContext.h>
#include <llvm/IR/Module.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "compiler/cpu/convert.h"
#include "compiler/cpu/cpu_target.h"
#include "compiler/cpu/kernel_abi.h"
#include "compiler/cpu/vector_math.h"
#include "compiler/layout.h"

namespace lossc::cpu {

struct Codegen {
  Codegen(const Plan& p, const Layout& l, const Spec& s, const CpuTarget& t, llvm::LLVMContext& c,
          llvm::Module& m)
      : plan(p), layout(l), spec(s), target(t), context(c), module(m), b(c), math(b, t.math) {}

  const Plan& plan;
  const Layout& layout;
  const Spec& spec;
  const CpuTarget& target;
  llvm::LLVMContext& context;
  llvm::Module& module;
  llvm::IRBuilder<> b;
  VectorMath math;

  const ir::Graph& graph() const { return plan.loss.graph; }
  const ir::Node& node(ir::NodeId id) const { return plan.loss.graph.node(id); }

  llvm::Type* f32() { return b.getFloatTy(); }
  llvm::Type* ptr() { return b.getPtrTy(); }
  llvm::Type* vector() { return llvm::FixedVectorType::get(f32(), target.width); }
  llvm::Value* i64(std::int64_t v) { return b.getInt64(static_cast<std::uint64_t>(v)); }
  llvm::Value* f32(double v) { return llvm::ConstantFP::get(f32(), v); }
  llvm::Value* splat(llvm::Value* v) { return b.CreateVectorSplat(target.width, v); }

  /// A new external function with the target's attributes; the builder stands at its entry.
  llvm::Function* function(const std::string& name, llvm::Type* result, std::vector<llvm::Type*> parameters);
  /// Byte-addressed access.
  llvm::Value* at(llvm::Value* base, llvm::Value* bytes) {
    return b.CreateInBoundsGEP(b.getInt8Ty(), base, bytes);
  }
  llvm::Value* at(llvm::Value* base, std::int64_t bytes) { return at(base, i64(bytes)); }
  /// A pointer field of KernelArgs, loaded once at the function's entry.
  llvm::Value* field(llvm::Value* args, std::size_t offset);
  /// The array of a materialised value, loaded once at the function's entry.
  llvm::Value* buffer(llvm::Value* args, int index);
  /// The address of the element at `position` of a tensor that is not of the logits' shape.
  llvm::Value* tensor_address(llvm::Value* args, int index, llvm::Value* position);
  /// for (i = begin; i < end; i += step) body(i)
  void loop(llvm::Value* begin, llvm::Value* end, std::int64_t step,
            const std::function<void(llvm::Value*)>& body, const char* name);
  /// A point-wise operation of the graph on scalars or vectors of the same shape.
  llvm::Value* apply(ir::Op op, llvm::Value* x, llvm::Value* y, llvm::Value* z);
  /// 0 where `a` is 0, whatever `v` is.
  llvm::Value* zero_mul(llvm::Value* a, llvm::Value* v);

 private:
  /// Loads from `base` + offset behind what was loaded at the entry so far; the same load is made once.
  llvm::Value* entry_load(llvm::Value* base, std::int64_t offset, llvm::Type* type);

  std::map<std::pair<llvm::Value*, std::int64_t>, llvm::Value*> entry_loads_;
  llvm::Instruction* last_entry_load_ = nullptr;
};

}  // namespace lossc::cpu
