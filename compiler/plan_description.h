// A plan in words: what plan_print shows as text and as JSON.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "compiler/plan.h"
#include "compiler/plan_names.h"

namespace lossc {

struct StepDescription {
  std::string kind, space, map;  // "map", "reduce", "segment"
  std::vector<Line> values;      // with their helpers
};

struct PhaseDescription {
  std::vector<Line> statistics;  // with their helpers; anchors first, as they are known before the sweep
};

struct RegionDescription {
  std::string name;
  std::vector<std::string> reads,
      writes;               // tensors of the logits' shape; to accumulate reads the gradient too
  std::vector<Line> picks;  // with their helpers
  std::vector<PhaseDescription> phases;
  bool emits = false;
  std::vector<Line> emit_where;  // what the gradient's terms are made of
  struct Term {
    std::string coefficient, basis;
    bool guarded = false;
  };
  std::vector<Term> dense;
  std::vector<Line> sparse;  // gradient[index] = the whole gradient of that element
  std::vector<std::string> stored;
  double bytes_per_row = 0;
};

struct PlanDescription {
  std::vector<std::string> inputs;  // optional ones with a question mark
  std::vector<std::string> results;
  std::vector<Line> rows;         // conditions of rows
  std::string active, live, bad;  // rows that are read; that have a gradient; that are out of range
  std::vector<StepDescription> prologue, epilogue;
  std::vector<RegionDescription> regions;
  std::vector<std::vector<StepDescription>> seams;
  std::map<ir::NodeId, std::string> names;  // what values are called in all these lines
  // Memory beyond inputs and outputs.
  int row_bytes = 0, segment_bytes = 0, pair_bytes = 0;
};

PlanDescription describe(const Plan& plan, const Spec& spec);

}  // namespace lossc
