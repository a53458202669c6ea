// The references agree with each other: the analytic gradients with central differences of the losses, the
// conversions with the machine's. Nothing of the compiler runs here.
#include "tests/reference.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>

#include "tests/cases.h"
#include "tests/catch.h"
#include "tests/storage.h"

namespace lossc::test {
namespace {

TEST_CASE("fp32 conversion is the machine's") {
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    const auto bits = random();
    const double value = std::bit_cast<double>(bits);
    if (std::isnan(value)) continue;
    const auto narrowed = static_cast<float>(value);
    REQUIRE(encode(DType::fp32, value) == std::bit_cast<std::uint32_t>(narrowed));
    const auto small = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (!std::isnan(small)) REQUIRE(decode(DType::fp32, static_cast<std::uint32_t>(bits)) == small);
  }
}

TEST_CASE("16-bit conversions round to the nearest of all values") {
  for (DType dtype : {DType::bf16, DType::fp16}) {
    std::vector<double> finite;
    for (std::uint64_t bits = 0; bits < 0x8000; ++bits) {
      const double value = decode(dtype, bits);
      if (!std::isfinite(value)) continue;
      REQUIRE(encode(dtype, value) == bits);
      REQUIRE(encode(dtype, -value) == (bits | 0x8000));
      finite.push_back(value);
    }
    for (std::size_t i = 0; i + 1 < finite.size(); ++i) {
      const double middle = (finite[i] + finite[i + 1]) / 2;
      // Ties go to the even bit pattern.
      REQUIRE(encode(dtype, middle) == (i % 2 == 0 ? i : i + 1));
      REQUIRE(encode(dtype, std::nextafter(middle, 0)) == i);
      REQUIRE(encode(dtype, std::nextafter(middle, finite[i + 1])) == i + 1);
      REQUIRE(half_ulp(dtype, finite[i]) == (finite[i + 1] - finite[i]) / 2);
    }
  }
  CHECK(rounded(DType::fp16, 65519.9) == 65504);
  CHECK(std::isinf(rounded(DType::fp16, 65520)));
}

// Central differences of step h: the truncation is h^2/6 of a third derivative (about 1 here), the rounding
// 2^-52 |loss| / h.
TEST_CASE("analytic gradients are the derivatives of the losses") {
  constexpr double step = 1e-4;
  for (const NamedCase& named : all_cases()) {
    if (named.spec.children.empty()) continue;
    for (std::uint64_t seed = 1; seed <= 2; ++seed) {
      std::mt19937_64 random(seed);
      const Batch batch = decided_batch(named.spec, named.options, random);
      const Reference right = reference(named.spec, batch);
      const std::vector<double> numeric = numeric_gradient(named.spec, batch, step);
      double largest = 1;
      for (const Bounded& g : right.gradient) largest = std::max(largest, std::abs(g.value));
      const double loss = std::abs(right.scalars.at("loss").value);
      const double tolerance = 10 * step * step * largest + 8 * 0x1p-52 * (loss + 1) / step;
      for (std::size_t i = 0; i < numeric.size(); ++i) {
        if (!right.live[i / static_cast<std::size_t>(batch.vocab)]) continue;
        if (std::abs(numeric[i] - right.gradient[i].value) <= tolerance) continue;
        FAIL_CHECK(fmt::format("{}, seed {}, element {}: numeric {}, analytic {}", named.name, seed, i,
                               numeric[i], right.gradient[i].value));
        break;
      }
    }
  }
}

TEST_CASE("bounds stay far below what a wrong term would change") {
  for (const NamedCase& named : all_cases()) {
    if (named.spec.children.empty()) continue;
    std::mt19937_64 random(3);
    const Batch batch = decided_batch(named.spec, named.options, random);
    const Reference right = reference(named.spec, batch);
    double largest = 0, bound = 0;
    for (const Bounded& g : right.gradient) {
      largest = std::max(largest, std::abs(g.value));
      bound = std::max(bound, g.error);
    }
    INFO(named.name);
    CHECK(bound <= 3e-3 * largest);
  }
}

}  // namespace
}  // namespace lossc::test
