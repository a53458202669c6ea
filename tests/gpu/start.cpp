// How long a process takes until a spec's kernels are ready on a GPU:
//
//   gpu_start SPEC DEVICE
//
// One line of JSON. `driver_ms`: what the driver needs to be initialised and to make a context, by itself.
// `ready_ms`: all the rest, from the start of main() until the first launch could be made.
#include <fmt/format.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>

#include "lossc/error.h"
#include "lossc/program.h"
#include "runtime/cuda/cuda_kernels.h"
#include "runtime/cuda/driver.h"

using namespace lossc;
using Clock = std::chrono::steady_clock;

namespace {

double milliseconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

}  // namespace

int main(int count, char** words) {
  const Clock::time_point begin = Clock::now();
  if (count != 3) {
    fmt::print(stderr, "usage: gpu_start SPEC DEVICE\n");
    return 2;
  }
  try {
    std::ifstream file(words[1]);
    const Spec spec = Spec::parse(std::string(std::istreambuf_iterator<char>(file), {}));
    const Clock::time_point parsed = Clock::now();
    cuda::Device::get(cuda::cuda_ordinal(words[2])).context();
    const Clock::time_point driver = Clock::now();
    const Program program = Program::compile(spec, {.device = words[2]});
    const Clock::time_point ready = Clock::now();
    const Statistics found = statistics();
    fmt::print(
        R"({{"driver_ms": {:.1f}, "ready_ms": {:.1f}, "compile_ms": {:.1f}, "compilations": {}, "from_disk": {}}})"
        "\n",
        milliseconds(parsed, driver), milliseconds(begin, parsed) + milliseconds(driver, ready),
        1e3 * found.compile_seconds, found.compilations, found.disk_hits);
  } catch (const Error& error) {
    fmt::print(stderr, "gpu_start: {}\n", error.what());
    return 1;
  }
  return 0;
}
