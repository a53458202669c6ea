#include "ir/losses/losses.h"

namespace lossc {

const LossRegistry& LossRegistry::builtin() {
  static const LossRegistry* registry = [] {
    auto* r = new LossRegistry;  // leaked: usable in static destructors
    losses::add_likelihood(*r);
    losses::add_distillation(*r);
    losses::add_policy(*r);
    losses::add_preference(*r);
    return r;
  }();
  return *registry;
}

}  // namespace lossc
