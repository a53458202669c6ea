// What a caller's tensor must look like to be read by position or by row: shapes, strides, types and overlap
// are checked here, for every backend.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "compiler/cpu/kernel_abi.h"
#include "compiler/layout.h"
#include "lossc/tensor.h"
#include "runtime/program_impl.h"

namespace lossc {

using TensorMap = std::map<std::string, TensorView, std::less<>>;

/// Throws Error(invalid_argument).
[[noreturn]] void refuse(const std::string& message);

/// Null where nothing is bound to the name.
const TensorView* find(const TensorMap& bound, std::string_view name);
/// Throws with `why` where nothing is bound to the name.
const TensorView& need(const TensorMap& bound, std::string_view name, std::string_view why);

void check_integer(std::string_view name, const TensorView& view);
/// The integer at a byte address of host memory.
std::int64_t integer_at(const char* address, DType dtype);
/// The only number of a tensor in host memory.
std::int64_t scalar_integer(std::string_view name, const TensorView& view);
/// Throws for a number of segments that no batch of this size has.
void check_num_segments(std::int64_t segments, std::int64_t rows);
/// Throws for more rows than kernels can count.
void check_rows(std::int64_t rows);
/// The rows of the logits, which must be bound.
std::int64_t count_rows(const Program::Impl& program, const TensorMap& bound);

/// [count], any stride; [batch, sequence] with batch * sequence = count; or one number for all.
cpu::Strided row_tensor(const std::string& name, const TensorView& view, std::int64_t count);
/// [rows, vocab] or [batch, sequence, vocab]. `first` is the row that the view begins with: the address is
/// moved so that rows may be counted from 0.
cpu::Strided element_tensor(const TensorSlot& slot, const TensorView& view, std::int64_t vocab,
                            std::int64_t rows, std::int64_t first);
/// A written tensor must hold each row in memory of its own.
void check_rows_apart(const std::string& name, const TensorView& view);
/// Outputs may not share memory with anything else, but for the gradient in place.
void check_overlap(const Program::Impl& program, const TensorMap& bound);

}  // namespace lossc
