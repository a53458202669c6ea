#include "ir/losses/losses.h"

namespace lossc::losses {

void add_distillation(LossRegistry& registry) {
  registry.add(
      {.name = "distillation",
       .summary = "divergence of the student p = softmax(u) from the teacher q = softmax(t)",
       .formula = "cross_entropy: -sum q log p; forward_kl: sum q log(q/p); reverse_kl: sum p log(p/q)",
       .inputs = {{.name = "teacher_logits", .space = "element"}},
       .parameters = {{.name = "teacher_temperature",
                       .fallback = {},
                       .range = Range::positive,
                       .doc = "divides the teacher's logits alone"},
                      {.name = "teacher_scale",
                       .fallback = {},
                       .range = Range::positive,
                       .doc = "multiplies the teacher's logits"},
                      {.name = "teacher_softcap",
                       .fallback = {},
                       .range = Range::positive,
                       .doc = "caps the teacher's logits: c tanh(t / c)"}},
       .options = {{.name = "divergence", .allowed = {"cross_entropy", "forward_kl", "reverse_kl"}}},
       .flags = {{.name = "temperature_squared",
                  .fallback = false,
                  .doc = "multiplies the loss by the square of the child's temperature"}},
       .value = [](LossContext& c) {
         Expr u = c.logits(), t = c.teacher();
         const std::string& divergence = c.option("divergence");
         Expr value;
         if (divergence == "cross_entropy") {
           value = lse(u) - expect(t, u);
         } else if (divergence == "forward_kl") {
           value = expect(t, t - u) + lse(u) - lse(t);
         } else {
           value = expect(u, u - t) - lse(u) + lse(t);
         }
         if (c.flag("temperature_squared")) value = value * square(c.parameter("temperature"));
         return value;
       }});
}

}  // namespace lossc::losses
