// The graph as text: every node of it, or one value as a formula.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "ir/graph.h"

namespace lossc::ir {

/// One line a node that the roots reach, operands before users, then the roots by name:
///
///   input logits: element
///   input mask: rows boolean, optional, default 1
///   parameter $tau
///   %3 element = div logits, $tau
///   %5 rows = lse %3
///   loss.ce = %9
///
/// Inputs, parameters, constants and sizes appear by name or value where they are used.
std::string dump(const Graph& graph, const std::vector<std::pair<std::string, NodeId>>& roots);

/// One value as an infix expression on one line. Beyond a few hundred nodes, operands are left as `%id` of
/// the dump.
std::string formula(const Graph& graph, NodeId node);

/// What the node is, with named nodes written as their names.
std::string formula(const Graph& graph, NodeId node, const std::map<NodeId, std::string>& names);

/// The roots as lines `name = expression`, preceded by a line for each subexpression of more than three nodes
/// that is used more than once. Such a line is named after what it holds: p for a softmax, L for an lse, else
/// t.
std::vector<std::string> formula(const Graph& graph,
                                 const std::vector<std::pair<std::string, NodeId>>& roots);

}  // namespace lossc::ir
