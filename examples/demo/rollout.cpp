#include "rollout.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "corpus.h"

namespace demo {
namespace {

bool is_letter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/// Calls `use(word, end)` for every run of letters, in lower case; `end` is the index after it.
template <class Use>
void for_each_word(std::string_view text, const Use& use) {
  std::string word;
  for (std::size_t i = 0; i <= text.size(); ++i) {
    if (i < text.size() && is_letter(text[i])) {
      word += static_cast<char>(text[i] | 0x20);
    } else if (!word.empty()) {
      use(word, i);
      word.clear();
    }
  }
}

/// An index drawn from softmax(logits).
std::uint8_t draw(const float* logits, std::mt19937_64& random) {
  const float largest = *std::max_element(logits, logits + vocab);
  double weight[vocab], total = 0;
  for (std::size_t i = 0; i < vocab; ++i)
    total += weight[i] = std::exp(static_cast<double>(logits[i] - largest));
  double left = static_cast<double>(random() >> 11) * 0x1p-53 * total;
  for (std::size_t i = 0; i < vocab; ++i) {
    left -= weight[i];
    if (left < 0) return static_cast<std::uint8_t>(i);
  }
  return static_cast<std::uint8_t>(std::max_element(logits, logits + vocab) - logits);
}

}  // namespace

PhraseReward::PhraseReward(std::string_view text) {
  std::string before;
  for_each_word(text, [&](const std::string& word, std::size_t) {
    pairs_.insert(before + ' ' + word);
    before = word;
  });
}

double PhraseReward::operator()(std::string_view text, std::size_t prompt_bytes) const {
  std::set<std::string> used;
  std::string before;
  std::size_t bytes = 0;
  for_each_word(text, [&](const std::string& word, std::size_t end) {
    std::string pair = before + ' ' + word;
    before = word;
    if (end <= prompt_bytes || !pairs_.contains(pair)) return;
    if (used.insert(std::move(pair)).second) bytes += word.size() + (end < text.size());
  });
  return static_cast<double>(bytes) / static_cast<double>(text.size() - prompt_bytes);
}

std::vector<std::string> draw_prompts(const std::string& text, std::size_t count, std::size_t bytes,
                                      std::mt19937_64& random) {
  std::vector<std::string> prompts;
  for (std::size_t tries = 0; prompts.size() < count; ++tries) {
    if (tries > 100000 * count) throw std::runtime_error("found no words to begin with in the text");
    const std::size_t end = bytes + random() % (text.size() - bytes);
    if (text[end - 1] == ' ' && is_letter(text[end])) prompts.push_back(text.substr(end - bytes, bytes));
  }
  return prompts;
}

std::vector<Sample> sample(const Model& model, const std::vector<std::string>& prompts, std::size_t group,
                           std::size_t shortest, std::size_t longest, std::mt19937_64& random) {
  std::vector<Sample> samples;
  std::vector<std::size_t> wanted;
  for (std::size_t prompt = 0; prompt < prompts.size(); ++prompt) {
    for (std::size_t i = 0; i < group; ++i) {
      samples.push_back({.prompt = prompt, .text = prompts[prompt], .prompt_bytes = prompts[prompt].size()});
      wanted.push_back(samples.back().prompt_bytes + shortest + random() % (longest - shortest + 1));
    }
  }
  Activations activations;
  const std::size_t context = model.shape().context;
  for (;;) {
    std::vector<Sample*> open;
    for (std::size_t i = 0; i < samples.size(); ++i) {
      if (samples[i].text.size() < wanted[i]) open.push_back(&samples[i]);
    }
    if (open.empty()) return samples;
    activations.resize(model.shape(), open.size());
    for (std::size_t row = 0; row < open.size(); ++row) {
      copy_context(open[row]->text, open[row]->text.size(), context, &activations.contexts[row * context]);
    }
    model.forward(activations);
    for (std::size_t row = 0; row < open.size(); ++row) {
      open[row]->text += static_cast<char>(draw(&activations.logits[row * vocab], random));
    }
  }
}

double score(std::vector<Sample>& samples, std::size_t group, const PhraseReward& reward) {
  double total = 0;
  for (std::size_t begin = 0; begin < samples.size(); begin += group) {
    double sum = 0, squares = 0;
    for (std::size_t i = begin; i < begin + group; ++i) {
      samples[i].reward = reward(samples[i].text, samples[i].prompt_bytes);
      sum += samples[i].reward;
      squares += samples[i].reward * samples[i].reward;
    }
    const double count = static_cast<double>(group), mean = sum / count;
    const double deviation = std::sqrt(std::max(0.0, squares / count - mean * mean));
    for (std::size_t i = begin; i < begin + group; ++i) {
      samples[i].advantage = deviation > 1e-6 ? (samples[i].reward - mean) / deviation : 0;
    }
    total += sum;
  }
  return total / static_cast<double>(samples.size());
}

}  // namespace demo
