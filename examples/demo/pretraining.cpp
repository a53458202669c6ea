#include "pretraining.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "optimizer.h"

namespace demo {
namespace {

using lossc::tensor;

struct Evaluation {
  double loss, accuracy;
};

/// The loss over the first bytes of the held-out text.
class Evaluator {
 public:
  Evaluator(const Model& model, const std::string& text, const lossc::Program& program)
      : execution_(program) {
    constexpr std::size_t most = 32768;
    const std::size_t rows = std::min(text.size(), most);
    activations_.resize(model.shape(), rows);
    for (std::size_t row = 0; row < rows; ++row) {
      copy_context(text, row, model.shape().context, &activations_.contexts[row * model.shape().context]);
      labels_.push_back(static_cast<std::uint8_t>(text[row]));
    }
    execution_.bind("logits", tensor(activations_.logits, {static_cast<std::int64_t>(rows), vocab}));
    execution_.bind("labels", tensor(labels_));
  }

  Evaluation operator()(const Model& model) {
    model.forward(activations_);
    execution_.run();
    return {execution_.value("loss.ce"), execution_.value("metric.token_accuracy")};
  }

 private:
  lossc::Execution execution_;
  Activations activations_;
  std::vector<std::int32_t> labels_;
};

}  // namespace

double PretrainingResult::final_train() const {
  const std::size_t count = std::min<std::size_t>(train.size(), 20);
  return std::accumulate(train.end() - static_cast<std::ptrdiff_t>(count), train.end(), 0.0) /
         static_cast<double>(count);
}

PretrainingResult pretrain(Model& model, const Corpus& corpus, const lossc::Program& training,
                           const lossc::Program& evaluation, const PretrainingOptions& options,
                           std::mt19937_64& random, const Console& console) {
  const std::size_t context = model.shape().context;
  Activations batch;
  batch.resize(model.shape(), options.rows);
  std::vector<std::int32_t> labels(options.rows);

  lossc::Execution execution(training);
  const std::vector<std::int64_t> shape = {static_cast<std::int64_t>(options.rows), vocab};
  execution.bind("logits", tensor(batch.logits, shape));
  execution.bind("labels", tensor(labels));
  execution.bind("grad_logits", tensor(batch.grad_logits, shape));

  Evaluator evaluate(model, corpus.held_out, evaluation);
  Adam adam(model.parameters().size(), {.weight_decay = options.weight_decay});
  std::vector<float> gradient;
  PretrainingResult result;
  Progress progress(console, "learning the text", options.steps);
  for (int step = 0; step < options.steps; ++step) {
    for (std::size_t row = 0; row < options.rows; ++row) {
      const std::size_t position = random() % corpus.train.size();
      copy_context(corpus.train, position, context, &batch.contexts[row * context]);
      labels[row] = static_cast<std::uint8_t>(corpus.train[position]);
    }
    model.forward(batch);
    execution.run();
    result.train.push_back(execution.value("loss.ce"));
    model.backward(batch, gradient);
    adam.step(model.parameters(), gradient,
              options.learning_rate * learning_rate_schedule(step, options.steps, options.warmup));

    const int done = step + 1;
    if (done == 1 || done % options.evaluate_every == 0 || done == options.steps) {
      const Evaluation measured = evaluate(model);
      result.held_out_steps.push_back(done);
      result.held_out.push_back(measured.loss);
      result.held_out_accuracy = measured.accuracy;
    }
    progress.update(
        done, fmt::format("loss {:.3f}, held out {:.3f}", result.final_train(), result.held_out.back()));
  }
  progress.finish(fmt::format("{} steps of {} bytes", options.steps, options.rows));
  return result;
}

}  // namespace demo
