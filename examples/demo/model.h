// A byte-level language model: the embeddings of the last bytes side by side, two hidden layers, logits over
// 256 bytes. Forward and backward of the dense layers are written out; the loss and d loss / d logits come
// from lossc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace demo {

constexpr std::size_t vocab = 256;

struct ModelShape {
  std::size_t context = 12, embedding = 16, hidden1 = 256, hidden2 = 128;
};

/// What forward() leaves for backward(), and the results. Grows to the largest batch and is reused.
struct Activations {
  std::size_t rows = 0;
  std::vector<std::uint8_t> contexts;  ///< [rows, context]
  std::vector<float> input, before1, hidden1, before2, hidden2;
  std::vector<float> logits, grad_logits;  ///< [rows, vocab]
  std::vector<float> grad_hidden1, grad_hidden2, grad_input;

  void resize(const ModelShape& shape, std::size_t row_count);
};

class Model {
 public:
  Model(const ModelShape& shape, std::mt19937_64& random);

  const ModelShape& shape() const { return shape_; }
  std::vector<float>& parameters() { return parameters_; }
  const std::vector<float>& parameters() const { return parameters_; }

  /// activations.contexts -> activations.logits.
  void forward(Activations& activations) const;
  /// activations.grad_logits -> gradient of all parameters (overwritten). Needs the forward() before it.
  void backward(Activations& activations, std::vector<float>& gradient) const;

 private:
  struct Layout {
    std::size_t embedding, weight1, bias1, weight2, bias2, weight3, bias3, size;
  };
  static Layout layout_of(const ModelShape& shape);

  ModelShape shape_;
  Layout layout_;
  std::vector<float> parameters_;
};

}  // namespace demo
