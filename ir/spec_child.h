// One child of a spec, read and checked against the definition of its loss type.
#pragma once

#include <map>
#include <string>

#include "ir/spec_reader.h"

namespace lossc::ir {

/// The child under `at`. `block` is the transform of the logits block, which the child's own keys replace.
ChildSpec read_child(const std::string& name, const Cursor& at, const Transform& block,
                     const LossRegistry& registry, References& references);

/// Names that no tensor of a child may have: results, and what belongs to the whole program.
const std::vector<std::string>& reserved_tensors();

/// Names of the tensors that say which rows belong together: one set a batch, never renamed.
const std::vector<std::string>& segment_tensors();

/// Replaces what the object under `at` names (scale, softcap, temperature, order; null switches off) in
/// `transform`; true if it names any. Numbers are called `prefix`.<key>.
bool read_transform(const Cursor& at, const std::string& prefix, References& references,
                    Transform& transform);

/// The input tensors that the children use, by their names after renaming, with what each holds: "labels",
/// "advantages", "rows", "element", ... Throws where one name means two kinds.
std::map<std::string, std::string> spec_tensors(const std::vector<ChildSpec>& children,
                                                const LossRegistry& registry);

}  // namespace lossc::ir
