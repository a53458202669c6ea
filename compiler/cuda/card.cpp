#include "compiler/cuda/card.h"

#include <charconv>

namespace lossc::cuda {

Card card_of(std::string_view arch) {
  int number = 0;
  const std::size_t digits = arch.find_first_of("0123456789");
  if (digits != std::string_view::npos) {
    std::from_chars(arch.data() + digits, arch.data() + arch.size(), number);
  }
  Card card;
  card.clusters = number >= 90;
  if (number == 80 || number == 87) card.shared_bytes = 164 << 10;
  if (number >= 90 && number < 120) card.shared_bytes = 228 << 10;
  return card;
}

}  // namespace lossc::cuda
