// Loads and stores of every element type, as machine code of this host, against decoding and rounding by
// search.
#include "compiler/cpu/convert.h"

#if defined(__unix__)
#include <sys/mman.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <random>

#include "compiler/cpu/paired.h"
#include "compiler/cpu/sweep_place.h"
#include "lossc/error.h"
#include "tests/catch.h"
#include "tests/jit.h"

using lossc::DType;
using lossc::test::FlushDenormals;
using lossc::test::Jit;
namespace cpu = lossc::cpu;

namespace {

struct Format {
  DType dtype;
  const char* name;
  int exponent_bits, mantissa_bits;
};
const Format formats[] = {{DType::bf16, "bf16", 8, 7}, {DType::fp16, "fp16", 5, 10}};

/// The number that 16 bits stand for.
double decode(const Format& f, std::uint16_t bits) {
  int exponent = bits >> f.mantissa_bits & ((1 << f.exponent_bits) - 1);
  int mantissa = bits & ((1 << f.mantissa_bits) - 1);
  int bias = (1 << (f.exponent_bits - 1)) - 1;
  double value = 0;
  if (exponent == (1 << f.exponent_bits) - 1) {
    value = mantissa ? std::nan("") : HUGE_VAL;
  } else {
    int fraction = exponent ? mantissa | 1 << f.mantissa_bits : mantissa;
    value = std::ldexp(fraction, std::max(exponent, 1) - bias - f.mantissa_bits);
  }
  return bits & 0x8000 ? -value : value;
}

/// The nearest of the format's numbers, ties to even bits; infinity counts as the number after the largest.
std::uint16_t encode(const Format& f, float x) {
  const std::uint16_t infinity = static_cast<std::uint16_t>(((1 << f.exponent_bits) - 1) << f.mantissa_bits);
  const double beyond = std::ldexp(1.0, 1 << (f.exponent_bits - 1));
  const std::uint16_t sign = std::signbit(x) ? 0x8000 : 0;
  const double magnitude = std::abs(static_cast<double>(x));
  if (magnitude >= beyond) return sign | infinity;
  std::uint16_t low = 0, high = infinity;  // decode(low) <= magnitude < decode(high)
  while (high - low > 1) {
    auto middle = static_cast<std::uint16_t>((low + high) / 2);
    (decode(f, middle) <= magnitude ? low : high) = middle;
  }
  double above = high == infinity ? beyond : decode(f, high);
  double down = magnitude - decode(f, low), up = above - magnitude;
  return sign | (down < up || (down == up && low % 2 == 0) ? low : high);
}

llvm::Value* at(Jit::Builder& b, DType dtype, llvm::Value* base, llvm::Value* index) {
  return b.CreateGEP(cpu::memory_type(b, dtype), base, index);
}

}  // namespace

TEST_CASE("Every bf16 and fp16 number loads as itself") {
  for (const Format& f : formats) {
    Jit jit;
    jit.add("vector", 8, [&](Jit::Builder& b, llvm::Value* in, llvm::Value* out, llvm::Value* i) {
      cpu::store(b, DType::fp32, cpu::load(b, f.dtype, at(b, f.dtype, in, i), 8), at(b, DType::fp32, out, i));
    });
    jit.add("scalar", 1, [&](Jit::Builder& b, llvm::Value* in, llvm::Value* out, llvm::Value* i) {
      cpu::store(b, DType::fp32, cpu::load_scalar(b, f.dtype, at(b, f.dtype, in, i)),
                 at(b, DType::fp32, out, i));
    });
    jit.compile();
    std::vector<std::uint16_t> in(1 << 16);
    for (std::size_t i = 0; i < in.size(); ++i) in[i] = static_cast<std::uint16_t>(i);
    for (const char* form : {"vector", "scalar"}) {
      std::vector<float> out(in.size(), -1);
      auto run = jit.address(form);
      {
        FlushDenormals scope;
        run(in.data(), out.data(), 1 << 16);
      }
      int wrong = 0;
      for (std::size_t i = 0; i < in.size(); ++i) {
        double expected = decode(f, in[i]);
        bool equal = std::isnan(expected)
                         ? std::isnan(out[i])
                         : expected == out[i] && std::signbit(expected) == std::signbit(out[i]);
        wrong += !equal;
      }
      INFO(f.name << " " << form);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("Stores round to nearest even and keep NaN") {
  std::vector<float> in;
  std::mt19937 random(7);
  for (const Format& f : formats) {
    for (std::uint32_t i = 0; i < 0x10000;
         i += 3) {  // every third number, the middle above it, and both sides of that
      double value = decode(f, static_cast<std::uint16_t>(i)),
             next = decode(f, static_cast<std::uint16_t>(i + 1));
      if (!std::isfinite(value) || !std::isfinite(next)) continue;
      float middle = static_cast<float>((value + next) / 2);
      for (float x : {static_cast<float>(value), middle, std::nextafter(middle, 1e38F),
                      std::nextafter(middle, -1e38F)}) {
        in.push_back(x);
      }
    }
  }
  for (int i = 0; i < 100000; ++i) in.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(random())));
  for (float x :
       {65504.0F, 65519.996F, 65520.0F, 65536.0F, 3.3895314e38F, 3.3961776e38F, 3.4e38F, HUGE_VALF}) {
    in.push_back(x);
    in.push_back(-x);
  }
  for (std::uint32_t bits : {0x7f800001U, 0x7fffffffU, 0xffffffffU, 0x7f80ffffU, 0xff800001U, 0x7fc00000U}) {
    in.push_back(std::bit_cast<float>(bits));
  }
  while (in.size() % 8) in.push_back(0);
  const auto n = static_cast<std::int64_t>(in.size());

  for (const Format& f : formats) {
    Jit jit;
    jit.add("vector", 8, [&](Jit::Builder& b, llvm::Value* from, llvm::Value* to, llvm::Value* i) {
      cpu::store(b, f.dtype, cpu::load(b, DType::fp32, at(b, DType::fp32, from, i), 8),
                 at(b, f.dtype, to, i));
    });
    jit.add("scalar", 1, [&](Jit::Builder& b, llvm::Value* from, llvm::Value* to, llvm::Value* i) {
      cpu::store(b, f.dtype, cpu::load_scalar(b, DType::fp32, at(b, DType::fp32, from, i)),
                 at(b, f.dtype, to, i));
    });
    jit.compile();
    std::vector<std::uint16_t> vector(in.size(), 1), scalar(in.size(), 2);
    auto run_vector = jit.address("vector"), run_scalar = jit.address("scalar");
    {
      FlushDenormals scope;
      run_vector(in.data(), vector.data(), n);
      run_scalar(in.data(), scalar.data(), n);
    }
    CHECK(vector == scalar);
    int wrong = 0;
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (std::isnan(in[i])) {
        wrong += !std::isnan(decode(f, vector[i])) || !(vector[i] >> (f.mantissa_bits - 1) & 1);  // quiet
        continue;
      }
      std::uint16_t expected = encode(f, in[i]);
      // DAZ may take a denormal float for zero; fp16 cannot tell, and bf16 is rounded by integers.
      wrong += vector[i] != expected;
    }
    INFO(f.name);
    CHECK(wrong == 0);
  }
}

#if defined(__unix__)
TEST_CASE("Masked loads and stores touch nothing outside the mask") {
  // A buffer that ends where the process may not read.
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  void* memory = mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  auto* end = static_cast<unsigned char*>(memory) + page;
  REQUIRE(mprotect(end, page, PROT_NONE) == 0);

  for (DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    Jit jit;
    // One iteration; the count stands where n does, so lanes below it are on.
    auto mask_of = [](Jit::Builder& b) {
      llvm::Value* count = b.CreateTrunc(b.GetInsertBlock()->getParent()->getArg(2), b.getInt32Ty());
      llvm::Value* lanes = llvm::ConstantDataVector::get(
          b.getContext(), llvm::ArrayRef<std::uint32_t>{0, 1, 2, 3, 4, 5, 6, 7});
      return b.CreateICmpULT(lanes, b.CreateVectorSplat(8, count));
    };
    jit.add("load", 8, [&](Jit::Builder& b, llvm::Value* in, llvm::Value* out, llvm::Value*) {
      llvm::Value* filler = llvm::ConstantFP::getInfinity(b.getFloatTy(), true);
      cpu::store(b, DType::fp32, cpu::masked_load(b, dtype, in, mask_of(b), filler), out);
    });
    jit.add("store", 8, [&](Jit::Builder& b, llvm::Value* in, llvm::Value* out, llvm::Value*) {
      cpu::masked_store(b, dtype, cpu::load(b, DType::fp32, in, 8), out, mask_of(b));
    });
    jit.compile();
    auto load = jit.address("load"), store = jit.address("store");
    const std::size_t size = lossc::dtype_size(dtype);
    for (std::int64_t count = 1; count <= 8; ++count) {
      unsigned char* place = end - static_cast<std::size_t>(count) * size;
      std::memset(place - 8, 0x55, 8);
      std::vector<float> values = {1, -2, 3, -4, 5, -6, 7, -8}, back(8, 0);
      store(values.data(), place, count);
      load(place, back.data(), count);
      for (std::int64_t i = 0; i < 8; ++i) {
        auto lane = static_cast<std::size_t>(i);
        CHECK(back[lane] == (i < count ? values[lane] : -HUGE_VALF));
      }
      CHECK(place[-1] == 0x55);
    }
  }
  munmap(memory, 2 * page);
}
#endif

TEST_CASE("Pairs of vectors are dealt in fours and come back in order") {
  cpu::ConvertTarget target;
#if defined(__x86_64__)
  target.avx512_bf16 = __builtin_cpu_supports("avx512bf16");
#endif
  for (DType dtype : {DType::bf16, DType::fp16, DType::fp32}) {
    INFO(lossc::dtype_name(dtype));
    Jit jit;
    jit.add("copy", 32, [&](Jit::Builder& b, llvm::Value* in, llvm::Value* out, llvm::Value*) {
      cpu::store_pair(b, dtype, cpu::load_pair(b, dtype, in), out, target);
    });
    jit.add("deal", 32, [&](Jit::Builder& b, llvm::Value* in, llvm::Value* out, llvm::Value*) {
      const cpu::VectorPair pair = cpu::load_pair(b, dtype, in);
      cpu::store(b, DType::fp32, pair[0], out);
      cpu::store(b, DType::fp32, pair[1], b.CreateConstGEP1_64(b.getInt8Ty(), out, 64));
    });
    jit.compile();
    const std::size_t size = lossc::dtype_size(dtype);
    std::vector<std::uint32_t> in(33), out(33, 0xabababab);  // not aligned: it begins at byte 2
    char* from = reinterpret_cast<char*>(in.data()) + (size == 2 ? 2 : 4);
    char* to = reinterpret_cast<char*>(out.data()) + (size == 2 ? 2 : 4);
    std::vector<float> values(32), dealt(32);
    for (std::size_t i = 0; i < 32; ++i) {
      const auto bits = static_cast<std::uint16_t>(0x3f00 + 7 * i);
      if (size == 2) {
        std::memcpy(from + 2 * i, &bits, 2);
        values[i] = static_cast<float>(decode(formats[dtype == DType::fp16], bits));
      } else {
        values[i] = static_cast<float>(i) + 0.3F;
        std::memcpy(from + 4 * i, &values[i], 4);
      }
    }
    jit.address("copy")(from, to, 32);
    CHECK(std::memcmp(from, to, 32 * size) == 0);
    CHECK(std::memcmp(to + 32 * size, "\xab\xab", size == 2 ? 2 : 0) == 0);
    jit.address("deal")(from, dealt.data(), 32);
    for (unsigned v = 0; v < 2; ++v) {
      for (unsigned lane = 0; lane < 16; ++lane) {
        CHECK(dealt[16 * v + lane] == values[static_cast<std::size_t>(cpu::PairedUnit::element(v, lane))]);
      }
    }
  }
}

TEST_CASE("Other element types are refused") {
  llvm::LLVMContext context;
  Jit::Builder builder(context);
  CHECK_THROWS_AS(cpu::memory_type(builder, DType::i64), lossc::Error);
}
