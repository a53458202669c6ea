// The emitted elementary functions, as machine code of this host, against the C library in double precision.
#include "compiler/cpu/vector_math.h"

#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>
#include <random>

#include "tests/catch.h"
#include "tests/jit.h"

using lossc::cpu::MathTarget;
using lossc::cpu::VectorMath;
using lossc::test::FlushDenormals;
using lossc::test::Jit;

namespace {

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();
constexpr float min_normal = std::numeric_limits<float>::min();
constexpr float max_value = std::numeric_limits<float>::max();

MathTarget host_target() {
  MathTarget target;
  target.flush_denormals = lossc::test::host_is_x86;
#if defined(__x86_64__)
  target.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
  target.avx2 = __builtin_cpu_supports("avx2");
  target.fma = __builtin_cpu_supports("fma");
#endif
  return target;
}

using Emit = llvm::Value* (*)(VectorMath&, const std::vector<llvm::Value*>&);

/// Adds NAME.8 and NAME.1; the arguments lie one after the other, n floats each.
void add_function(Jit& jit, const std::string& name, unsigned arity, MathTarget target, Emit emit) {
  for (unsigned width : {8U, 1U}) {
    jit.add(name + "." + std::to_string(width), width,
            [&](Jit::Builder& b, llvm::Value* in, llvm::Value* out, llvm::Value* index) {
              llvm::Type* type = b.getFloatTy();
              if (width > 1) type = llvm::FixedVectorType::get(type, width);
              VectorMath math(b, target);
              llvm::Value* n = b.GetInsertBlock()->getParent()->getArg(2);
              llvm::Value* position = index;
              std::vector<llvm::Value*> arguments;
              for (unsigned i = 0; i < arity; ++i, position = b.CreateAdd(position, n)) {
                llvm::Value* from = b.CreateGEP(b.getFloatTy(), in, position);
                arguments.push_back(b.CreateAlignedLoad(type, from, llvm::Align(4)));
              }
              llvm::Value* result = emit(math, arguments);
              if (result->getType()->getScalarType()->isIntegerTy()) result = b.CreateUIToFP(result, type);
              b.CreateAlignedStore(result, b.CreateGEP(b.getFloatTy(), out, index), llvm::Align(4));
            });
  }
}

bool same(float a, float b) {
  return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b) ||
         (std::isnan(a) && std::isnan(b));
}

/// Runs the vector form; fails where the scalar form gives other bits.
std::vector<float> call(Jit& jit, const std::string& name, std::vector<float> in, unsigned arity = 1,
                        bool flush = true) {
  const std::size_t n = in.size() / arity;
  REQUIRE(n % 8 == 0);
  std::vector<float> vector(n), scalar(n);
  auto run8 = jit.address(name + ".8"), run1 = jit.address(name + ".1");
  {
    FlushDenormals scope(flush);
    run8(in.data(), vector.data(), static_cast<std::int64_t>(n));
    run1(in.data(), scalar.data(), static_cast<std::int64_t>(n));
  }
  for (std::size_t i = 0; i < n; ++i) {
    if (same(vector[i], scalar[i])) continue;
    INFO(name << "(" << in[i] << "): vector " << vector[i] << ", scalar " << scalar[i]);
    REQUIRE(same(vector[i], scalar[i]));
  }
  return vector;
}

float call_one(Jit& jit, const std::string& name, float x, bool flush = true) {
  return call(jit, name, std::vector<float>(8, x), 1, flush)[0];
}

/// Every exponent and both signs, 2048 mantissas each, the ends among them; then 2^20 points in [-20, 20],
/// where most of the functions have their shape, and 2^20 in [-100, 100]. No denormals: under DAZ they are
/// zeros.
const std::vector<float>& samples() {
  static const std::vector<float> points = [] {
    std::vector<float> result;
    std::mt19937 random(20240229);
    for (std::uint32_t sign : {0U, 0x80000000U}) {
      for (std::uint32_t exponent = 1; exponent < 255; ++exponent) {
        for (std::uint32_t i = 0; i < 2048; ++i) {
          std::uint32_t mantissa = i == 0 ? 0 : i == 1 ? 0x7fffff : random() & 0x7fffff;
          result.push_back(std::bit_cast<float>(sign | exponent << 23 | mantissa));
        }
      }
    }
    for (float bound : {20.0F, 100.0F}) {
      std::uniform_real_distribution<float> uniform(-bound, bound);
      for (int i = 0; i < 1 << 20; ++i) result.push_back(uniform(random));
    }
    return result;
  }();
  return points;
}

/// |value - exact| in units of the last place of the float nearest to `exact`.
double ulps(float value, double exact) {
  if (std::isnan(value) || std::isinf(value))
    return std::isinf(static_cast<float>(exact)) && value == exact ? 0 : 1e30;
  int exponent = std::max(std::ilogb(exact), -126);
  return std::abs(static_cast<double>(value) - exact) / std::ldexp(1.0, exponent - 23);
}

double log1mexp_exact(double x) {
  return x > -0.69 ? std::log(-std::expm1(x)) : std::log1p(-std::exp(x));
}
double sigmoid_exact(double x) {
  return 1 / (1 + std::exp(-x));
}
double softplus_exact(double x) {
  return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
}
double log_sigmoid_exact(double x) {
  return -softplus_exact(-x);
}
double exp_exact(double x) {
  return std::exp(x);
}
double log_exact(double x) {
  return std::log(x);
}
double log1p_exact(double x) {
  return std::log1p(x);
}
double expm1_exact(double x) {
  return std::expm1(x);
}
double tanh_exact(double x) {
  return std::tanh(x);
}
double sqrt_exact(double x) {
  return std::sqrt(x);
}

struct Case {
  const char* name;
  Emit emit;
  double (*exact)(double);
  double bound;     ///< ulp
  float low, high;  ///< where the bound is promised
};

#define LOSSC_EMIT(function) \
  [](VectorMath& m, const std::vector<llvm::Value*>& x) { return m.function(x[0]); }

// The bounds, in ulp: the error of the polynomial plus the roundings after it. Each stands 5 to 10 % above
// the largest error seen on these samples, the room that points between them need. exp: polynomial 1.3
// (9.2e-8 where the result is just below a power of two), 0.5 for the last rounding, the rest in the
// remainder; log1mexp, tanh, sigmoid, softplus and log_sigmoid inherit it and add a division or a logarithm.
// Results near the smallest normal number are checked apart, by absolute error, since they are flushed.
const Case cases[] = {
    {"exp", LOSSC_EMIT(exp), exp_exact, 2.1, -86.9F, 88.72F},
    {"log", LOSSC_EMIT(log), log_exact, 1.2, min_normal, max_value},
    {"log1p", LOSSC_EMIT(log1p), log1p_exact, 1.8, -0.99999994F, max_value},
    {"expm1", LOSSC_EMIT(expm1), expm1_exact, 1.6, -max_value, 88.72F},
    {"log1mexp", LOSSC_EMIT(log1mexp), log1mexp_exact, 3.5, -86.9F, -2 * min_normal},
    {"tanh", LOSSC_EMIT(tanh), tanh_exact, 2.7, -max_value, max_value},
    {"sigmoid", LOSSC_EMIT(sigmoid), sigmoid_exact, 3.5, -87.3F, max_value},
    {"log_sigmoid", LOSSC_EMIT(log_sigmoid), log_sigmoid_exact, 3.0, -max_value, 86.9F},
    {"softplus", LOSSC_EMIT(softplus), softplus_exact, 3.2, -86.9F, max_value},
    {"sqrt", LOSSC_EMIT(sqrt), sqrt_exact, 0.5, 0, max_value},
};

void check_bounds(MathTarget target, const char* title) {
  Jit jit;
  for (const Case& c : cases) add_function(jit, c.name, 1, target, c.emit);
  jit.compile();
  for (const Case& c : cases) {
    std::vector<float> in;
    for (float x : samples()) {
      if (x >= c.low && x <= c.high) in.push_back(x);
    }
    while (in.size() % 8) in.push_back(in.back());
    std::vector<float> out = call(jit, c.name, in);
    double worst = 0;
    float at = 0;
    for (std::size_t i = 0; i < in.size(); ++i) {
      double exact = c.exact(in[i]);
      if (std::abs(exact) < 2.0 * min_normal) {
        if (!(std::abs(out[i]) <= 2.0F * min_normal)) FAIL(c.name << "(" << in[i] << ") = " << out[i]);
        continue;
      }
      double error = ulps(out[i], exact);
      if (error > worst) worst = error, at = in[i];
    }
    std::printf("%-8s %-12s %8zu points: at most %.3f ulp, at %.9g\n", title, c.name, in.size(), worst, at);
    INFO(c.name << "(" << at << "), " << title);
    CHECK(worst <= c.bound);
  }
}

}  // namespace

TEST_CASE("Every function keeps its error bound, the same in vectors and scalars") {
  check_bounds(host_target(), "host");
}

TEST_CASE("The bounds hold without AVX-512 and without fused multiply-add") {
  MathTarget target = host_target();
  if (target.avx512) {
    target.avx512 = false;
    check_bounds(target, "avx2");
  }
  target.fma = false;
  check_bounds(target, "no fma");
}

TEST_CASE("Special values") {
  MathTarget target = host_target();
  const bool flush = target.flush_denormals;
  Jit jit;
  for (const Case& c : cases) add_function(jit, c.name, 1, target, c.emit);
  add_function(jit, "abs", 1, target, LOSSC_EMIT(abs));
  add_function(jit, "sign", 1, target, LOSSC_EMIT(sign));
  add_function(jit, "is_finite", 1, target, LOSSC_EMIT(is_finite));
  jit.compile();

  struct Special {
    const char* name;
    float x, expected;
  };
  const Special specials[] = {
      {"exp", -inf, 0},
      {"exp", -max_value, 0},
      {"exp", -1e4F, 0},
      {"exp", -87.4F, 0},
      {"exp", 0, 1},
      {"exp", -0.0F, 1},
      {"exp", 88.73F, inf},
      {"exp", 1e4F, inf},
      {"exp", max_value, inf},
      {"exp", inf, inf},
      {"log", 0, -inf},
      {"log", -0.0F, -inf},
      {"log", 1, 0},
      {"log", inf, inf},
      {"log", -1, nan_value},
      {"log", -min_normal, nan_value},
      {"log", -inf, nan_value},
      {"log1p", -1, -inf},
      {"log1p", 0, 0},
      {"log1p", inf, inf},
      {"log1p", -1.0000001F, nan_value},
      {"log1p", -inf, nan_value},
      {"log1p", min_normal, min_normal},
      {"expm1", -inf, -1},
      {"expm1", -max_value, -1},
      {"expm1", 0, 0},
      {"expm1", 88.73F, inf},
      {"expm1", inf, inf},
      {"log1mexp", 0, -inf},
      {"log1mexp", -0.0F, -inf},
      {"log1mexp", -inf, 0},
      {"log1mexp", -max_value, 0},
      {"log1mexp", 0.5F, nan_value},
      {"log1mexp", inf, nan_value},
      {"tanh", 0, 0},
      {"tanh", -0.0F, -0.0F},
      {"tanh", inf, 1},
      {"tanh", -inf, -1},
      {"tanh", 10, 1},
      {"tanh", -10, -1},
      {"sigmoid", 0, 0.5F},
      {"sigmoid", inf, 1},
      {"sigmoid", -inf, 0},
      {"sigmoid", max_value, 1},
      {"sigmoid", -max_value, 0},
      {"log_sigmoid", inf, 0},
      {"log_sigmoid", -inf, -inf},
      {"log_sigmoid", -1000, -1000},
      {"softplus", inf, inf},
      {"softplus", -inf, 0},
      {"softplus", 1000, 1000},
      {"sqrt", 0, 0},
      {"sqrt", inf, inf},
      {"sqrt", -1, nan_value},
      {"abs", -2, 2},
      {"abs", -inf, inf},
      {"abs", -0.0F, 0},
      {"sign", 0, 0},
      {"sign", 1e-30F, 1},
      {"sign", -inf, -1},
      {"sign", inf, 1},
      {"is_finite", 0, 1},
      {"is_finite", -max_value, 1},
      {"is_finite", inf, 0},
      {"is_finite", -inf, 0},
      {"is_finite", nan_value, 0},
  };
  for (const Special& s : specials) {
    float got = call_one(jit, s.name, s.x, flush);
    INFO(s.name << "(" << s.x << ") = " << got << ", expected " << s.expected);
    // By value: a zero may have either sign unless the function is odd.
    CHECK((std::isnan(s.expected) ? std::isnan(got) : got == s.expected));
    if (std::string_view(s.name) == "tanh") CHECK(std::signbit(got) == std::signbit(s.expected));
  }

  // Every payload: NaN goes through integer arithmetic in some of them. 0x7fffffff is what NVIDIA GPUs write.
  for (std::uint32_t bits : {0x7fc00000U, 0x7fffffffU, 0xffffffffU, 0x7fc00001U, 0xffc00100U, 0x7f800001U,
                             0xffff0000U, 0x7fc001ffU}) {
    for (const char* name : {"exp", "log", "log1p", "expm1", "log1mexp", "tanh", "sigmoid", "log_sigmoid",
                             "softplus", "sqrt", "abs", "sign"}) {
      INFO(name << "(NaN " << std::hex << bits << ")");
      CHECK(std::isnan(call_one(jit, name, std::bit_cast<float>(bits), flush)));
    }
  }

  if (flush) {
    // Under DAZ a denormal is a zero.
    CHECK(call_one(jit, "log", 1e-40F) == -inf);
    CHECK(call_one(jit, "exp", 1e-40F) == 1);
    CHECK(call_one(jit, "sign", 1e-40F) == 0);
    // The other side of every result of exp: normal or 0.
    for (float x = -90; x < -86; x += 1e-3F) {
      float y = call_one(jit, "exp", x);
      CHECK((y == 0 || y >= min_normal));
    }
  }
}

TEST_CASE("Denormals count where they are not flushed") {
  MathTarget target = host_target();
  target.flush_denormals = false;
  Jit jit;
  add_function(jit, "log", 1, target, LOSSC_EMIT(log));
  jit.compile();
  for (float x : {1e-45F, 1e-40F, 3e-39F, 1.1754942e-38F}) {
    CHECK(ulps(call_one(jit, "log", x, false), std::log(static_cast<double>(x))) <= 1.5);
  }
  CHECK(call_one(jit, "log", 0, false) == -inf);
}

TEST_CASE("exp2 of an exponent that was rounded once") {
  MathTarget target = host_target();
  for (bool avx512 : {true, false}) {
    if (avx512 && !target.avx512) continue;
    target.avx512 = avx512;
    Jit jit;
    add_function(jit, "exp2", 1, target, LOSSC_EMIT(exp2));
    jit.compile();
    std::vector<float> in;
    for (float x : samples()) {
      if (x > -125 && x < 127.9F) in.push_back(x);
    }
    while (in.size() % 8) in.push_back(0);
    std::vector<float> out = call(jit, "exp2", in);
    double worst = 0;
    for (std::size_t i = 0; i < in.size(); ++i) {
      worst = std::max(worst, std::abs(out[i] / std::exp2(static_cast<double>(in[i])) - 1));
    }
    std::printf("%s exp2: relative error at most %.3g\n", avx512 ? "avx512" : "avx2", worst);
    // The polynomial's 9.7e-8, and the roundings on the way to a result just above a power of two.
    CHECK(worst <= 1.7e-7);
    CHECK(call_one(jit, "exp2", 0) == 1);
    for (float x : {-inf, -max_value, -1e4F, -151.0F}) CHECK(call_one(jit, "exp2", x) == 0);
    for (float x = -151; x < -125; x += 0.01F) CHECK(call_one(jit, "exp2", x) <= 0x1p-124F);
    for (float x : {127.95F, 128.0F, 150.0F, 1e10F, max_value, inf}) CHECK(call_one(jit, "exp2", x) >= 1e38F);
    for (std::uint32_t bits : {0x7fc00000U, 0x7fffffffU, 0xffffffffU, 0x7f800001U, 0xffff0000U}) {
      CHECK(std::isnan(call_one(jit, "exp2", std::bit_cast<float>(bits))));
    }
  }
}

TEST_CASE("minimum, maximum and clip keep NaN") {
  MathTarget target = host_target();
  Jit jit;
  add_function(jit, "minimum", 2, target,
               [](VectorMath& m, const std::vector<llvm::Value*>& x) { return m.minimum(x[0], x[1]); });
  add_function(jit, "maximum", 2, target,
               [](VectorMath& m, const std::vector<llvm::Value*>& x) { return m.maximum(x[0], x[1]); });
  add_function(jit, "clip", 3, target,
               [](VectorMath& m, const std::vector<llvm::Value*>& x) { return m.clip(x[0], x[1], x[2]); });
  add_function(jit, "clip_constant", 1, target, [](VectorMath& m, const std::vector<llvm::Value*>& x) {
    return m.clip(x[0], m.constant(x[0]->getType(), -1), m.constant(x[0]->getType(), 2));
  });
  add_function(jit, "constant_maximum", 1, target, [](VectorMath& m, const std::vector<llvm::Value*>& x) {
    return m.maximum(m.constant(x[0]->getType(), -1), x[0]);
  });
  add_function(jit, "nan_bound", 1, target, [](VectorMath& m, const std::vector<llvm::Value*>& x) {
    return m.minimum(m.constant(x[0]->getType(), std::nan("")), x[0]);
  });
  jit.compile();

  const std::vector<float> values = {-inf, -3, -0.5F, 0, 1.25F, 7, inf, nan_value};
  auto expect_min = [](float a, float b) {
    return std::isnan(a) || std::isnan(b) ? nan_value : std::min(a, b);
  };
  auto expect_max = [](float a, float b) {
    return std::isnan(a) || std::isnan(b) ? nan_value : std::max(a, b);
  };
  for (float a : values) {
    for (float b : values) {
      std::vector<float> two(16, a);
      std::fill(two.begin() + 8, two.end(), b);
      INFO(a << ", " << b);
      CHECK(same(call(jit, "minimum", two, 2)[0], expect_min(a, b)));
      CHECK(same(call(jit, "maximum", two, 2)[0], expect_max(a, b)));
      for (float c : values) {
        std::vector<float> three = two;
        three.insert(three.end(), 8, c);
        CHECK(same(call(jit, "clip", three, 3)[0], expect_min(expect_max(a, b), c)));
      }
    }
    CHECK(same(call_one(jit, "clip_constant", a), expect_min(expect_max(a, -1), 2)));
    CHECK(same(call_one(jit, "constant_maximum", a), expect_max(a, -1)));
    CHECK(std::isnan(call_one(jit, "nan_bound", a)));
  }
}
