// Which seeds a random test takes: its own, or those of LOSSC_TEST_SEEDS=FIRST-LAST, so that many processes
// can share them and a failure can be had again alone.
#pragma once

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace lossc::test {

struct Seeds {
  std::uint64_t first = 0, last = 0, step = 1;
  bool chosen = false;  ///< by the environment
};

inline Seeds seeds_or(Seeds own) {
  const char* named = std::getenv("LOSSC_TEST_SEEDS");
  Seeds seeds{.chosen = true};
  if (named == nullptr || std::sscanf(named, "%" SCNu64 "-%" SCNu64, &seeds.first, &seeds.last) != 2) {
    return own;
  }
  return seeds;
}

}  // namespace lossc::test
