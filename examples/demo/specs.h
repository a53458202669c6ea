// The losses of the demo, as lossc takes them. Each is compiled once.
#pragma once

namespace demo {

/// Learning the text: logits in, loss and d loss / d logits out.
constexpr const char* pretraining_spec = R"({
  "version": 1,
  "logits": {"dtype": "fp32", "vocab": 256},
  "losses": {
    "ce": {"type": "cross_entropy"},
    "z":  {"type": "z_loss", "weight": 1e-4}
  },
  "gradient": {"mode": "overwrite"}
})";

/// Measuring on the text held out.
constexpr const char* evaluation_spec = R"({
  "version": 1,
  "logits": {"dtype": "fp32", "vocab": 256},
  "losses": {"ce": {"type": "cross_entropy"}},
  "metrics": ["token_accuracy"],
  "gradient": {"mode": "none"}
})";

/// The log-probabilities of what the policy sampled, before it learns from them.
constexpr const char* logprobs_spec = R"({
  "version": 1,
  "logits": {"dtype": "fp32", "vocab": 256},
  "outputs": ["logprobs"],
  "gradient": {"mode": "none"}
})";

/// Learning from rewards.
constexpr const char* policy_spec = R"({
  "version": 1,
  "logits": {"dtype": "fp32", "vocab": 256},
  "tensors": {"advantages": {"space": "segments"}},
  "losses": {
    "policy": {"type": "gspo", "epsilon_low": 0.03, "epsilon_high": 0.04},
    "z":      {"type": "z_loss", "weight": 1e-4}
  },
  "metrics": ["entropy", "policy.ratio", "policy.clip_fraction", "policy.kl_k3"],
  "gradient": {"mode": "overwrite"}
})";

}  // namespace demo
