#include "bench/cases.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <random>

#include "bench/copy.h"

namespace lossc::bench {
namespace {

using nlohmann::json;

constexpr double z_weight = 1e-4;
constexpr std::size_t huge_page = 2u << 20;
constexpr std::int64_t longest_segment = 96;

float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/// [begin, end) of part `index` of `parts` of `count` things.
std::pair<std::int64_t, std::int64_t> share(std::int64_t count, int index, int parts) {
  return {count * index / parts, count * (index + 1) / parts};
}

/// Normal numbers, the same for any number of threads: each block has a generator of its own.
void fill_normal(Team& team, const Buffer& buffer, DType dtype, double sigma, std::uint64_t seed) {
  constexpr std::int64_t block = 1 << 16;
  const auto count = static_cast<std::int64_t>(buffer.size() / dtype_size(dtype));
  team.run([&](int thread) {
    const auto [begin, end] = share((count + block - 1) / block, thread, team.size());
    for (std::int64_t b = begin; b < end; ++b) {
      std::mt19937_64 random(seed + static_cast<std::uint64_t>(b));
      std::normal_distribution<float> normal(0.0f, static_cast<float>(sigma));
      for (std::int64_t i = b * block; i < std::min(count, (b + 1) * block); ++i) {
        const float value = normal(random);
        if (dtype == DType::fp32) {
          reinterpret_cast<float*>(buffer.data())[i] = value;
        } else {
          reinterpret_cast<std::uint16_t*>(buffer.data())[i] = to_bf16(value);
        }
      }
    }
  });
}

}  // namespace

const std::vector<Case>& cases() {
  static const std::string ce = R"("ce": {"type": "cross_entropy"})";
  static const std::string z = fmt::format(R"("z": {{"type": "z_loss", "weight": {}}})", z_weight);
  static const std::string gspo = R"("policy": {"type": "gspo"})";
  static const std::string distill = R"("distill": {"type": "distillation", "divergence": "reverse_kl"})";
  static const std::vector<Case> all{
      {.name = "ce+z", .losses = fmt::format("{{{}, {}}}", ce, z), .target_fp32 = 1.6, .target_bf16 = 2.2},
      {.name = "gspo+z+ce",
       .losses = fmt::format("{{{}, {}, {}}}", gspo, z, ce),
       .reads = 2,
       .target_fp32 = 2.3,
       .target_bf16 = 3.0},
      {.name = "distill+ce",
       .losses = fmt::format("{{{}, {}}}", distill, ce),
       .reads = 2,
       .target_fp32 = 3.0,
       .target_bf16 = 4.0},
      {.name = "logprobs+entropy", .losses = "{}", .gradient = false, .target_fp32 = 0.9, .target_bf16 = 1.3},
  };
  return all;
}

const Case& find_case(const std::string& name) {
  std::string known;
  for (const Case& one : cases()) {
    if (one.name == name) return one;
    known += (known.empty() ? "" : ", ") + one.name;
  }
  throw Error(ErrorCode::invalid_argument, fmt::format("no benchmark '{}'; known: {}", name, known));
}

double target(const Case& measured, DType dtype) {
  if (dtype == DType::fp32) return measured.target_fp32 * (has_avx512() ? 1.0 : 1.2);
  return has_avx512() ? measured.target_bf16 : 0;
}

Spec make_spec(const Case& measured, DType dtype, std::int64_t vocab) {
  const std::string type(dtype_name(dtype));
  json spec{{"version", 1},
            {"logits", {{"dtype", type}, {"vocab", vocab}}},
            {"losses", json::parse(measured.losses)},
            {"gradient", {{"mode", measured.gradient ? "overwrite" : "none"}, {"dtype", type}}}};
  if (measured.reads_teacher()) spec["tensors"] = {{"teacher_logits", {{"dtype", type}}}};
  if (!measured.gradient) spec["outputs"] = {"logprobs", "entropy"};
  return Spec::parse(spec.dump());
}

Buffer::Buffer(std::size_t bytes)
    : size_((bytes + huge_page - 1) / huge_page * huge_page),
      data_(static_cast<char*>(std::aligned_alloc(huge_page, size_))) {
  if (!data_) throw std::bad_alloc();
  madvise(data_.get(), size_, MADV_HUGEPAGE);
}

Batch::Batch(Team& team, DType dtype, std::size_t bytes, double sigma, bool teacher)
    : dtype_(dtype), logits_(bytes), gradient_(bytes) {
  fill_normal(team, logits_, dtype, sigma, 1);
  fill_normal(team, gradient_, dtype, sigma, 0);  // The pages come to be on the threads that will write them.
  if (teacher) {
    teacher_ = std::make_unique<Buffer>(bytes);
    fill_normal(team, *teacher_, dtype, sigma, std::uint64_t{1} << 32);
  }
}

std::size_t Batch::bytes() const {
  return static_cast<std::size_t>(rows_ * vocab_) * dtype_size(dtype_);
}

double Batch::element(const Buffer& buffer, std::int64_t row, std::int64_t column) const {
  const std::int64_t i = row * vocab_ + column;
  return dtype_ == DType::fp32 ? reinterpret_cast<const float*>(buffer.data())[i]
                               : from_bf16(reinterpret_cast<const std::uint16_t*>(buffer.data())[i]);
}

void Batch::set_vocab(Team& team, std::int64_t vocab) {
  vocab_ = vocab;
  rows_ = static_cast<std::int64_t>(logits_.size() / dtype_size(dtype_)) / vocab;
  if (rows_ < 1) {
    throw Error(ErrorCode::invalid_argument,
                fmt::format("a buffer of {} bytes holds no row of {}: raise --mb", logits_.size(), vocab));
  }
  const auto rows = static_cast<std::size_t>(rows_);
  std::mt19937_64 random(7);

  labels_.resize(rows);
  for (std::int32_t& label : labels_) {
    label = std::uniform_int_distribution<std::int32_t>(0, static_cast<std::int32_t>(vocab - 1))(random);
  }
  lse_.resize(rows);
  reference_logprobs_.resize(rows);
  team.run([&](int thread) {
    const auto [begin, end] = share(rows_, thread, team.size());
    for (std::int64_t row = begin; row < end; ++row) {
      double sum = 0;  // Normal logits are small: exp needs no shift.
      for (std::int64_t k = 0; k < vocab_; ++k) sum += std::exp(element(logits_, row, k));
      const auto r = static_cast<std::size_t>(row);
      lse_[r] = std::log(sum);
      reference_logprobs_[r] = element(logits_, row, labels_[r]) - lse_[r];
    }
  });

  cu_seqlens_ = {0};
  advantages_.clear();
  old_logprobs_.resize(rows);
  while (cu_seqlens_.back() < rows_) {
    const std::int64_t begin = cu_seqlens_.back();
    const std::int64_t end =
        std::min(rows_, begin + std::uniform_int_distribution<std::int64_t>(1, longest_segment)(random));
    const double log_ratio = std::normal_distribution<double>(0, 3e-4)(random);
    for (std::int64_t row = begin; row < end; ++row) {
      const auto r = static_cast<std::size_t>(row);
      old_logprobs_[r] = static_cast<float>(reference_logprobs_[r] - log_ratio);
    }
    cu_seqlens_.push_back(static_cast<std::int32_t>(end));
    advantages_.push_back(static_cast<float>(std::normal_distribution<double>(0, 1)(random)));
  }
  logprobs_.assign(rows, 0);
  entropy_.assign(rows, 0);
}

void Batch::bind(Execution& execution, const Program& program) {
  const std::vector<std::int64_t> shape{rows_, vocab_};
  std::map<std::string, TensorView> tensors{
      {"logits", {logits_.data(), dtype_, shape, {}}},
      {"grad_logits", {gradient_.data(), dtype_, shape, {}}},
      {"labels", tensor(labels_)},
      {"cu_seqlens", tensor(cu_seqlens_)},
      {"advantages", tensor(advantages_)},
      {"old_logprobs", tensor(old_logprobs_)},
      {"output.logprobs", tensor(logprobs_)},
      {"output.entropy", tensor(entropy_)},
  };
  if (teacher_) tensors["teacher_logits"] = {teacher_->data(), dtype_, shape, {}};
  for (const std::vector<TensorInfo>* list : {&program.inputs(), &program.outputs()}) {
    for (const TensorInfo& info : *list) {
      if (const auto found = tensors.find(info.name); found != tensors.end()) {
        execution.bind(info.name, found->second);
      }
    }
  }
}

void Batch::check(Execution& execution, const Case& measured) {
  const auto expect = [&](const char* what, double found, double expected, double tolerance) {
    if (std::abs(found - expected) <= tolerance) return;
    throw Error(ErrorCode::internal,
                fmt::format("{} {} vocab {}: {} is {}, {} +- {:.1e} expected", measured.name,
                            dtype_name(dtype_), vocab_, what, found, expected, tolerance));
  };
  std::memset(gradient_.data(), 0xff, bytes());  // NaN, for what is not written.
  logprobs_.assign(logprobs_.size(), std::numeric_limits<float>::quiet_NaN());
  entropy_ = logprobs_;
  execution.run();

  // A value of 10 or so, as a difference of numbers not much larger in fp32: 1e-5 is ten roundings.
  constexpr double tolerance = 1e-5;
  if (measured.gradient) {
    double mean = 0;
    for (const double logprob : reference_logprobs_) mean -= logprob / static_cast<double>(rows_);
    expect("loss.ce", execution.value("loss.ce"), mean, tolerance);
    if (!std::isfinite(execution.value("loss"))) expect("loss", execution.value("loss"), 0, 0);
    check_gradient(measured);
  } else {
    for (std::size_t r = 0; r < logprobs_.size(); ++r) {
      expect("a log-probability", logprobs_[r], reference_logprobs_[r], tolerance);
      // Between that of one token and that of all tokens alike.
      const double most = std::log(static_cast<double>(vocab_)) / 2;
      expect("an entropy", entropy_[r], most, most + tolerance);
    }
  }
}

void Batch::check_gradient(const Case& measured) const {
  const auto fail = [&](std::int64_t row, const std::string& what) {
    throw Error(ErrorCode::internal, fmt::format("{} {} vocab {}: {} in row {}", measured.name,
                                                 dtype_name(dtype_), vocab_, what, row));
  };
  for (std::int64_t row = 0; row < rows_; ++row) {
    double sum = 0, sum_of_sizes = 0;
    for (std::int64_t k = 0; k < vocab_; ++k) {
      const double value = element(gradient_, row, k);
      sum += value;
      sum_of_sizes += std::abs(value);
    }
    if (!std::isfinite(sum)) fail(row, "the gradient is not finite");
    if (sum_of_sizes == 0) fail(row, "the gradient is zero");
    // A softmax does not change when all logits shift, so its losses' gradients sum to 0; z_loss = w lse^2
    // shifts: d/ds w (lse + s)^2 = 2 w lse.
    const bool z = measured.losses.find("z_loss") != std::string::npos;
    const double expected =
        z ? 2 * z_weight * lse_[static_cast<std::size_t>(row)] / static_cast<double>(rows_) : 0;
    // Each element is off by its arithmetic, 1e-5 at most, and in bf16 by a rounding to 8 bits besides.
    const double tolerance = (dtype_ == DType::fp32 ? 1e-5 : 1e-5 + 0x1p-9) * sum_of_sizes;
    if (!(std::abs(sum - expected) <= tolerance)) {
      fail(row,
           fmt::format("the gradient sums to {:.3e}, {:.3e} +- {:.1e} expected", sum, expected, tolerance));
    }
  }
}

}  // namespace lossc::bench
