// Programs on a GPU with tensors in device memory: streams, captured graphs, changing sizes, what is told of
// bad batches. Values and gradients are tested by the suites that run on every device.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "lossc/error.h"
#include "tests/catch.h"
#include "tests/device_tensors.h"

namespace lossc::test {
namespace {

using cuda::check;
using cuda::Device;
using cuda::driver;

constexpr std::int64_t kVocab = 515;

const char* const kSpec = R"({"version": 1, "logits": {"dtype": "fp32", "vocab": 515},
  "losses": {"policy": {"type": "gspo", "epsilon_low": 0.1, "epsilon_high": 0.2},
             "z": {"type": "z_loss", "weight": 0.01}, "ce": {"type": "cross_entropy", "weight": 0.5}},
  "metrics": ["entropy", "policy.clip_fraction"], "outputs": ["logprobs"]})";

/// A batch of random numbers, in host memory; bind() copies it to the device.
struct Numbers {
  Numbers(std::int64_t rows_, std::int64_t segments_, unsigned seed) : rows(rows_), segments(segments_) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    logits.resize(static_cast<std::size_t>(rows * kVocab));
    for (float& v : logits) v = normal(random);
    for (std::int64_t r = 0; r < rows; ++r) {
      labels.push_back(r % 7 == 3 ? -100 : static_cast<std::int64_t>(random() % kVocab));
      old_logprobs.push_back(-6 + 0.1f * normal(random));
      advantages.push_back(normal(random));
      ids.push_back(
          segments == 0 ? -1 : static_cast<std::int64_t>(random() % static_cast<unsigned>(segments + 1)) - 1);
    }
  }
  void upload(DeviceTensors& tensors, Execution* execution) {
    const auto put = [&](const std::string& name, const TensorView& view) {
      if (execution != nullptr) execution->bind(name, view);
    };
    put("logits", tensors.set("logits", logits, DType::fp32, {rows, kVocab}));
    put("labels", tensors.set("labels", labels, DType::i64, {rows}));
    put("old_logprobs", tensors.set("old_logprobs", old_logprobs, DType::fp32, {rows}));
    put("advantages", tensors.set("advantages", advantages, DType::fp32, {rows}));
    put("segment_ids", tensors.set("segment_ids", ids, DType::i64, {rows}));
    put("num_segments", TensorView{&segments, DType::i64, {}, {}});
    if (execution == nullptr) return;
    put("grad_logits",
        tensors.set("gradient", std::vector<float>(logits.size(), -7), DType::fp32, {rows, kVocab}));
    put("output.logprobs",
        tensors.set("logprobs", std::vector<float>(static_cast<std::size_t>(rows), -7), DType::fp32, {rows}));
    put("loss", tensors.set("loss", std::vector<float>(1, -7), DType::fp32, {}));
  }

  std::int64_t rows, segments;
  std::vector<float> logits, old_logprobs, advantages;
  std::vector<std::int64_t> labels, ids;
};

struct Results {
  std::vector<float> gradient, logprobs, loss;
  bool operator==(const Results&) const = default;
};

Results results(const DeviceTensors& tensors, const Numbers& n) {
  return {tensors.get<float>("gradient", n.logits.size()), tensors.get<float>("logprobs", n.labels.size()),
          tensors.get<float>("loss", 1)};
}

struct Stream {
  explicit Stream(const Device& d) : device(d) {
    const cuda::ContextScope scope(device);
    check(driver().cuStreamCreate(&handle, CU_STREAM_NON_BLOCKING), "a stream");
  }
  void wait() const { check(driver().cuStreamSynchronize(handle), "waiting"); }
  const Device& device;
  CUstream handle = nullptr;
};

Program program(const std::string& spec = kSpec) {
  return Program::compile(Spec::parse(spec), {.device = "cuda:0"});
}

/// The same batch through host memory: staged, on the default stream.
Results staged(const Program& p, Numbers& n, std::map<std::string, double> parameters = {}) {
  Results r;
  r.gradient.resize(n.logits.size());
  r.logprobs.resize(n.labels.size());
  r.loss.resize(1);
  Execution execution(p);
  for (const auto& [name, value] : parameters) execution.set(name, value);
  // Which thread adds what depends on where a row lies within a line: device memory begins at 256 bytes.
  std::vector<float> memory(n.logits.size() + 64);
  const std::size_t shift =
      (256 - reinterpret_cast<std::uintptr_t>(memory.data()) % 256) % 256 / sizeof(float);
  std::copy(n.logits.begin(), n.logits.end(), memory.data() + shift);
  execution.bind("logits", tensor(memory.data() + shift, {n.rows, kVocab}));
  execution.bind("labels", tensor(n.labels));
  execution.bind("old_logprobs", tensor(n.old_logprobs));
  execution.bind("advantages", tensor(n.advantages));
  execution.bind("segment_ids", tensor(n.ids));
  execution.bind("num_segments", TensorView{&n.segments, DType::i64, {}, {}});
  execution.bind("grad_logits", tensor(r.gradient, {n.rows, kVocab}));
  execution.bind("output.logprobs", tensor(r.logprobs));
  execution.bind("loss", TensorView{r.loss.data(), DType::fp32, {}, {}});
  execution.run();
  return r;
}

TEST_CASE("a run on a stream writes what a run through host memory writes") {
  const Program p = program();
  const Stream stream(Device::get(0));
  Numbers n(77, 9, 1);
  const Results right = staged(p, n);
  DeviceTensors tensors(Device::get(0));
  Execution execution(p);
  execution.set_stream(stream.handle);
  n.upload(tensors, &execution);
  for (int i = 0; i < 3; ++i) {
    execution.run();
    stream.wait();
    CHECK(results(tensors, n) == right);
    CHECK(execution.value("loss") == right.loss[0]);
    CHECK(execution.status().bad_rows == 0);
  }
}

TEST_CASE("repeated runs read what their tensors hold then, on whatever stream, and what is set") {
  const Program p = program();
  const Stream one(Device::get(0)), other(Device::get(0));
  Numbers first(77, 9, 1);
  DeviceTensors tensors(Device::get(0));
  Execution execution(p);
  execution.set_stream(one.handle);
  first.upload(tensors, &execution);
  for (int i = 0; i < 30; ++i) {
    Numbers n(77, 9, static_cast<unsigned>(i));
    if (i % 7 == 5) n.labels[3] = kVocab;
    const double weight = i < 15 ? 0.5 : 0.25;
    execution.set("ce.weight", weight);
    const Stream& stream = i % 4 == 3 ? other : one;
    execution.set_stream(stream.handle);
    n.upload(tensors, nullptr);
    execution.run();
    CAPTURE(i);
    const ExecutionStatus status = execution.status();
    CHECK(status.bad_rows == (i % 7 == 5 ? 1 : 0));
    if (status.bad_rows > 0) continue;
    const Results right = staged(p, n, {{"ce.weight", weight}});
    CHECK(results(tensors, n) == right);
    CHECK(execution.value("loss") == right.loss[0]);
  }
  // The default stream, and a batch of another size.
  execution.set_stream(nullptr);
  Numbers small(20, 3, 7);
  for (int i = 0; i < 8; ++i) {
    small.upload(tensors, &execution);
    execution.run();
    CHECK(execution.status().bad_rows == 0);
    CHECK(results(tensors, small) == staged(p, small, {{"ce.weight", 0.25}}));
  }
}

TEST_CASE("a captured run replays with other contents, and reads device parameters then") {
  const Program p = program();
  const Device& device = Device::get(0);
  const Stream stream(device);
  DeviceTensors tensors(device), parameters(device);
  Execution execution(p);
  execution.set_stream(stream.handle);
  Numbers first(64, 5, 1);
  first.upload(tensors, &execution);
  const TensorView weight = parameters.set("w", std::vector<float>{0.5f}, DType::fp32, {});
  execution.bind_parameter("ce.weight", static_cast<const float*>(weight.data));
  for (int i = 0; i < 8; ++i) execution.run();  // the first sizes the workspace
  stream.wait();

  CUgraph graph = nullptr;
  CUgraphExec replay = nullptr;
  check(driver().cuStreamBeginCapture(stream.handle, CU_STREAM_CAPTURE_MODE_GLOBAL), "capture");
  execution.run();
  check(driver().cuStreamEndCapture(stream.handle, &graph), "capture");
  {
    const cuda::ContextScope scope(device);
    check(driver().cuGraphInstantiateWithFlags(&replay, graph, 0), "instantiate");
  }
  for (unsigned seed = 2; seed < 6; ++seed) {
    Numbers other(64, 5, seed);
    other.upload(tensors, nullptr);
    const float w = 0.1f * static_cast<float>(seed);
    parameters.set("w", std::vector<float>{w}, DType::fp32, {});
    check(driver().cuGraphLaunch(replay, stream.handle), "replay");
    stream.wait();
    CHECK(results(tensors, other) == staged(p, other, {{"ce.weight", w}}));
  }
  check(driver().cuGraphExecDestroy(replay), "destroy");
  check(driver().cuGraphDestroy(graph), "destroy");
}

TEST_CASE("1,000 batches of other sizes and parameters compile nothing") {
  const Program p = program();
  const Stream stream(Device::get(0));
  DeviceTensors tensors(Device::get(0));
  Execution execution(p);
  execution.set_stream(stream.handle);
  const std::int64_t before = statistics().compilations;
  std::mt19937 random(3);
  for (int i = 0; i < 1000; ++i) {
    Numbers n(static_cast<std::int64_t>(random() % 90), static_cast<std::int64_t>(random() % 40), 100u + i);
    n.upload(tensors, &execution);
    const std::map<std::string, double> parameters = {{"policy.epsilon_low", 0.01 + 0.0001 * i},
                                                      {"z.weight", 0.001 * i},
                                                      {"ce.weight", i % 5 == 0 ? 0.0 : 0.01 * i}};
    for (const auto& [name, value] : parameters) execution.set(name, value);
    execution.run();
    stream.wait();
    if (i % 100 == 0) CHECK(results(tensors, n) == staged(p, n, parameters));
  }
  CHECK(statistics().compilations == before);
}

TEST_CASE("bad rows are told by status(), once") {
  const Program p = program();
  const Stream stream(Device::get(0));
  DeviceTensors tensors(Device::get(0));
  Execution execution(p);
  execution.set_stream(stream.handle);
  Numbers n(20, 3, 1);
  n.labels[4] = kVocab;
  n.labels[9] = kVocab + 5;
  n.upload(tensors, &execution);
  execution.run();
  CHECK(std::isnan(execution.value("loss")));
  const ExecutionStatus status = execution.status();
  CHECK(status.bad_rows == 2);
  CHECK(status.first_bad_row == 4);
  CHECK(execution.status().bad_rows == 0);
  const Results r = results(tensors, n);
  for (std::size_t row = 0; row < 20; ++row) {
    // A bad row and, through the ratio, the counting rows of its segment.
    const bool counts = n.labels[row] >= 0;
    const auto shares = [&](std::size_t bad) { return n.ids[row] >= 0 && n.ids[row] == n.ids[bad]; };
    INFO("row " << row);
    CHECK(std::isnan(r.gradient[row * kVocab]) ==
          (counts && (row == 4 || row == 9 || shares(4) || shares(9))));
  }
}

TEST_CASE("cu_seqlens that do not ascend make a batch NaN, and the next one right") {
  const Program p = program();
  const Stream stream(Device::get(0));
  DeviceTensors tensors(Device::get(0));
  Execution execution(p);
  execution.set_stream(stream.handle);
  Numbers n(20, 3, 1);
  n.upload(tensors, &execution);
  execution.unbind("segment_ids");
  execution.unbind("num_segments");
  for (const std::vector<std::int64_t>& cu : std::vector<std::vector<std::int64_t>>{
           {0, 12, 5, 20}, {1, 5, 12, 20}, {0, 5, 12, 19}, {0, -5, 1 << 30, 20}}) {
    execution.bind("cu_seqlens", tensors.set("cu", cu, DType::i64, {4}));
    execution.run();
    CHECK(std::isnan(execution.value("loss.policy")));
    CHECK_THROWS_WITH(execution.status(), Catch::Contains("cu_seqlens["));
    execution.bind("cu_seqlens", tensors.set("cu", std::vector<std::int64_t>{0, 5, 12, 20}, DType::i64, {4}));
    execution.run();
    CHECK(std::isfinite(execution.value("loss.policy")));
    CHECK(execution.status().bad_rows == 0);
  }
}

TEST_CASE("pairs of segments that do not exist are told") {
  const Program p = program(R"({"version": 1, "logits": {"dtype": "fp32", "vocab": 515},
    "losses": {"d": {"type": "dpo"}}, "gradient": {"mode": "none"}})");
  DeviceTensors tensors(Device::get(0));
  Execution execution(p);
  Numbers n(20, 3, 1);
  n.upload(tensors, nullptr);
  const auto view = [&](const std::string& name, DType dtype) {
    return tensors.set(name, n.labels, dtype, {20});
  };
  execution.bind("logits", tensors.set("logits", n.logits, DType::fp32, {20, kVocab}));
  execution.bind("labels", view("labels", DType::i64));
  execution.bind("ref_logprobs", tensors.set("ref", n.old_logprobs, DType::fp32, {20}));
  execution.bind("segment_ids", tensors.set("segment_ids", n.ids, DType::i64, {20}));
  execution.bind("num_segments", TensorView{&n.segments, DType::i64, {}, {}});
  execution.bind("pairs", tensors.set("pairs", std::vector<std::int32_t>{0, 1, 2, 3}, DType::i32, {2, 2}));
  execution.run();
  CHECK_THROWS_WITH(execution.status(), Catch::Contains("pairs[1, 1]"));
  execution.bind("pairs", tensors.set("pairs", std::vector<std::int32_t>{0, 1, 2, 0}, DType::i32, {2, 2}));
  execution.run();
  CHECK(execution.status().bad_rows == 0);
}

TEST_CASE("an address that is no multiple of an element's size is refused") {
  const Program p = program();
  DeviceTensors tensors(Device::get(0));
  Execution execution(p);
  Numbers n(20, 3, 1);
  n.upload(tensors, &execution);
  TensorView logits = tensors.set("logits", n.logits, DType::fp32, {20, kVocab});
  logits.data = static_cast<char*>(logits.data) + 2;
  execution.bind("logits", logits);
  CHECK_THROWS_WITH(execution.run(), Catch::Contains("\"logits\" begins at an address"));
}

TEST_CASE("two executions on two streams and a second device") {
  const Program p = program();
  Numbers a(70, 4, 1), b(50, 9, 2);
  const Results right_a = staged(p, a), right_b = staged(p, b);
  for (int ordinal = 0; ordinal < Device::count(); ++ordinal) {
    const Device& device = Device::get(ordinal);
    const Program here = Program::compile(Spec::parse(kSpec), {.device = "cuda:" + std::to_string(ordinal)});
    const Stream stream_a(device), stream_b(device);
    DeviceTensors tensors_a(device), tensors_b(device);
    Execution execution_a(here), execution_b(here);
    execution_a.set_stream(stream_a.handle);
    execution_b.set_stream(stream_b.handle);
    a.upload(tensors_a, &execution_a);
    b.upload(tensors_b, &execution_b);
    for (int i = 0; i < 20; ++i) {
      execution_a.run();
      execution_b.run();
    }
    stream_a.wait();
    stream_b.wait();
    CHECK(results(tensors_a, a) == right_a);
    CHECK(results(tensors_b, b) == right_b);
  }
}

}  // namespace
}  // namespace lossc::test
