// Timing on a machine that others use too: threads released together, preempted measurements noticed,
// medians.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace lossc::bench {

struct Timing {
  double seconds = 0;
  /// A thread was preempted (an involuntary context switch) meanwhile: the time says little.
  bool disturbed = false;
};

/// Persistent threads, each on a core of its own where there are enough. Between runs they sleep, so that
/// they take nothing from what is measured in between. The calling thread is the first of them, during run()
/// alone: its affinity is restored, because threads that it starts later inherit it.
class Team {
 public:
  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }
  /// job(0) ... job(size() - 1), one call a thread; the time from their common start until the last returns.
  Timing run(const std::function<void(int)>& job);

 private:
  void work(int index);
  void run_job(int index);

  const int size_;
  std::vector<std::thread> threads_;
  const std::function<void(int)>* job_ = nullptr;
  std::atomic<std::uint32_t> called_{0}, released_{0};
  std::atomic<int> ready_{0}, done_{0};
  std::atomic<long> switches_{0};
  std::atomic<bool> stop_{false};
};

/// Times a call that uses threads of its own; any thread of the process that is preempted disturbs it.
Timing time_call(const std::function<void()>& call);

/// Measures again, at most `attempts` times in all, until a measurement was not disturbed.
Timing undisturbed(int attempts, const std::function<Timing()>& measure);

struct Summary {
  double median = 0, min = 0, max = 0;
};
/// All zero for an empty list.
Summary summarize(std::vector<double> values);

}  // namespace lossc::bench
