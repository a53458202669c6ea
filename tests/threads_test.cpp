// S6 and S7: threads that share a program or a machine, and the same batch again and again.
#include <string>
#include <thread>
#include <vector>

#include "tests/cases.h"
#include "tests/catch.h"
#include "tests/verify.h"

namespace lossc::test {
namespace {

struct Prepared {
  LossCase spec;
  Batch batch;
  Program program;
  std::vector<std::uint64_t> alone = {};
};

Prepared prepare(std::vector<Child> children, std::uint64_t seed) {
  Prepared p{losses(std::move(children), 1531), {}, compile(losses({cross_entropy()}))};
  p.spec.logits_dtype = DType::bf16;
  p.spec.outputs = {"logprobs"};
  p.spec.metrics = {"entropy"};
  BatchOptions options;
  options.rows = 37;
  options.segments = 6;
  std::mt19937_64 random(seed);
  p.batch = decided_batch(p.spec, options, random);
  p.program = compile(p.spec);
  Execution execution(p.program);
  BoundBatch memory(p.spec, p.batch);
  memory.bind(execution);
  execution.run();
  p.alone = result_bits(p.program, execution, memory);
  return p;
}

// Runs `p` many times on a thread of its own; counts the runs whose results differ by a bit.
void repeat(const Prepared& p, int times, int& different) {
  Execution execution(p.program);
  BoundBatch memory(p.spec, p.batch);
  memory.bind(execution);
  for (int i = 0; i < times; ++i) {
    memory.reset();
    execution.run();
    if (result_bits(p.program, execution, memory) != p.alone) ++different;
  }
}

TEST_CASE("S6: two threads run one program, two more run another") {
  const Prepared first = prepare({gspo(), z_loss(), cross_entropy()}, 1);
  const Prepared second = prepare({cross_entropy(), distillation("reverse_kl"), dpo()}, 2);
  int different[4] = {};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&, i] { repeat(i < 2 ? first : second, 40, different[i]); });
  }
  for (std::thread& thread : threads) thread.join();
  for (int count : different) CHECK(count == 0);
}

TEST_CASE("S6: threads that compile at once") {
  std::vector<std::string> reports(4);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < reports.size(); ++i) {
    threads.emplace_back([&, i] {
      for (std::int64_t vocab : {17, 1023}) {
        const LossCase spec =
            losses({cross_entropy(), z_loss(0.01 * double(i + 1)), gspo()}, vocab + std::int64_t(i % 2));
        reports[i] += verify_random(spec, {}, 10 + i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& report : reports) CHECK(report == "");
}

TEST_CASE("S7: the same batch 100 times, the same bits") {
  for (const Prepared& p : {prepare({gspo(), z_loss(), cross_entropy(), distillation("forward_kl")}, 3),
                            prepare({dpo(), grpo("token")}, 4)}) {
    int different = 0;
    repeat(p, 100, different);
    CHECK(different == 0);
  }
}

}  // namespace
}  // namespace lossc::test
