#include "compiler/cpu/cpu_compiler.h"

#include <fmt/format.h>
#include <llvm-c/Core.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Verifier.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Target/TargetMachine.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <future>
#include <optional>
#include <set>

#include "compiler/build_id.h"
#include "compiler/cpu/generate.h"
#include "compiler/cpu/object_check.h"
#include "lossc/error.h"

namespace lossc::cpu {

namespace {

template <class T>
T expect(llvm::Expected<T> value, const char* what) {
  if (!value) {
    throw Error(ErrorCode::compile_failed, fmt::format("{}: {}", what, llvm::toString(value.takeError())));
  }
  return std::move(*value);
}

void expect(llvm::Error error, const char* what) {
  if (error)
    throw Error(ErrorCode::compile_failed, fmt::format("{}: {}", what, llvm::toString(std::move(error))));
}

/// The process's JIT: made on first use and never destroyed (destroying it among static destructors aborts).
class Jit {
 public:
  static Jit& instance() {
    static Jit* jit = new Jit;
    return *jit;
  }

  const CpuTarget& target() const { return target_; }
  llvm::orc::LLJIT& lljit() { return *jit_; }

  /// A target machine of the caller's own: one serves one thread. For this machine, or for another one.
  std::unique_ptr<llvm::TargetMachine> machine(llvm::CodeGenOptLevel level,
                                               const CpuTarget* other = nullptr) const {
    llvm::orc::JITTargetMachineBuilder builder = *machine_builder_;
    if (other != nullptr) {
      builder.setCPU(other->name);
      builder.getFeatures() = llvm::SubtargetFeatures(other->features);
      builder.getOptions().MCOptions.AsmVerbose = true;  // spills are told in comments
    }
    builder.setCodeGenOptLevel(level);
    return expect(builder.createTargetMachine(), "LLVM target machine");
  }

  llvm::orc::JITDylib& new_library() {
    const std::string name = fmt::format("lossc.{}", count_.fetch_add(1));
    auto library = jit_->createJITDylib(name);
    if (!library) {
      throw Error(ErrorCode::compile_failed, "LLVM JIT library: " + llvm::toString(library.takeError()));
    }
    return *library;
  }

 private:
  Jit() {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    target_ = host_target();
    auto builder = expect(llvm::orc::JITTargetMachineBuilder::detectHost(), "LLVM host detection");
    // An object is linked as one block of memory: constants lie within 32 bits of the code that reads them,
    // and take no register for their address.
    builder.setCodeModel(llvm::CodeModel::Small);
    builder.setRelocationModel(llvm::Reloc::PIC_);
    machine_builder_ = builder;
    jit_ =
        expect(llvm::orc::LLJITBuilder().setJITTargetMachineBuilder(std::move(builder)).create(), "LLVM JIT");
  }

  CpuTarget target_;
  std::optional<llvm::orc::JITTargetMachineBuilder> machine_builder_;
  std::unique_ptr<llvm::orc::LLJIT> jit_;
  std::atomic<int> count_{0};
};

/// Machine code that goes when its last program does.
struct Library {
  llvm::orc::JITDylib* library = nullptr;
  ~Library() {
    if (library != nullptr) {
      if (auto error = Jit::instance().lljit().getExecutionSession().removeJITDylib(*library)) {
        llvm::consumeError(std::move(error));
      }
    }
  }
};

}  // namespace

CpuDescription describe_cpu() {
  Jit& jit = Jit::instance();
  const CpuTarget& t = jit.target();
  unsigned major = 0, minor = 0, patch = 0;
  LLVMGetVersion(&major, &minor, &patch);  // of the library that runs, not of the headers
  static const std::string build = build_id_of(reinterpret_cast<const void*>(&LLVMGetVersion));
  return {fmt::format("LLVM {}.{}.{} {}", major, minor, patch, build),
          jit.lljit().getTargetTriple().str(),
          t.name,
          t.features,
          jit.lljit().getDataLayout().getStringRepresentation(),
          fmt::format("vectors of {}, unrolled by {}, sweeps O2, rows O0", t.width, t.unroll)};
}

std::string cpu_source(const Plan& plan, const Layout& layout, const Spec& spec) {
  llvm::LLVMContext context;
  llvm::Module module("lossc", context);
  Codegen codegen(plan, layout, spec, Jit::instance().target(), context, module);
  generate_module(codegen);
  std::string text;
  llvm::raw_string_ostream stream(text);
  module.print(stream, nullptr);
  return text;
}

namespace {

/// The functions that run once an element, or those that run once a row or less.
enum class Half { sweeps, rows };

/// Generates the plan's functions into `module` and leaves only those of one half there. Both halves generate
/// the whole module, which costs little, so that they agree on every frame.
ModuleSymbols generate_half(Half half, const Plan& plan, const Layout& layout, const Spec& spec,
                            const CpuTarget& target, llvm::Module& module) {
  ModuleSymbols symbols;
  {
    Codegen codegen(plan, layout, spec, target, module.getContext(), module);
    symbols = generate_module(codegen);
  }
#ifndef NDEBUG
  std::string problems;
  llvm::raw_string_ostream problem_stream(problems);
  if (llvm::verifyModule(module, &problem_stream)) {
    throw Error(ErrorCode::compile_failed, "LLVM refuses the generated module: " + problem_stream.str());
  }
#endif
  const std::set<std::string> sweeps = symbols.sweeps();
  std::vector<llvm::Function*> others;
  for (llvm::Function& f : module) {
    if (!f.isDeclaration() && (sweeps.count(f.getName().str()) > 0) != (half == Half::sweeps))
      others.push_back(&f);
  }
  for (llvm::Function* f : others) f->eraseFromParent();
  return symbols;
}

std::string emit_file(llvm::TargetMachine& machine, llvm::Module& module, llvm::CodeGenFileType type) {
  llvm::SmallVector<char, 0> bytes;
  llvm::raw_svector_ostream stream(bytes);
  llvm::legacy::PassManager passes;
  if (machine.addPassesToEmitFile(passes, stream, nullptr, type, true)) {
    throw Error(ErrorCode::compile_failed, "LLVM writes no such file for this machine");
  }
  passes.run(module);
  return std::string(bytes.data(), bytes.size());
}

constexpr const char* kImageKind = "llvm-object";

struct Object {
  ModuleSymbols symbols;
  std::string bytes;
};

// One half of the plan's functions as an object file. Sweeps are worth the code generator's full effort; the
// rest is compiled quickly.
Object compile_half(Half half, const Plan& plan, const Layout& layout, const Spec& spec) {
  Jit& jit = Jit::instance();
  const auto machine =
      jit.machine(half == Half::sweeps ? llvm::CodeGenOptLevel::Default : llvm::CodeGenOptLevel::None);
  llvm::LLVMContext context;
  llvm::Module module("lossc", context);
  module.setDataLayout(jit.lljit().getDataLayout());
  module.setTargetTriple(jit.lljit().getTargetTriple().str());
  Object object;
  object.symbols = generate_half(half, plan, layout, spec, jit.target(), module);
  object.bytes = emit_file(*machine, module, llvm::CodeGenFileType::ObjectFile);
  return object;
}

}  // namespace

std::string cpu_assembly(const Plan& plan, const Layout& layout, const Spec& spec, const std::string& cpu) {
  Jit& jit = Jit::instance();
  const CpuTarget target = named_target(cpu);
  const auto machine = jit.machine(llvm::CodeGenOptLevel::Default, &target);
  llvm::LLVMContext context;
  llvm::Module module("lossc", context);
  module.setDataLayout(jit.lljit().getDataLayout());
  module.setTargetTriple(jit.lljit().getTargetTriple().str());
  generate_half(Half::sweeps, plan, layout, spec, target, module);
  return emit_file(*machine, module, llvm::CodeGenFileType::AssemblyFile);
}

KernelImage compile_cpu(const Plan& plan, const Layout& layout, const Spec& spec) {
  const auto start = std::chrono::steady_clock::now();
  Jit::instance();
  std::future<Object> other =
      std::async(std::launch::async, [&] { return compile_half(Half::rows, plan, layout, spec); });
  Object sweeps = compile_half(Half::sweeps, plan, layout, spec);
  Object rows = other.get();
  const std::chrono::duration<double, std::milli> duration = std::chrono::steady_clock::now() - start;
  KernelImage image;
  image.kind = kImageKind;
  image.info["target"] = Jit::instance().target().name;
  image.info["compile_ms"] = std::round(duration.count() * 1000) / 1000;
  image.blobs["symbols.json"] = sweeps.symbols.to_json().dump();
  image.blobs["sweeps.o"] = std::move(sweeps.bytes);
  image.blobs["rows.o"] = std::move(rows.bytes);
  return image;
}

std::shared_ptr<const CpuKernels> link_cpu(const KernelImage& image) {
  if (image.kind != kImageKind) {
    throw Error(ErrorCode::compile_failed,
                fmt::format("a kernel of kind {} for the CPU; allowed is {}", image.kind, kImageKind));
  }
  const auto blob = [&](const char* name) -> const std::string& {
    const auto it = image.blobs.find(name);
    if (it == image.blobs.end()) {
      throw Error(ErrorCode::compile_failed, fmt::format("a kernel without its part {}", name));
    }
    return it->second;
  };
  const ModuleSymbols symbols =
      ModuleSymbols::from_json(nlohmann::json::parse(blob("symbols.json"), nullptr, false));
  Jit& jit = Jit::instance();
  auto kernels = std::make_shared<CpuKernels>();
  auto library = std::make_shared<Library>();
  llvm::orc::JITDylib& dylib = jit.new_library();
  library->library = &dylib;
  kernels->code = library;
  for (const char* name : {"sweeps.o", "rows.o"}) {
    check_object(blob(name));
    expect(jit.lljit().addObjectFile(dylib, llvm::MemoryBuffer::getMemBufferCopy(blob(name), "lossc")),
           "LLVM object");
  }

  auto lookup = [&]<class F>(F& function, const std::string& name) {
    if (name.empty()) return;
    function = expect(jit.lljit().lookup(dylib, name), "LLVM code generation").toPtr<F>();
  };
  for (const RegionSymbols& s : symbols.regions) {
    RegionFunctions r;
    lookup(r.begin, s.begin);
    if (s.phases.size() > RegionFunctions::kMaxPhases) {
      throw Error(ErrorCode::unsupported, fmt::format("a region of {} sweeps; {} are allowed",
                                                      s.phases.size(), RegionFunctions::kMaxPhases));
    }
    for (const auto& phase : s.phases) {
      PhaseFunctions& p = r.phases[r.phase_count++];
      lookup(p.sample, phase.sample);
      lookup(p.exact, phase.exact);
      lookup(p.sweep, phase.sweep);
      lookup(p.finish, phase.finish);
    }
    lookup(r.emit, s.emit);
    lookup(r.sparse, s.sparse);
    lookup(r.fused, s.fused);
    lookup(r.emit_stream, s.emit_stream);
    lookup(r.fused_stream, s.fused_stream);
    r.frame_bytes = s.frame_bytes;
    r.kept_floats = s.kept_floats;
    kernels->regions.push_back(r);
  }
  auto steps = [&](const std::vector<std::string>& names, std::vector<StepFunction>& functions) {
    for (const std::string& name : names) lookup(functions.emplace_back(nullptr), name);
  };
  steps(symbols.prologue, kernels->prologue);
  for (const auto& seam : symbols.seams) steps(seam, kernels->seams.emplace_back());
  steps(symbols.epilogue, kernels->epilogue);
  return kernels;
}

}  // namespace lossc::cpu
