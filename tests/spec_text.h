// Spec texts that several tests of the reader share.
#pragma once

#include <string>
#include <string_view>

namespace lossc::test {

/// A spec with the given further members of the root: spec_with(R"("losses": {...})").
inline std::string spec_with(std::string_view members) {
  return R"({"version": 1, "logits": {"dtype": "bf16", "vocab": 8}, )" + std::string(members) + "}";
}

/// A spec with one child "a" of the given members.
inline std::string spec_with_child(std::string_view members) {
  return spec_with(R"("losses": {"a": {)" + std::string(members) + "}}");
}

/// A spec that uses every key.
inline constexpr std::string_view full_spec = R"({
  "version": 1,
  "logits": {"dtype": "bf16", "vocab": 131072, "scale": 0.5, "softcap": 30, "temperature": "$tau", "order": "cap_first"},
  "params": {"tau": 1.5, "smoothing": 0.1},
  "tensors": {"teacher_b": {"dtype": "fp32"}, "advantages": {"space": "segments"}},
  "losses": {
    "policy": {"type": "gspo", "weight": 1.0, "epsilon_low": 3e-4, "epsilon_high": 4e-4, "reduction": "divisor",
               "divisor": 64},
    "ce": {"type": "cross_entropy", "label_smoothing": "$smoothing", "scale": 2, "softcap": null, "order": null,
           "reduction": "sequence_mean", "count_empty": true},
    "z": {"type": "z_loss", "weight": 1e-4, "inputs": {"labels": null, "mask": "other_mask"}},
    "h": {"type": "entropy", "direction": "minimize", "weight": 0},
    "distill": {"type": "distillation", "divergence": "reverse_kl", "weight": 0.5, "temperature": "$tau",
                "teacher_temperature": 2, "temperature_squared": true, "inputs": {"teacher_logits": "teacher_b"}}
  },
  "metrics": ["entropy", "policy.clip_fraction", "policy.ratio.sum", "policy.ratio.count", "policy.advantage_max",
              {"name": "policy.kl_k3", "weighting": "document"}, "ce.token_accuracy"],
  "outputs": ["logprobs", "entropy", "lse", "ce.loss"],
  "gradient": {"mode": "accumulate", "dtype": "fp32", "form": "dense"},
  "parallel": {"vocab": "tp", "sequence": "sp", "data": "dp"}
})";

}  // namespace lossc::test
