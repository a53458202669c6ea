#include "ir/evaluate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

#include "ir/evaluate_op.h"
#include "lossc/error.h"

namespace lossc::ir {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::size_t at(NodeId id) {
  return static_cast<std::size_t>(id);
}

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::invalid_argument, message);
}

// Where the elements of `result` find their operand in a value of `space`.
struct Place {
  Space space, result;
  std::size_t vocab;

  std::size_t operator()(std::size_t i) const {
    if (space == result) return i;
    if (space == Space::scalar) return 0;
    return space == Space::rows ? i / vocab : i % vocab;
  }
};

double max_of(std::span<const double> x) {
  double result = -kInfinity;
  for (const double v : x) result = evaluate_op(Op::maximum, result, v);
  return result;
}

// The exponentials are taken relative to the maximum: inf - inf makes every row NaN that has no finite lse.
double log_sum_of(std::span<const double> x, double anchor) {
  double sum = 0;
  for (const double v : x) sum += std::exp(v - anchor);
  return std::log(sum);
}

double argmax_of(std::span<const double> x) {
  std::size_t best = 0;
  double value = -kInfinity;
  for (std::size_t k = 0; k < x.size(); ++k) {
    if (x[k] > value) {
      value = x[k];
      best = k;
    }
  }
  return static_cast<double>(best);
}

double sum_of(std::span<const double> x) {
  double sum = 0;
  for (const double v : x) sum += v;
  return sum;
}

// Element `index` of x, as pick and gather read it.
double read(std::span<const double> x, double index, double beyond) {
  if (index < 0) return 0;
  return index < static_cast<double>(x.size()) ? x[static_cast<std::size_t>(index)] : beyond;
}

}  // namespace

void Evaluator::set(NodeId id, std::vector<double> values) {
  known_.resize(at(graph_.size()), false);
  values_.resize(at(graph_.size()));
  values_[at(id)] = std::move(values);
  known_[at(id)] = true;
}

const std::vector<double>& Evaluator::value(NodeId id) {
  if (id < 0 || id >= graph_.size()) {
    throw Error(ErrorCode::internal, fmt::format("evaluate: {} is no node of the graph", id));
  }
  known_.resize(at(graph_.size()), false);
  values_.resize(at(graph_.size()));
  std::vector<bool> needed(at(id) + 1, false);
  needed[at(id)] = true;
  for (NodeId i = id; i >= 0; --i) {
    if (known_[at(i)]) needed[at(i)] = false;
    if (!needed[at(i)]) continue;
    for (const NodeId in : graph_.node(i).in) {
      if (in != no_node) needed[at(in)] = true;
    }
  }
  for (NodeId i = 0; i <= id; ++i) {
    if (!needed[at(i)]) continue;
    values_[at(i)] = compute(i);
    known_[at(i)] = true;
  }
  return values_[at(id)];
}

std::size_t Evaluator::size_of(Space space) const {
  std::int64_t size = 1;
  switch (space) {
    case Space::scalar:
      break;
    case Space::rows:
      size = inputs_.rows;
      break;
    case Space::vocab:
      size = inputs_.vocab;
      break;
    case Space::element:
      size = inputs_.rows * inputs_.vocab;
      break;
    case Space::segments:
      size = inputs_.segments;
      break;
    case Space::pairs:
      size = inputs_.pairs;
      break;
    default: {
      const std::string& name = graph_.space_name(space);
      const auto it = inputs_.named_sizes.find(name);
      if (it == inputs_.named_sizes.end()) {
        refuse(fmt::format("no size given for the space '{}'; set named_sizes[\"{}\"]", name, name));
      }
      size = it->second;
    }
  }
  if (size < 0)
    refuse(fmt::format("the space '{}' has the negative size {}", graph_.space_name(space), size));
  return static_cast<std::size_t>(size);
}

const std::vector<double>& Evaluator::operand(const Node& node, std::size_t i) const {
  return values_[at(node.in[i])];
}

std::vector<double> Evaluator::compute(NodeId id) const {
  const Node& n = graph_.node(id);
  if (is_pointwise(n.op)) return pointwise(n);
  switch (n.op) {
    case Op::constant:
    case Op::parameter:
    case Op::input:
    case Op::space_size:
      return leaf(id);
    case Op::pick:
      return pick(n);
    case Op::gather:
    case Op::segment_sum:
    case Op::segment_min:
    case Op::segment_max:
      return along_map(id);
    case Op::reduce_sum:
    case Op::reduce_min:
    case Op::reduce_max:
      return reduce(n);
    case Op::all_reduce:
      return operand(n, 0);
    default:
      return over_vocab(n);
  }
}

std::vector<double> Evaluator::leaf(NodeId id) const {
  const Node& n = graph_.node(id);
  if (n.op == Op::constant) return {n.value};
  if (n.op == Op::space_size) return {static_cast<double>(size_of(static_cast<Space>(n.aux)))};
  const std::string& name = graph_.symbol_of(id);
  if (n.op == Op::parameter) {
    const auto it = inputs_.parameters.find(name);
    if (it == inputs_.parameters.end()) refuse(fmt::format("no value given for the parameter '{}'", name));
    return {it->second};
  }
  const std::size_t size = size_of(n.space);
  const auto it = inputs_.tensors.find(name);
  if (it == inputs_.tensors.end()) {
    if (n.aux == 0) refuse(fmt::format("no values given for the tensor '{}'", name));
    return std::vector<double>(size, n.value);
  }
  if (it->second.size() != size) {
    refuse(fmt::format("the tensor '{}' has {} values; its space '{}' has {}", name, it->second.size(),
                       graph_.space_name(n.space), size));
  }
  return it->second;
}

std::vector<double> Evaluator::pointwise(const Node& n) const {
  static const std::vector<double> absent{0};
  const std::size_t vocab = size_of(Space::vocab);
  const std::vector<double>* x[3];
  Place place[3];
  for (std::size_t i = 0; i < 3; ++i) {
    const bool present = n.in[i] != no_node;
    x[i] = present ? &operand(n, i) : &absent;
    place[i] = {present ? graph_.node(n.in[i]).space : Space::scalar, n.space, vocab};
  }
  std::vector<double> result(size_of(n.space));
  for (std::size_t i = 0; i < result.size(); ++i) {
    result[i] = evaluate_op(n.op, (*x[0])[place[0](i)], (*x[1])[place[1](i)], (*x[2])[place[2](i)]);
  }
  return result;
}

std::vector<double> Evaluator::over_vocab(const Node& n) const {
  const std::vector<double>& x = operand(n, 0);
  if (graph_.node(n.in[0]).space == Space::vocab) return {sum_of(x)};
  const std::size_t rows = size_of(Space::rows), vocab = size_of(Space::vocab);
  std::vector<double> result(size_of(n.space));
  for (std::size_t row = 0; row < rows; ++row) {
    const std::span<const double> line(x.data() + row * vocab, vocab);
    const double anchor = max_of(line);
    switch (n.op) {
      case Op::lse:
        result[row] = anchor + log_sum_of(line, anchor);
        break;
      case Op::anchor:
      case Op::vocab_max:
        result[row] = anchor;
        break;
      case Op::log_sum:
        result[row] = log_sum_of(line, anchor);
        break;
      case Op::vocab_sum:
        result[row] = sum_of(line);
        break;
      case Op::vocab_argmax:
        result[row] = argmax_of(line);
        break;
      case Op::softmax: {
        const double log_sum = log_sum_of(line, anchor);
        for (std::size_t k = 0; k < vocab; ++k) {
          result[row * vocab + k] = std::exp(line[k] - anchor - log_sum);
        }
        break;
      }
      case Op::expect: {
        const std::vector<double>& a = operand(n, 1);
        const Place place{graph_.node(n.in[1]).space, Space::element, vocab};
        const double log_sum = log_sum_of(line, anchor);
        double sum = 0;
        for (std::size_t k = 0; k < vocab; ++k) {
          const double p = std::exp(line[k] - anchor - log_sum);
          if (p != 0) sum += p * a[place(row * vocab + k)];
        }
        result[row] = sum;
        break;
      }
      default:
        throw Error(ErrorCode::internal, fmt::format("evaluate: {} is not known", op_name(n.op)));
    }
  }
  return result;
}

std::vector<double> Evaluator::pick(const Node& n) const {
  const std::vector<double>&x = operand(n, 0), &index = operand(n, 1);
  const std::size_t vocab = size_of(Space::vocab);
  const std::size_t pitch = graph_.node(n.in[0]).space == Space::element ? vocab : 0;
  std::vector<double> result(index.size());
  for (std::size_t row = 0; row < result.size(); ++row) {
    result[row] = read({x.data() + row * pitch, vocab}, index[row], kNaN);
  }
  return result;
}

const std::vector<std::int64_t>& Evaluator::map_of(NodeId id, Space from) const {
  const std::string& name = graph_.symbol_of(id);
  const auto it = inputs_.maps.find(name);
  if (it == inputs_.maps.end()) refuse(fmt::format("no indices given for the map '{}'", name));
  if (it->second.size() != size_of(from)) {
    refuse(fmt::format("the map '{}' has {} indices; its space '{}' has {}", name, it->second.size(),
                       graph_.space_name(from), size_of(from)));
  }
  return it->second;
}

std::vector<double> Evaluator::along_map(NodeId id) const {
  const Node& n = graph_.node(id);
  const std::vector<double>& x = operand(n, 0);
  if (n.op == Op::gather) {
    const std::vector<std::int64_t>& map = map_of(id, n.space);
    const double beyond = n.kind == Kind::real ? kNaN : 0;
    std::vector<double> result(map.size());
    for (std::size_t i = 0; i < map.size(); ++i) result[i] = read(x, static_cast<double>(map[i]), beyond);
    return result;
  }
  const std::vector<std::int64_t>& map = map_of(id, graph_.node(n.in[0]).space);
  const Op combine = n.op == Op::segment_sum ? Op::add : n.op == Op::segment_min ? Op::minimum : Op::maximum;
  const double none = combine == Op::add ? 0 : combine == Op::minimum ? kInfinity : -kInfinity;
  std::vector<double> result(size_of(n.space), none);
  for (std::size_t i = 0; i < map.size(); ++i) {
    if (map[i] < 0 || static_cast<std::size_t>(map[i]) >= result.size()) continue;
    double& slot = result[static_cast<std::size_t>(map[i])];
    slot = evaluate_op(combine, slot, x[i]);
  }
  return result;
}

std::vector<double> Evaluator::reduce(const Node& n) const {
  const std::vector<double>& x = operand(n, 0);
  if (n.op == Op::reduce_sum) return {sum_of(x)};
  if (n.op == Op::reduce_max) return {max_of(x)};
  double result = kInfinity;
  for (const double v : x) result = evaluate_op(Op::minimum, result, v);
  return {result};
}

}  // namespace lossc::ir
