#include "compiler/cpu/paired.h"

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/IntrinsicsX86.h>

#include <vector>

#include "compiler/cpu/sweep_place.h"

namespace lossc::cpu {

using llvm::Type;
using llvm::Value;

namespace {

constexpr unsigned kWidth = 16, kUnit = 2 * kWidth;

Value* second_half(llvm::IRBuilderBase& b, Value* pointer, DType dtype) {
  return b.CreateConstInBoundsGEP1_64(b.getInt8Ty(), pointer, kWidth * dtype_size(dtype));
}

}  // namespace

VectorPair load_pair(llvm::IRBuilderBase& b, DType dtype, Value* pointer) {
  VectorPair pair{};
  if (dtype != DType::bf16) {
    Value* first = load(b, dtype, pointer, kWidth);
    Value* second = load(b, dtype, second_half(b, pointer, dtype), kWidth);
    for (unsigned v = 0; v < 2; ++v) {
      std::vector<int> elements;
      for (unsigned lane = 0; lane < kWidth; ++lane) elements.push_back(PairedUnit::element(v, lane));
      pair[v] = b.CreateShuffleVector(first, second, elements);
    }
    return pair;
  }
  // A bf16 is the upper half of a float: unpacked behind zeros it is one.
  Type* words = llvm::FixedVectorType::get(b.getInt16Ty(), kUnit);
  Value* loaded = b.CreateAlignedLoad(words, pointer, llvm::Align(2));
  for (unsigned v = 0; v < 2; ++v) {
    std::vector<int> halves;
    for (unsigned lane = 0; lane < kWidth; ++lane) {
      halves.push_back(static_cast<int>(2 * lane));
      halves.push_back(static_cast<int>(kUnit) + PairedUnit::element(v, lane));
    }
    Value* unpacked = b.CreateShuffleVector(llvm::Constant::getNullValue(words), loaded, halves);
    pair[v] = b.CreateBitCast(unpacked, llvm::FixedVectorType::get(b.getFloatTy(), kWidth));
  }
  return pair;
}

void store_pair(llvm::IRBuilderBase& b, DType dtype, const VectorPair& values, Value* pointer,
                ConvertTarget target) {
  // Where element i of the unit lies in the concatenation of both vectors.
  std::vector<int> places(kUnit);
  for (unsigned v = 0; v < 2; ++v) {
    for (unsigned lane = 0; lane < kWidth; ++lane) {
      places[static_cast<std::size_t>(PairedUnit::element(v, lane))] = static_cast<int>(v * kWidth + lane);
    }
  }
  if (dtype == DType::bf16 && target.avx512_bf16) {
    Value* words =
        b.CreateIntrinsic(llvm::Intrinsic::x86_avx512bf16_cvtne2ps2bf16_512, {}, {values[1], values[0]});
    words = b.CreateBitCast(words, llvm::FixedVectorType::get(b.getInt16Ty(), kUnit));
    b.CreateAlignedStore(b.CreateShuffleVector(words, places), pointer, llvm::Align(2));
    return;
  }
  const llvm::ArrayRef<int> order(places);
  store(b, dtype, b.CreateShuffleVector(values[0], values[1], order.take_front(kWidth)), pointer, 0, false,
        target);
  store(b, dtype, b.CreateShuffleVector(values[0], values[1], order.drop_front(kWidth)),
        second_half(b, pointer, dtype), 0, false, target);
}

}  // namespace lossc::cpu
