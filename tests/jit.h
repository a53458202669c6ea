// A small JIT for tests of emitted LLVM IR: functions that map arrays to an array, run as machine code of
// this host.
#pragma once

#include <llvm-c/Core.h>
#include <llvm-c/LLJIT.h>
#include <llvm-c/Orc.h>
#include <llvm-c/Target.h>
#include <llvm-c/Transforms/PassBuilder.h>
#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include <cstdint>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lossc::test {

/// FTZ and DAZ, as they are set while kernels run; nothing on machines other than x86.
class FlushDenormals {
 public:
#if defined(__x86_64__)
  explicit FlushDenormals(bool on = true) : saved_(_mm_getcsr()) {
    _mm_setcsr(on ? saved_ | 0x8040U : saved_);
  }
  ~FlushDenormals() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#else
  explicit FlushDenormals(bool = true) {}
#endif
};

inline constexpr bool host_is_x86 =
#if defined(__x86_64__)
    true;
#else
    false;
#endif

inline void check(LLVMErrorRef error) {
  if (!error) return;
  char* text = LLVMGetErrorMessage(error);
  std::string message = text;
  LLVMDisposeErrorMessage(text);
  throw std::runtime_error(message);
}

/// Add functions first, then compile() once, then address().
class Jit {
 public:
  using Builder = llvm::IRBuilder<>;
  /// Emits the body of one iteration; `index` is the first element it handles.
  using Body = std::function<void(Builder&, llvm::Value* in, llvm::Value* out, llvm::Value* index)>;
  using Function = void (*)(const void* in, void* out, std::int64_t n);

  Jit() {
    LLVMInitializeNativeTarget();
    LLVMInitializeNativeAsmPrinter();
    check(LLVMOrcCreateLLJIT(&jit_, nullptr));
    context_ = LLVMOrcCreateNewThreadSafeContext();
    module_ = LLVMModuleCreateWithNameInContext("test", LLVMOrcThreadSafeContextGetContext(context_));
    LLVMSetTarget(module_, LLVMOrcLLJITGetTripleString(jit_));
    LLVMSetDataLayout(module_, LLVMOrcLLJITGetDataLayoutStr(jit_));
  }
  ~Jit() {
    if (module_) LLVMDisposeModule(module_);
    LLVMOrcDisposeThreadSafeContext(context_);
    LLVMConsumeError(LLVMOrcDisposeLLJIT(jit_));
  }
  Jit(const Jit&) = delete;
  Jit& operator=(const Jit&) = delete;

  /// void name(const void* in, void* out, int64 n): for (i = 0; i < n; i += step) body(in, out, i). n > 0.
  void add(const std::string& name, unsigned step, const Body& body) {
    llvm::Module& module = *llvm::unwrap(module_);
    Builder builder(module.getContext());
    llvm::Type* pointer = builder.getPtrTy();
    auto* type =
        llvm::FunctionType::get(builder.getVoidTy(), {pointer, pointer, builder.getInt64Ty()}, false);
    auto* function = llvm::Function::Create(type, llvm::Function::ExternalLinkage, name, module);
    auto* entry = llvm::BasicBlock::Create(module.getContext(), "entry", function);
    auto* loop = llvm::BasicBlock::Create(module.getContext(), "loop", function);
    auto* done = llvm::BasicBlock::Create(module.getContext(), "done", function);
    builder.SetInsertPoint(entry);
    builder.CreateBr(loop);
    builder.SetInsertPoint(loop);
    auto* index = builder.CreatePHI(builder.getInt64Ty(), 2);
    index->addIncoming(builder.getInt64(0), entry);
    body(builder, function->getArg(0), function->getArg(1), index);
    llvm::Value* next = builder.CreateAdd(index, builder.getInt64(step));
    index->addIncoming(next, builder.GetInsertBlock());
    builder.CreateCondBr(builder.CreateICmpULT(next, function->getArg(2)), loop, done);
    builder.SetInsertPoint(done);
    builder.CreateRetVoid();
  }

  void compile() {
    LLVMPassBuilderOptionsRef options = LLVMCreatePassBuilderOptions();
    LLVMPassBuilderOptionsSetVerifyEach(options, 1);
    check(LLVMRunPasses(module_, "default<O2>", nullptr, options));
    LLVMDisposePassBuilderOptions(options);
    LLVMOrcThreadSafeModuleRef owned = LLVMOrcCreateNewThreadSafeModule(module_, context_);
    module_ = nullptr;
    check(LLVMOrcLLJITAddLLVMIRModule(jit_, LLVMOrcLLJITGetMainJITDylib(jit_), owned));
  }

  Function address(const std::string& name) {
    LLVMOrcExecutorAddress address = 0;
    check(LLVMOrcLLJITLookup(jit_, &address, name.c_str()));
    return reinterpret_cast<Function>(static_cast<std::uintptr_t>(address));
  }

 private:
  LLVMOrcLLJITRef jit_ = nullptr;
  LLVMOrcThreadSafeContextRef context_ = nullptr;
  LLVMModuleRef module_ = nullptr;
};

}  // namespace lossc::test
