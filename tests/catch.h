// The Catch2 headers, version 2 or 3. Include this one in tests; never Catch2 itself.
#pragma once

#if __has_include(<catch2/catch_test_macros.hpp>)
#include <catch2/catch_approx.hpp>
#include <catch2/catch_template_test_macros.hpp>
#include <catch2/catch_test_macros.hpp>
#include <catch2/generators/catch_generators_all.hpp>
#include <catch2/matchers/catch_matchers_all.hpp>
#else
#include <catch2/catch.hpp>
#endif

// Approx lives in another namespace in each version; tests say lossc::test::Approx.
namespace lossc::test {
#if __has_include(<catch2/catch_test_macros.hpp>)
using Catch::Approx;
#else
using Catch::Detail::Approx;
#endif
}  // namespace lossc::test
