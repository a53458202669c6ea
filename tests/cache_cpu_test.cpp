// The CPU backend through the kernel cache: what is linked has been checked.
#include <cmath>
#include <random>

#include "compiler/cpu/cpu_compiler.h"
#include "compiler/cpu/object_check.h"
#include "compiler/plan.h"
#include "lossc/program.h"
#include "runtime/cache/disk_cache.h"
#include "runtime/cache/options.h"
#include "runtime/program_key.h"
#include "tests/catch.h"

namespace lossc::test {
namespace {

struct Compiled {
  explicit Compiled(int vocab)
      : spec(Spec::parse(R"({"version": 1, "logits": {"dtype": "fp32", "vocab": )" + std::to_string(vocab) +
                         R"(}, "losses": {"ce": {"type": "cross_entropy"}}})")),
        plan(plan_spec(spec, LossRegistry::builtin())),
        layout(make_layout(plan, spec)),
        key(program_key(plan, layout, spec, "cpu")) {}

  Spec spec;
  Plan plan;
  Layout layout;
  KeyFields key;
};

float loss_of(const Compiled& compiled) {
  const Program program = Program::compile(compiled.spec);
  Execution execution(program);
  std::vector<float> logits = {1, 2, 3, 4, 5, 6, 7}, gradient(7);
  std::vector<std::int32_t> labels = {2};
  execution.bind("logits", tensor(logits, {1, 7}));
  execution.bind("labels", tensor(labels));
  execution.bind("grad_logits", tensor(gradient, {1, 7}));
  execution.run();
  return execution.value("loss");
}

TEST_CASE("the key names the machine, the compiler and the generator, and no path or time") {
  const Compiled a(7), b(7), c(8);
  CHECK(a.key.digest() == b.key.digest());
  CHECK(a.key.digest() != c.key.digest());
  for (const char* name :
       {"schema", "backend", "generator", "compiler", "triple", "cpu", "features", "plan"}) {
    REQUIRE(a.key.find(name) != nullptr);
    CHECK_FALSE(a.key.find(name)->value.empty());
  }
  CHECK(a.key.find("generator")->value.size() == 64);
#if defined(__x86_64__)
  CHECK(a.key.find("features")->value.find("avx2") != std::string::npos);
#endif
}

TEST_CASE("a kept image that cannot be linked is compiled once more, with the right result") {
  const Compiled compiled(7);
  DiskCache disk(CacheOptions::from_environment().folder, false);
  disk.remove(compiled.key.digest());
  KernelImage image = cpu::compile_cpu(compiled.plan, compiled.layout, compiled.spec);
  image.blobs["sweeps.o"] = "no object";
  disk.store(compiled.key, image);
  const std::int64_t before = statistics().compilations;
  // log sum exp of 1 ... 7, minus the label's 3
  CHECK(loss_of(compiled) == Approx(4 + std::log((1 - std::exp(-7.0)) / (1 - std::exp(-1.0)))));
  CHECK(statistics().compilations == before + 1);
  const auto kept = disk.load(compiled.key.digest());
  REQUIRE(kept.entry);
  CHECK_NOTHROW(cpu::link_cpu(kept.entry->image));
}

TEST_CASE("objects are checked before they are linked") {
  const Compiled compiled(7);
  const KernelImage image = cpu::compile_cpu(compiled.plan, compiled.layout, compiled.spec);
  for (const char* name : {"sweeps.o", "rows.o"}) {
    const std::string good = image.blobs.at(name);
    CHECK_NOTHROW(cpu::check_object(good));
    CHECK_THROWS_AS(cpu::check_object(""), Error);
    for (std::size_t size = 1; size < good.size(); size += 37) {
      CHECK_THROWS_AS(cpu::check_object(good.substr(0, size)), Error);
    }
    std::string other = good;
    other[18] = static_cast<char>(other[18] + 1);  // the machine
    CHECK_THROWS_AS(cpu::check_object(other), Error);
    std::mt19937 random(3);
    int refused = 0;
    for (int i = 0; i < 2000; ++i) {  // no crash, whatever is damaged; the entry's checksum finds the rest
      std::string bytes = good;
      const std::size_t bit = random() % (8 * bytes.size());
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
      try {
        cpu::check_object(bytes);
      } catch (const Error&) {
        ++refused;
      }
    }
    CHECK(refused > 0);
  }
  KernelImage wrong = image;
  wrong.kind = "cubin";
  CHECK_THROWS_AS(cpu::link_cpu(wrong), Error);
  wrong = image;
  wrong.blobs["symbols.json"] = "{";
  CHECK_THROWS_AS(cpu::link_cpu(wrong), Error);
  wrong = image;
  wrong.blobs.erase("rows.o");
  CHECK_THROWS_AS(cpu::link_cpu(wrong), Error);
}

}  // namespace
}  // namespace lossc::test
