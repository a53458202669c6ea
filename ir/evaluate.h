// The interpreter: the value of any node in double precision, computed as the comments of ir/graph.h say.
// Slow and plain, it is what the compiled kernels and the derivative are checked against. Every value is kept
// whole, so an element value costs 8 bytes x rows x vocab.
//
// Special values: a -inf element has probability 0; a row with +inf, NaN or only -inf has lse, log_sum,
// expect and softmax NaN. vocab_argmax ignores NaN; of a row without a value above -inf it is 0. Minimum,
// maximum and the reductions named after them propagate NaN; of nothing they are +inf and -inf. Along a map,
// a negative index is none: gather reads 0 there; an index beyond the to-space is read as NaN by gather (0 as
// an index or condition) and skipped by segment reductions.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace lossc::ir {

/// Sizes and values by name.
struct EvaluationInputs {
  std::int64_t rows = 0, vocab = 0, segments = 0, pairs = 0;
  std::map<std::string, std::int64_t> named_sizes;

  /// Dense in their space (element: rows x vocab, row after row). Conditions are 0 or 1, indices whole
  /// numbers.
  std::map<std::string, std::vector<double>> tensors;
  /// For every element of a map's from-space, its index in the to-space; negative: none.
  std::map<std::string, std::vector<std::int64_t>> maps;
  std::map<std::string, double> parameters;
};

/// Computes what is asked for, once. Both arguments must outlive the evaluator. Throws
/// Error(invalid_argument) where a value is missing or has another size than its space.
class Evaluator {
 public:
  Evaluator(const Graph& graph, const EvaluationInputs& inputs) : graph_(graph), inputs_(inputs) {}
  Evaluator(const Graph&&, const EvaluationInputs&) = delete;
  Evaluator(const Graph&, const EvaluationInputs&&) = delete;

  /// The node's values, dense in its space. The reference stays valid as long as the evaluator.
  const std::vector<double>& value(NodeId id);
  /// Gives a node its values, dense in its space, before it or anything that uses it is computed.
  void set(NodeId id, std::vector<double> values);
  double scalar(NodeId id) { return value(id).at(0); }

 private:
  std::size_t size_of(Space space) const;
  const std::vector<std::int64_t>& map_of(NodeId id, Space from) const;
  const std::vector<double>& operand(const Node& node, std::size_t i) const;

  std::vector<double> compute(NodeId id) const;
  std::vector<double> leaf(NodeId id) const;
  std::vector<double> pointwise(const Node& node) const;
  std::vector<double> over_vocab(const Node& node) const;
  std::vector<double> pick(const Node& node) const;
  std::vector<double> along_map(NodeId id) const;
  std::vector<double> reduce(const Node& node) const;

  const Graph& graph_;
  const EvaluationInputs& inputs_;
  std::deque<std::vector<double>> values_;
  std::deque<bool> known_;
};

}  // namespace lossc::ir
