#include "policy_training.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "corpus.h"
#include "optimizer.h"

namespace demo {
namespace {

using lossc::tensor;

double mean(const double* begin, std::size_t count) {
  return std::accumulate(begin, begin + count, 0.0) / static_cast<double>(count);
}

}  // namespace

void PolicyBatch::assemble(const ModelShape& shape, const std::vector<Sample>& samples) {
  labels.clear();
  advantages.clear();
  cu_seqlens.assign(1, 0);
  std::vector<const Sample*> used;
  for (const Sample& one : samples) {
    if (one.advantage == 0) continue;
    used.push_back(&one);
    for (const char c : one.continuation()) labels.push_back(static_cast<std::uint8_t>(c));
    cu_seqlens.push_back(static_cast<std::int32_t>(labels.size()));
    advantages.push_back(static_cast<float>(one.advantage));
  }
  activations.resize(shape, labels.size());
  std::uint8_t* out = activations.contexts.data();
  for (const Sample* one : used) {
    for (std::size_t at = one->prompt_bytes; at < one->text.size(); ++at, out += shape.context) {
      copy_context(one->text, at, shape.context, out);
    }
  }
  old_logprobs.resize(labels.size());
}

double PolicyResult::first_reward() const {
  return mean(reward.data(), (reward.size() + 9) / 10);
}

double PolicyResult::final_reward() const {
  const std::size_t count = (reward.size() + 9) / 10;
  return mean(reward.data() + reward.size() - count, count);
}

PolicyResult improve(Model& model, const std::string& text, const PhraseReward& reward,
                     const lossc::Program& logprobs, const lossc::Program& policy,
                     const PolicyOptions& options, std::mt19937_64& random, const Console& console) {
  lossc::Execution measure(logprobs), learn(policy);
  Adam adam(model.parameters().size(), {.beta2 = 0.95});
  std::vector<float> gradient;
  PolicyResult result;
  PolicyBatch& batch = result.last;
  Progress progress(console, "improving the policy", options.batches, false);
  progress.print("  batch  segments   rows   reward   entropy   ratio   clipped       kl     compilations");
  for (int step = 0; step < options.batches; ++step) {
    const std::size_t prompts =
        options.fewest_prompts + random() % (options.most_prompts - options.fewest_prompts + 1);
    std::vector<Sample> samples = sample(model, draw_prompts(text, prompts, model.shape().context, random),
                                         options.group, options.shortest, options.longest, random);
    result.reward.push_back(score(samples, options.group, reward));
    batch.assemble(model.shape(), samples);
    if (batch.rows() == 0) continue;  // All samples of every prompt were equally good.

    // The number of rows and of segments differs in every batch, and the clip range narrows: nothing compiles
    // again.
    const std::vector<std::int64_t> shape = {batch.rows(), vocab};
    const double narrowing = 1 - 0.5 * step / options.batches;
    learn.set("policy.epsilon_low", result.last_epsilon_low = options.epsilon_low * narrowing);
    learn.set("policy.epsilon_high", result.last_epsilon_high = options.epsilon_high * narrowing);
    measure.bind("logits", tensor(batch.activations.logits, shape));
    measure.bind("labels", tensor(batch.labels));
    measure.bind("output.logprobs", tensor(batch.old_logprobs));
    learn.bind("logits", tensor(batch.activations.logits, shape));
    learn.bind("labels", tensor(batch.labels));
    learn.bind("cu_seqlens", tensor(batch.cu_seqlens));
    learn.bind("old_logprobs", tensor(batch.old_logprobs));
    learn.bind("advantages", tensor(batch.advantages));
    learn.bind("grad_logits", tensor(batch.activations.grad_logits, shape));

    for (int epoch = 0; epoch < options.epochs; ++epoch) {
      model.forward(batch.activations);
      if (epoch == 0) measure.run();
      learn.run();
      model.backward(batch.activations, gradient);
      adam.step(model.parameters(), gradient, options.learning_rate);
    }
    result.last_loss = learn.value("loss");
    progress.print(fmt::format("  {:5}  {:8}  {:5}   {:6.3f}   {:7.3f}   {:.3f}   {:5.1f} %   {:.1e}   {:12}",
                               step + 1, batch.segments(), batch.rows(), result.reward.back(),
                               learn.value("metric.entropy"), learn.value("metric.policy.ratio"),
                               100 * learn.value("metric.policy.clip_fraction"),
                               learn.value("metric.policy.kl_k3"), lossc::statistics().compilations));
    progress.update(step + 1, fmt::format("reward {:.3f}", result.reward.back()));
  }
  progress.finish("");
  return result;
}

}  // namespace demo
