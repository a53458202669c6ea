#include "model.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "gemm.h"
#include "parallel.h"

namespace demo {
namespace {

constexpr std::size_t row_grain = 64;

/// out[rows, to] = in[rows, from] · weight[from, to] + bias
void dense(std::size_t rows, std::size_t from, std::size_t to, const float* in, const float* weight,
           const float* bias, float* out) {
  parallel_chunks(rows, row_grain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t row = begin; row < end; ++row) std::copy_n(bias, to, out + row * to);
  });
  gemm(rows, to, from, row_major(in, from), row_major(weight, to), out, true);
}

/// The gradient of dense(): of the weight and bias, and of `in` if `grad_in` is given.
void dense_backward(std::size_t rows, std::size_t from, std::size_t to, const float* in, const float* weight,
                    const float* grad_out, float* grad_weight, float* grad_bias, float* grad_in) {
  gemm(from, to, rows, transposed(in, from), row_major(grad_out, to), grad_weight, false);
  constexpr std::size_t columns = 32;
  parallel_chunks(to, columns, [&](std::size_t begin, std::size_t end) {
    float sum[columns] = {};
    for (std::size_t row = 0; row < rows; ++row) {
      for (std::size_t i = begin; i < end; ++i) sum[i - begin] += grad_out[row * to + i];
    }
    std::copy_n(sum, end - begin, grad_bias + begin);
  });
  gemm(rows, from, to, row_major(grad_out, to), transposed(weight, to), grad_in, false);
}

/// The activation: max(x, 0)².
void activate(std::size_t count, const float* in, float* out) {
  parallel_chunks(count, 16384, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) {
      const float x = std::max(in[i], 0.0f);
      out[i] = x * x;
    }
  });
}

/// grad *= derivative of the activation at `in`.
void activate_backward(std::size_t count, const float* in, float* grad) {
  parallel_chunks(count, 16384, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin; i < end; ++i) grad[i] *= 2 * std::max(in[i], 0.0f);
  });
}

}  // namespace

void Activations::resize(const ModelShape& shape, std::size_t row_count) {
  rows = row_count;
  contexts.resize(rows * shape.context);
  input.resize(rows * shape.context * shape.embedding);
  grad_input.resize(input.size());
  for (auto* values : {&before1, &hidden1, &grad_hidden1}) values->resize(rows * shape.hidden1);
  for (auto* values : {&before2, &hidden2, &grad_hidden2}) values->resize(rows * shape.hidden2);
  logits.resize(rows * vocab);
  grad_logits.resize(rows * vocab);
}

Model::Layout Model::layout_of(const ModelShape& shape) {
  Layout at{};
  std::size_t size = 0;
  const auto take = [&](std::size_t count) { return std::exchange(size, size + count); };
  at.embedding = take(vocab * shape.embedding);
  at.weight1 = take(shape.context * shape.embedding * shape.hidden1);
  at.bias1 = take(shape.hidden1);
  at.weight2 = take(shape.hidden1 * shape.hidden2);
  at.bias2 = take(shape.hidden2);
  at.weight3 = take(shape.hidden2 * vocab);
  at.bias3 = take(vocab);
  at.size = size;
  return at;
}

Model::Model(const ModelShape& shape, std::mt19937_64& random)
    : shape_(shape), layout_(layout_of(shape)), parameters_(layout_.size, 0.0f) {
  // Drawn by hand: std::normal_distribution may differ from one standard library to another.
  const auto uniform = [&] { return (static_cast<double>(random() >> 11) + 0.5) * 0x1p-53; };
  const auto fill = [&](std::size_t begin, std::size_t count, double deviation) {
    for (std::size_t i = begin; i < begin + count; ++i) {
      parameters_[i] = static_cast<float>(deviation * std::sqrt(-2 * std::log(uniform())) *
                                          std::cos(2 * std::numbers::pi * uniform()));
    }
  };
  const std::size_t inputs = shape.context * shape.embedding;
  fill(layout_.embedding, vocab * shape.embedding, 1.0);
  fill(layout_.weight1, inputs * shape.hidden1, 1 / std::sqrt(static_cast<double>(inputs)));
  fill(layout_.weight2, shape.hidden1 * shape.hidden2, 1 / std::sqrt(static_cast<double>(shape.hidden1)));
  fill(layout_.weight3, shape.hidden2 * vocab, 0.2 / std::sqrt(static_cast<double>(shape.hidden2)));
}

void Model::forward(Activations& a) const {
  const float* p = parameters_.data();
  const std::size_t inputs = shape_.context * shape_.embedding;
  parallel_chunks(a.rows, row_grain, [&](std::size_t begin, std::size_t end) {
    for (std::size_t i = begin * shape_.context; i < end * shape_.context; ++i) {
      std::copy_n(p + layout_.embedding + a.contexts[i] * shape_.embedding, shape_.embedding,
                  &a.input[i * shape_.embedding]);
    }
  });
  dense(a.rows, inputs, shape_.hidden1, a.input.data(), p + layout_.weight1, p + layout_.bias1,
        a.before1.data());
  activate(a.rows * shape_.hidden1, a.before1.data(), a.hidden1.data());
  dense(a.rows, shape_.hidden1, shape_.hidden2, a.hidden1.data(), p + layout_.weight2, p + layout_.bias2,
        a.before2.data());
  activate(a.rows * shape_.hidden2, a.before2.data(), a.hidden2.data());
  dense(a.rows, shape_.hidden2, vocab, a.hidden2.data(), p + layout_.weight3, p + layout_.bias3,
        a.logits.data());
}

void Model::backward(Activations& a, std::vector<float>& gradient) const {
  gradient.resize(parameters_.size());
  const float* p = parameters_.data();
  float* g = gradient.data();
  const std::size_t inputs = shape_.context * shape_.embedding;
  dense_backward(a.rows, shape_.hidden2, vocab, a.hidden2.data(), p + layout_.weight3, a.grad_logits.data(),
                 g + layout_.weight3, g + layout_.bias3, a.grad_hidden2.data());
  activate_backward(a.rows * shape_.hidden2, a.before2.data(), a.grad_hidden2.data());
  dense_backward(a.rows, shape_.hidden1, shape_.hidden2, a.hidden1.data(), p + layout_.weight2,
                 a.grad_hidden2.data(), g + layout_.weight2, g + layout_.bias2, a.grad_hidden1.data());
  activate_backward(a.rows * shape_.hidden1, a.before1.data(), a.grad_hidden1.data());
  dense_backward(a.rows, inputs, shape_.hidden1, a.input.data(), p + layout_.weight1, a.grad_hidden1.data(),
                 g + layout_.weight1, g + layout_.bias1, a.grad_input.data());
  // Rows of the table are shared by all positions, so that their sums stay on one thread.
  float* table = g + layout_.embedding;
  std::fill_n(table, vocab * shape_.embedding, 0.0f);
  for (std::size_t i = 0; i < a.rows * shape_.context; ++i) {
    float* to = table + a.contexts[i] * shape_.embedding;
    const float* from = &a.grad_input[i * shape_.embedding];
    for (std::size_t j = 0; j < shape_.embedding; ++j) to[j] += from[j];
  }
}

}  // namespace demo
