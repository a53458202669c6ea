// Compile a loss spec once, then run batches of any size from several threads: nothing compiles again.
#include <lossc/program.h>

#include <cstdio>
#include <functional>
#include <random>
#include <thread>
#include <vector>

constexpr const char* spec = R"({
  "version": 1,
  "logits": {"dtype": "fp32", "vocab": 1000},
  "tensors": {"advantages": {"space": "segments"}},
  "losses": {
    "policy": {"type": "gspo", "epsilon_low": 0.1, "epsilon_high": 0.2},
    "z":      {"type": "z_loss", "weight": 1e-4}
  }
})";

void run_batches(const lossc::Program& program, unsigned thread) {
  std::mt19937 random(thread);
  std::normal_distribution<float> normal;
  lossc::Execution execution(program);  // One a thread; the program is shared.
  for (int batch = 0; batch < 50; ++batch) {
    std::vector<std::int32_t> labels, cu_seqlens = {0};
    std::vector<float> old_logprobs, advantages, logits, gradient;
    for (auto segments = 1 + random() % 8; advantages.size() < segments;
         advantages.push_back(normal(random))) {
      for (auto length = 1 + random() % 20; length > 0; --length) {
        labels.push_back(static_cast<std::int32_t>(random() % 1000));
        old_logprobs.push_back(-7);
        for (int i = 0; i < 1000; ++i) logits.push_back(normal(random));
      }
      cu_seqlens.push_back(static_cast<std::int32_t>(labels.size()));
    }
    gradient.resize(logits.size());
    const auto rows = static_cast<std::int64_t>(labels.size());
    execution.bind("logits", lossc::tensor(logits, {rows, 1000}));
    execution.bind("labels", lossc::tensor(labels));
    execution.bind("cu_seqlens", lossc::tensor(cu_seqlens));
    execution.bind("old_logprobs", lossc::tensor(old_logprobs));
    execution.bind("advantages", lossc::tensor(advantages));
    execution.bind("grad_logits", lossc::tensor(gradient, {rows, 1000}));
    execution.set("policy.epsilon_low", 0.1 + 0.01 * batch);
    execution.run();
    if (batch % 10 != 0) continue;
    std::printf("thread %u, batch %2d: %3zu rows in %zu sequences, loss %9.6f\n", thread, batch,
                labels.size(), advantages.size(), execution.value("loss"));
  }
}

int main() {
  const lossc::Program program = lossc::Program::compile(lossc::Spec::parse(spec));
  const auto compilations = [] { return static_cast<int>(lossc::statistics().compilations); };
  const int before = compilations();  // 1, or 0 where the kernel cache has it from an earlier run
  std::vector<std::jthread> threads;
  for (unsigned i = 0; i < 4; ++i) threads.emplace_back(run_batches, std::cref(program), i);
  threads.clear();  // Waits for all of them.
  std::printf("200 batches, %s compiled\n", compilations() == before ? "nothing" : "something");
}
