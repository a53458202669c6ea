// The argument of the generated kernels: see templates/abi.h for its order.
#pragma once

#include <cstring>
#include <vector>

#include "compiler/layout.h"
#include "templates/abi.h"

namespace lossc::cuda {

class ArgumentBlock {
 public:
  explicit ArgumentBlock(const Layout& layout, std::size_t results) {
    const auto some = [](std::size_t n) { return n > 0 ? n : 1; };
    tensors_ = sizeof(Head);
    buffers_ = tensors_ + some(layout.tensors.size()) * sizeof(Tensor);
    maps_ = buffers_ + some(layout.buffers.size()) * sizeof(float*);
    pointers_ = maps_ + some(layout.maps.size()) * sizeof(Map);
    results_ = pointers_ + some(layout.parameters.size()) * sizeof(float*);
    parameters_ = results_ + some(results) * sizeof(float*);
    const std::size_t bytes = parameters_ + some(layout.parameters.size()) * sizeof(float);
    words_.assign((bytes + 7) / 8, 0);
  }

  Head& head() { return at<Head>(0, 0); }
  const Head& head() const { return const_cast<ArgumentBlock*>(this)->head(); }
  Tensor& tensor(std::size_t i) { return at<Tensor>(tensors_, i); }
  float*& buffer(std::size_t i) { return at<float*>(buffers_, i); }
  Map& map(std::size_t i) { return at<Map>(maps_, i); }
  const float*& parameter_pointer(std::size_t i) { return at<const float*>(pointers_, i); }
  float*& result(std::size_t i) { return at<float*>(results_, i); }
  float& parameter(std::size_t i) { return at<float>(parameters_, i); }
  void* data() { return words_.data(); }

 private:
  template <class T>
  T& at(std::size_t begin, std::size_t i) {
    return reinterpret_cast<T*>(reinterpret_cast<char*>(words_.data()) + begin)[i];
  }
  std::size_t tensors_, buffers_, maps_, pointers_, results_, parameters_;
  std::vector<unsigned long long> words_;
};

}  // namespace lossc::cuda
