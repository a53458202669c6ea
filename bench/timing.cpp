#include "bench/timing.h"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace lossc::bench {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

long involuntary_switches(int who) {
  rusage usage{};
  getrusage(who, &usage);
  return usage.ru_nivcsw;
}

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

cpu_set_t affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  return set;
}

/// Moves the calling thread to the `index`-th core of `allowed`.
void pin(const cpu_set_t& allowed, int index) {
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || index-- > 0) continue;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

}  // namespace

Team::Team(int threads) : size_(std::max(threads, 1)) {
  for (int index = 1; index < size_; ++index) threads_.emplace_back([this, index] { work(index); });
}

Team::~Team() {
  stop_ = true;
  ++called_;
  called_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void Team::run_job(int index) {
  const long before = involuntary_switches(RUSAGE_THREAD);
  (*job_)(index);
  switches_ += involuntary_switches(RUSAGE_THREAD) - before;
}

void Team::work(int index) {
  const cpu_set_t allowed = affinity();
  if (CPU_COUNT(&allowed) >= size_) pin(allowed, index);
  for (std::uint32_t round = 1;; ++round) {
    called_.wait(round - 1);
    if (stop_) return;
    ++ready_;
    while (released_ != round) pause();
    run_job(index);
    ++done_;
  }
}

Timing Team::run(const std::function<void(int)>& job) {
  const cpu_set_t allowed = affinity();
  if (CPU_COUNT(&allowed) >= size_) pin(allowed, 0);
  job_ = &job;
  ready_ = done_ = 0;
  switches_ = 0;
  ++called_;
  called_.notify_all();
  while (ready_ != size_ - 1) pause();

  const Clock::time_point start = Clock::now();
  ++released_;
  run_job(0);
  while (done_ != size_ - 1) pause();
  const double seconds = seconds_since(start);

  sched_setaffinity(0, sizeof allowed, &allowed);
  return {seconds, switches_ != 0};
}

Timing time_call(const std::function<void()>& call) {
  const long before = involuntary_switches(RUSAGE_SELF);
  const Clock::time_point start = Clock::now();
  call();
  const double seconds = seconds_since(start);
  return {seconds, involuntary_switches(RUSAGE_SELF) != before};
}

Timing undisturbed(int attempts, const std::function<Timing()>& measure) {
  Timing timing = measure();
  for (int attempt = 1; attempt < attempts && timing.disturbed; ++attempt) timing = measure();
  return timing;
}

Summary summarize(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  const double median = values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
  return {median, values.front(), values.back()};
}

}  // namespace lossc::bench
