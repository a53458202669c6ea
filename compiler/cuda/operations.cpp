#include "compiler/cuda/operations.h"

#include <fmt/format.h>

#include <cmath>

#include "lossc/error.h"

namespace lossc::cuda {

using ir::Op;

std::string literal(double value) {
  const auto v = static_cast<float>(value);
  if (std::isnan(v)) return "nan()";
  if (std::isinf(v)) return v > 0 ? "infinity()" : "-infinity()";
  std::string text = fmt::format("{:.9g}", v);
  for (int digits = 1; digits < 9; ++digits) {
    const std::string shorter = fmt::format("{:.{}g}", v, digits);
    if (std::stof(shorter) == v && std::signbit(std::stof(shorter)) == std::signbit(v)) {
      text = shorter;
      break;
    }
  }
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text + "f";
}

std::string_view type_of(ir::Kind kind) {
  return kind == ir::Kind::real ? "float" : kind == ir::Kind::index ? "int" : "bool";
}

std::string operation(Op op, const std::array<std::string, 3>& in) {
  const auto& [x, y, z] = in;
  auto call = [&](const char* name) { return fmt::format("{}({})", name, x); };
  auto call2 = [&](const char* name) { return fmt::format("{}({}, {})", name, x, y); };
  auto infix = [&](const char* sign) { return fmt::format("{} {} {}", x, sign, y); };
  switch (op) {
    case Op::neg:
      return fmt::format("-({})", x);
    case Op::exp:
      return call("expf");
    case Op::log:
      return call("logf");
    case Op::log1p:
      return call("log1pf");
    case Op::expm1:
      return call("expm1f");
    case Op::log1mexp:
      return call("log1mexp");
    case Op::tanh:
      return call("tanhf");
    case Op::sigmoid:
      return call("sigmoid");
    case Op::log_sigmoid:
      return call("log_sigmoid");
    case Op::softplus:
      return call("softplus");
    case Op::sqrt:
      return call("sqrtf");
    case Op::abs:
      return call("fabsf");
    case Op::sign:
      return call("sign");
    case Op::is_finite:
      return call("is_finite");
    case Op::logical_not:
      return fmt::format("!{}", x);
    case Op::stop_gradient:
      return x;
    case Op::to_real:
      return call("static_cast<float>");
    case Op::add:
      return infix("+");
    case Op::sub:
      return infix("-");
    case Op::mul:
      return infix("*");
    case Op::div:
      return infix("/");
    case Op::zero_mul:
      return call2("zero_mul");
    case Op::minimum:
      return call2("minimum");
    case Op::maximum:
      return call2("maximum");
    case Op::less:
      return infix("<");
    case Op::less_equal:
      return infix("<=");
    case Op::equal:
      return infix("==");
    case Op::logical_and:
      return infix("&&");
    case Op::logical_or:
      return infix("||");
    case Op::select:
      return fmt::format("{} ? {} : {}", x, y, z);
    case Op::clip:
      return fmt::format("clip({}, {}, {})", x, y, z);
    default:
      throw Error(ErrorCode::internal, fmt::format("{} is no point-wise operation", ir::op_name(op)));
  }
}

}  // namespace lossc::cuda
