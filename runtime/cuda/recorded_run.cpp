#include "runtime/cuda/recorded_run.h"

#include <exception>
#include <utility>

#include "runtime/cuda/driver_state.h"

namespace lossc::cuda {

namespace {

/// A stream for recording alone: nothing ever waits in it.
class RecordingStream {
 public:
  RecordingStream() { check(driver().cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING), "making a stream"); }
  ~RecordingStream() {
    if (CUgraph left = end(); left != nullptr) driver().cuGraphDestroy(left);
    driver().cuStreamDestroy(stream_);
  }
  RecordingStream(const RecordingStream&) = delete;
  RecordingStream& operator=(const RecordingStream&) = delete;

  CUstream get() const { return stream_; }
  // Neither this thread's other calls nor other threads' concern the recording, nor it them.
  void begin() {
    check(driver().cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED), "recording a run");
    begun_ = true;
  }
  /// Null where nothing is being recorded, or the driver gave up.
  CUgraph end() {
    CUgraph graph = nullptr;
    if (std::exchange(begun_, false)) driver().cuStreamEndCapture(stream_, &graph);
    return graph;
  }

 private:
  CUstream stream_ = nullptr;
  bool begun_ = false;
};

}  // namespace

bool RecordedRun::record(const std::function<void(CUstream)>& work) {
  clear();
  try {
    const RelaxedCapture relaxed;
    const ContextScope scope(*device_);
    RecordingStream stream;
    stream.begin();
    work(stream.get());
    const CUgraph graph = stream.end();
    if (graph == nullptr) return false;
    if (driver().cuGraphInstantiateWithFlags(&replay_, graph, 0) != CUDA_SUCCESS) replay_ = nullptr;
    driver().cuGraphDestroy(graph);
  } catch (const std::exception&) {
    clear();
  }
  return replay_ != nullptr;
}

void RecordedRun::launch(CUstream stream) const {
  check(driver().cuGraphLaunch(replay_, stream), "launching a run", *device_);
}

void RecordedRun::clear() noexcept {
  const CUgraphExec replay = std::exchange(replay_, nullptr);
  const Driver* cuda = usable_driver();
  if (replay == nullptr || cuda == nullptr) return;
  // One that is still running goes when it ends.
  try {
    const RelaxedCapture relaxed;
    cuda->cuGraphExecDestroy(replay);
  } catch (...) {
  }
}

bool is_recorded(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return driver().cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS ||
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace lossc::cuda
