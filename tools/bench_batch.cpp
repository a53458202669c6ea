#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "lossc/error.h"
#include "tools/bench.h"

namespace lossc::cli {
namespace {

constexpr std::int64_t kChunkElements = std::int64_t{1} << 24;  // of a tensor of the logits' shape
constexpr float kSpread = 2;  // standard deviation of logits, as `check` has it

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Of normal numbers that fp16 has as normal numbers.
std::uint16_t to_fp16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000);
  const std::uint32_t magnitude = (bits & 0x7fffffff) + 0x1000;
  if (magnitude < 0x38800000) return sign;
  return static_cast<std::uint16_t>(sign | ((magnitude - 0x38000000) >> 13));
}

class Maker {
 public:
  Maker(const Program& program, std::int64_t rows, std::int64_t segments, std::uint64_t seed)
      : spec_(program.spec()), random_(seed) {
    batch_.rows = rows;
    batch_.segments = segments;
    labels_.resize(static_cast<std::size_t>(rows));
    for (std::int64_t& label : labels_)
      label = std::uniform_int_distribution<std::int64_t>(0, spec_.vocab - 1)(random_);
    logits();
    for (const TensorInfo& input : program.inputs()) {
      if (input.name != "logits") add(input);
    }
  }
  BenchBatch take() { return std::move(batch_); }

 private:
  template <class T>
  void put(const std::string& name, DType dtype, std::vector<std::int64_t> shape,
           const std::vector<T>& values) {
    BenchTensor tensor{name, dtype, std::move(shape), std::vector<char>(values.size() * sizeof(T))};
    if (!values.empty()) std::memcpy(tensor.bytes.data(), values.data(), tensor.bytes.size());
    batch_.inputs.push_back(std::move(tensor));
  }

  std::vector<float> normal(std::int64_t count, float spread) {
    std::normal_distribution<float> distribution(0, spread);
    std::vector<float> values(static_cast<std::size_t>(count));
    for (float& value : values) value = distribution(random_);
    return values;
  }

  std::int64_t held_rows() const {
    return std::min(batch_.rows, std::max<std::int64_t>(1, kChunkElements / spec_.vocab));
  }

  void element(const std::string& name, DType dtype, const std::vector<float>& values) {
    const std::vector<std::int64_t> shape = {batch_.rows, spec_.vocab};
    if (dtype == DType::fp32) return put(name, dtype, shape, values);
    std::vector<std::uint16_t> halves(values.size());
    std::transform(values.begin(), values.end(), halves.begin(), dtype == DType::bf16 ? to_bf16 : to_fp16);
    put(name, dtype, shape, halves);
  }

  void logits() {
    const std::int64_t held = held_rows();
    const std::vector<float> values = normal(held * spec_.vocab, kSpread);
    std::vector<double> lse(static_cast<std::size_t>(held));
    for (std::int64_t row = 0; row < held; ++row) {
      double sum = 0;  // normal logits are small: exp needs no shift
      for (std::int64_t k = 0; k < spec_.vocab; ++k)
        sum += std::exp(values[static_cast<std::size_t>(row * spec_.vocab + k)]);
      lse[static_cast<std::size_t>(row)] = std::log(sum);
    }
    for (std::int64_t row = 0; row < batch_.rows; ++row) {
      const std::int64_t from = row % held;
      const auto at = static_cast<std::size_t>(from * spec_.vocab + labels_[static_cast<std::size_t>(row)]);
      logprobs_.push_back(static_cast<float>(values[at] - lse[static_cast<std::size_t>(from)]));
    }
    element("logits", spec_.logits_dtype, values);
  }

  std::string own_name(const std::string& tensor) const {
    for (const ChildSpec& child : spec_.losses) {
      for (const auto& [own, renamed] : child.inputs) {
        if (renamed == tensor) return own;
      }
    }
    return tensor;
  }

  void segments() {
    std::vector<std::int64_t> ends(static_cast<std::size_t>(batch_.segments + 1), 0);
    for (std::size_t i = 1; i + 1 < ends.size(); ++i) {
      ends[i] = std::uniform_int_distribution<std::int64_t>(0, batch_.rows)(random_);
    }
    ends.back() = batch_.rows;
    std::sort(ends.begin(), ends.end());
    put("cu_seqlens", DType::i64, {batch_.segments + 1}, ends);
  }

  void pairs() {
    std::vector<std::int64_t> pairs(static_cast<std::size_t>(batch_.segments / 2 * 2));
    for (std::size_t i = 0; i < pairs.size(); ++i) pairs[i] = static_cast<std::int64_t>(i);
    put("pairs", DType::i64, {batch_.segments / 2, 2}, pairs);
  }

  void add(const TensorInfo& input) {
    if (input.name == "cu_seqlens") return segments();
    if (input.name == "pairs") return pairs();
    if (input.name == "segment_ids" || input.name == "num_segments" || input.name == "ignore_index") return;
    const DType dtype = input.dtypes.front();
    const bool index = dtype == DType::i32 || dtype == DType::i64;
    if (index) return put(input.name, DType::i64, {batch_.rows}, labels_);
    if (!input.required) return;
    if (input.space == "element") {
      return element(input.name, dtype, normal(held_rows() * spec_.vocab, kSpread));
    }
    const std::int64_t count = input.space == "rows"       ? batch_.rows
                               : input.space == "segments" ? batch_.segments
                               : input.space == "vocab"    ? spec_.vocab
                               : input.space == "pairs"    ? batch_.segments / 2
                                                           : 1;
    const std::vector<std::int64_t> shape =
        input.space == "scalar" ? std::vector<std::int64_t>{} : std::vector{count};
    if (dtype == DType::boolean || dtype == DType::u8) {
      return put(input.name, DType::u8, shape, std::vector<std::uint8_t>(static_cast<std::size_t>(count), 1));
    }
    std::vector<float> values = normal(count, 1);
    if (own_name(input.name).ends_with("logprobs") && input.space == "rows") {
      for (std::size_t i = 0; i < values.size(); ++i) values[i] = logprobs_[i] + 0.01f * values[i];
    } else if (input.space == "vocab") {
      for (float& value : values) value = 0.5f + std::abs(value);
    }
    put(input.name, DType::fp32, shape, values);
  }

  const Spec& spec_;
  std::mt19937_64 random_;
  BenchBatch batch_;
  std::vector<std::int64_t> labels_;
  std::vector<float> logprobs_;
};

}  // namespace

std::size_t BenchTensor::size_bytes() const {
  return static_cast<std::size_t>(TensorView{nullptr, dtype, shape, {}}.size()) * dtype_size(dtype);
}

BenchBatch bench_batch(const Program& program, std::int64_t rows, std::int64_t segments, std::uint64_t seed) {
  return Maker(program, rows, segments, seed).take();
}

BenchTraffic bench_traffic(const Plan& plan, const Spec& spec) {
  BenchTraffic traffic;
  for (const Region& region : plan.regions) {
    if (region.emit) continue;
    for (const ir::NodeId input : region.reads) {
      const auto tensor = spec.tensors.find(plan.loss.graph.symbol_of(input));
      const bool named = tensor != spec.tensors.end() && tensor->second.dtype;
      const DType dtype = named ? *tensor->second.dtype : spec.logits_dtype;
      traffic.read_only += static_cast<double>(dtype_size(dtype)) * static_cast<double>(spec.vocab);
    }
  }
  traffic.mixed = plan.bytes_per_row - traffic.read_only;
  return traffic;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

}  // namespace lossc::cli
