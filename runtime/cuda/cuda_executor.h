// Runs a plan's kernels on a GPU, on one stream.
//
// Promise: run() waits for nothing when all tensors lie on the device; the same batch gives the same bits;
// the work of a batch can be captured into a graph and replayed with other contents.
#pragma once

#include <memory>

#include "runtime/executor.h"

namespace lossc::cuda {

std::unique_ptr<Executor> make_cuda_executor(std::shared_ptr<const Program::Impl> program);

}  // namespace lossc::cuda
