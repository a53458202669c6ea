// Samples of the policy and their reward.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "model.h"

namespace demo {

/// A reward that code can check: the share of a continuation that consists of words which follow the word
/// before them somewhere in the text too. Each such pair of words counts once a continuation, so that
/// repeating one pays nothing.
class PhraseReward {
 public:
  explicit PhraseReward(std::string_view text);
  /// 0 to 1, of the bytes of `text` after the prompt; a word counts with the byte that ends it.
  double operator()(std::string_view text, std::size_t prompt_bytes) const;
  std::size_t known_pairs() const { return pairs_.size(); }

 private:
  std::set<std::string, std::less<>> pairs_;  ///< "first second", in lower case.
};

struct Sample {
  std::size_t prompt;  ///< Which of the prompts it continues.
  std::string text;    ///< The prompt and what the policy wrote.
  std::size_t prompt_bytes;
  double reward = 0, advantage = 0;
  std::string_view continuation() const { return std::string_view(text).substr(prompt_bytes); }
};

/// `count` places of the text where a word begins, with the bytes before them.
std::vector<std::string> draw_prompts(const std::string& text, std::size_t count, std::size_t bytes,
                                      std::mt19937_64& random);

/// Continues each prompt `group` times at temperature 1, each time by a number of bytes drawn from [shortest,
/// longest].
std::vector<Sample> sample(const Model& model, const std::vector<std::string>& prompts, std::size_t group,
                           std::size_t shortest, std::size_t longest, std::mt19937_64& random);

/// Sets rewards and group-relative advantages: the reward less the mean of its prompt's samples, over their
/// deviation. Returns the mean reward.
double score(std::vector<Sample>& samples, std::size_t group, const PhraseReward& reward);

}  // namespace demo
