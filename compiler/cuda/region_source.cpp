#include "compiler/cuda/region_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "compiler/cuda/element_printer.h"
#include "compiler/cuda/operations.h"
#include "compiler/cuda/value_printer.h"
#include "lossc/error.h"

namespace lossc::cuda {

using ir::no_node;
using ir::Node;
using ir::NodeId;
using ir::Op;
using ir::Space;

namespace {

/// The element code of one sweep.
struct Sweep {
  explicit Sweep(const SourceContext& c) : terms(c, "        "), anchors(c, "        ") {}
  ElementPrinter terms, anchors;
  std::vector<NodeId> sums, tops, anchored;  // statistics; softmax arguments
  std::vector<std::string> sum_text, top_text, anchor_text;
};

class RegionGenerator {
 public:
  RegionGenerator(const SourceContext& context, int index)
      : c_(context),
        index_(index),
        region_(context.plan.regions[static_cast<std::size_t>(index)]),
        from_sweeps_(values_from_sweeps(context.graph(), region_)),
        emit_(context, "      ") {
    for (NodeId id : region_.picks) own_.insert(id);
    for (const Phase& phase : region_.phases) own_.insert(phase.statistics.begin(), phase.statistics.end());
    for (std::size_t k = 0; k < region_.phases.size(); ++k) print_phase(k);
    if (region_.emit) print_emit();
  }

  RegionSource generate() {
    RegionSource source;
    source.shape.phases = static_cast<int>(region_.phases.size());
    source.shape.emits = region_.emit;
    source.shape.width = width();
    for (NodeId in : region_.reads) {
      source.shape.vector_bytes += width() * static_cast<int>(dtype_size(c_.dtype(in)));
    }
    // Printed first, because they tell what a row holds.
    const std::string sweeps = phases() + emit();
    const std::string functions = mark() + active() + skip() + begin() + sweeps;
    source.text = fmt::format("struct Region{} {{\n", index_) + constants() + row_struct() + tensors() +
                  functions + "};\n";
    return source;
  }

 private:
  // ---------------------------------------------------------------------------------------------------------------
  // What the region is made of

  // softmax(x) and softmax(x) * a are formed from exp(x - anchor); the factor 1 / sum goes into the
  // coefficient.
  NodeId softmax_of(NodeId basis) const {
    const Node& n = c_.node(basis);
    if (n.op == Op::softmax) return n.in[0];
    if (n.op == Op::zero_mul && c_.node(n.in[0]).op == Op::softmax) return c_.node(n.in[0]).in[0];
    return no_node;
  }
  NodeId find(Op op, NodeId x) const {
    for (NodeId id = x + 1; id < c_.graph().size(); ++id) {
      if (c_.node(id).op == op && c_.node(id).in[0] == x) return id;
    }
    throw Error(ErrorCode::internal, fmt::format("a softmax without its {}", ir::op_name(op)));
  }
  bool owns(NodeId id) const { return own_.count(id) > 0; }
  // Whether a row value is computed from a sweep of this region.
  bool from_sweep(NodeId id) const { return from_sweeps_[static_cast<std::size_t>(id)]; }
  bool picks_from_sweep() const {
    return std::any_of(region_.picks.begin(), region_.picks.end(),
                       [&](NodeId id) { return from_sweep(c_.node(id).in[1]); });
  }
  // Elements that fill 16 bytes of the narrowest type.
  int width() const {
    std::size_t narrowest = region_.emit ? dtype_size(c_.spec.gradient_dtype) : 4;
    for (NodeId in : region_.reads) narrowest = std::min(narrowest, dtype_size(c_.dtype(in)));
    return narrowest == 2 ? 8 : 4;
  }
  bool accumulates() const { return region_.emit && c_.plan.gradient == GradientMode::accumulate; }

  void print_phase(std::size_t k) {
    Sweep sweep(c_);
    for (NodeId id : region_.phases[k].statistics) {
      const Node& n = c_.node(id);
      switch (n.op) {
        case Op::anchor:
          sweep.anchored.push_back(n.in[0]);
          sweep.anchor_text.push_back(sweep.anchors.value(n.in[0]));
          break;
        case Op::log_sum:
          sweep.sums.push_back(id);
          sweep.sum_text.push_back(sweep.terms.exponential(n.in[0]));
          break;
        case Op::expect:
          sweep.sums.push_back(id);
          sweep.sum_text.push_back(sweep.terms.weighted(n.in[0], n.in[1]));
          break;
        case Op::vocab_sum:
          sweep.sums.push_back(id);
          sweep.sum_text.push_back(sweep.terms.value(n.in[0]));
          break;
        case Op::vocab_max:
        case Op::vocab_argmax:
          sweep.tops.push_back(id);
          sweep.top_text.push_back(sweep.terms.value(n.in[0]));
          break;
        default:
          throw Error(ErrorCode::internal, fmt::format("{} is no statistic of a sweep", ir::op_name(n.op)));
      }
    }
    sweeps_.push_back(std::move(sweep));
  }

  void print_emit() {
    std::string total;
    int i = -1;
    for (const ir::DenseTerm& t : c_.plan.loss.dense) {
      const Node& n = c_.node(t.basis);
      const std::string coefficient = fmt::format("c{}", ++i);
      std::string term = coefficient;
      if (n.op != Op::constant || n.value != 1) {
        std::string basis;
        if (n.op == Op::softmax) {
          basis = emit_.exponential(n.in[0]);
        } else if (const NodeId x = softmax_of(t.basis); x != no_node) {
          basis = emit_.weighted(x, n.in[1]);
        } else {
          basis = emit_.value(t.basis);
        }
        if (t.guarded) basis = fmt::format("({} != 0.0f ? {} : 0.0f)", coefficient, basis);
        term += " * " + basis;
      }
      total += (total.empty() ? "" : " + ") + term;
    }
    gradient_text_ = total.empty() ? "0.0f" : total;
  }

  // ---------------------------------------------------------------------------------------------------------------
  // Declarations

  std::string constants() const {
    std::size_t sums = 0, tops = 0;
    for (const Sweep& s : sweeps_) {
      sums = std::max(sums, s.sums.size());
      tops = std::max({tops, s.tops.size(), s.anchored.size()});
    }
    return fmt::format(
        "  static constexpr int kVocab = cuda::kVocab, kWidth = {}, kSweeps = {};\n"
        "  static constexpr int kMaxSums = {}, kMaxTops = {}, kSparse = {};\n"
        "  static constexpr bool kEmits = {}, kAccumulates = {};\n"
        "  typedef {} Gradient;\n\n",
        width(), region_.phases.size() + (region_.emit ? 1 : 0), sums, tops,
        region_.emit ? c_.plan.loss.sparse.size() : 0, region_.emit, accumulates(),
        element_type(c_.spec.gradient_dtype));
  }

  std::string row_struct() const {
    std::string text = "  struct Row {\n    int live;\n";
    for (const auto& [name, type] : fields_) text += fmt::format("    {} {};\n", type, name);
    return text + "  };\n\n";
  }

  std::string tensors() const {
    std::string raw, input, streams, elements, open, places, narrowest;
    auto stream = [&](std::string_view type, const std::string& name, int tensor, DType dtype) {
      const std::size_t size = dtype_size(dtype);
      streams += fmt::format("    {} {};\n", type, name);
      open += fmt::format("    s.{} = address(a.tensors[{}], row);\n", name, tensor);
      places +=
          fmt::format("{}reinterpret_cast<u64>(s.{} + head * {})", places.empty() ? "" : " | ", name, size);
      if (narrowest.empty() && size * static_cast<std::size_t>(width()) == 16) narrowest = "s." + name;
    };
    for (NodeId in : region_.reads) {
      const std::string v = c_.name(in);
      raw += fmt::format("    Vector<{}, kWidth> {};\n", element_type(c_.dtype(in)), v);
      input += fmt::format("    float {};\n", v);
      elements += fmt::format("{}raw.{}.get(i)", elements.empty() ? "" : ", ", v);
      stream("const char*", v, c_.layout.tensor_of.at(in), c_.dtype(in));
    }
    if (region_.emit) stream("char*", "gradient", c_.layout.gradient, c_.spec.gradient_dtype);
    // A single tensor is cut at its own multiples of 16 bytes.
    const bool one = places.find('|') == std::string::npos;
    return "  struct alignas(16) Raw {\n" + raw + "  };\n  struct Input {\n" + input +
           "  };\n  struct Streams {\n" + streams + "  };\n" +
           fmt::format("  LOSSC_INLINE Input input(const Raw& raw, int i) {{ return Input{{{}}}; }}\n",
                       elements) +
           "  LOSSC_INLINE Streams open(const Args& a, i64 row) {\n    Streams s;\n" + open +
           "    return s;\n  }\n" +
           fmt::format("  LOSSC_INLINE const char* first(const Streams& s) {{ return {}; }}\n",
                       narrowest.empty() ? "nullptr" : narrowest) +
           "  LOSSC_INLINE bool aligned(const Streams& s, int head) {\n    return " +
           (one ? "true" : "((" + places + ") & 15) == 0") + ";\n  }\n" + fetch_function() + "\n";
  }

  // How a row is copied into shared memory, in the order of Raw.
  std::string fetch_function() const {
    std::string copies;
    for (NodeId in : region_.reads) {
      copies +=
          fmt::format("    to = copy_async<Vector<{}, kWidth>, kStride>(to, s.{} + i64(element) * {});\n",
                      element_type(c_.dtype(in)), c_.name(in), dtype_size(c_.dtype(in)));
    }
    return "  template <int kStride>\n  LOSSC_INLINE void fetch(uint4* to, const Streams& s, int element) "
           "{\n" +
           copies + "  }\n";
  }

  // How a sweep reads its inputs: vectors, and single elements.
  std::string access_functions(const std::set<NodeId>& inputs) const {
    std::string load, read;
    for (NodeId in : inputs) {
      load += fmt::format("      raw.{0}.template load<kKeep>(s.{0} + i64(element) * {1}, policy);\n",
                          c_.name(in), dtype_size(c_.dtype(in)));
      read += fmt::format("      x.{0} = {1}::read(s.{0} + i64(element) * {2});\n", c_.name(in),
                          element_type(c_.dtype(in)), dtype_size(c_.dtype(in)));
    }
    return "    template <Keep kKeep>\n"
           "    LOSSC_INLINE void load(Raw& raw, const Streams& s, int element, u64 policy) {\n" +
           load + "    }\n    LOSSC_INLINE Input read(const Streams& s, int element) {\n      Input x;\n" +
           read + "      return x;\n    }\n";
  }

  // ---------------------------------------------------------------------------------------------------------------
  // Row code

  void field(const std::string& name, std::string_view type = "float") { fields_.emplace(name, type); }

  // Values of rows. What is printed `behind` a sweep takes from the row what was known before it.
  ValuePrinter printer(std::string indent = "    ", bool behind = false) {
    local_.clear();
    ValuePrinter values(
        c_, "r", Space::rows,
        [this](NodeId id) -> std::string {
          if (owns(id)) {
            if (local_.count(id) > 0) return c_.name(id);
            field(c_.name(id), type_of(c_.node(id).kind));
            return "row." + c_.name(id);
          }
          const std::string stored = fmt::format("a.buffers[{}][r]", c_.layout.buffer_of.at(id));
          return c_.node(id).kind == ir::Kind::index ? fmt::format("static_cast<int>({})", stored) : stored;
        },
        std::move(indent));
    if (behind) {
      values.known = [this](NodeId id) -> std::string {
        const Node& n = c_.node(id);
        if (n.op == Op::constant || owns(id) || from_sweep(id)) return {};
        field(c_.name(id), type_of(n.kind));
        hoisted_.insert(id);
        return "row." + c_.name(id);
      };
    }
    return values;
  }

  void set(ValuePrinter& rows, const std::string& name, std::string_view type, const std::string& value) {
    field(name, type);
    if (value != "row." + name) rows.line(fmt::format("row.{} = {};", name, value));
  }

  std::string element_row(NodeId input) const {
    return fmt::format("address(a.tensors[{}], r)", c_.layout.tensor_of.at(input));
  }

  void pick(ValuePrinter& rows, NodeId id) {
    rows.pick(id, element_row(c_.node(id).in[0]));
    local_.insert(id);
    set(rows, c_.name(id), "float", c_.name(id));
  }

  /// 1 / sum of exponentials as sweeps form them.
  std::string inverse(ValuePrinter& rows, NodeId x) {
    if (inverses_.count(x) == 0) {
      const NodeId log_sum = find(Op::log_sum, x);
      const std::string name = c_.name(x, "inverse");
      if (owns(log_sum)) {
        rows.line(fmt::format("const float {} = 1.0f / row.{};", name, c_.name(x, "sum")));
      } else {
        rows.line(fmt::format("const float {} = expf(-{});", name, rows.value(log_sum)));
      }
      inverses_.insert(x);
    }
    return c_.name(x, "inverse");
  }

  // Stores what the sweep `k` reads of the row, or, after the last one, what outlives the region.
  void stage(ValuePrinter& rows, std::size_t k) {
    inverses_.clear();
    if (k < sweeps_.size()) {
      operands(rows, sweeps_[k].terms);
      operands(rows, sweeps_[k].anchors);
      return;
    }
    if (region_.emit) {
      operands(rows, emit_);
      int i = 0;
      for (const ir::DenseTerm& t : c_.plan.loss.dense) {
        std::string coefficient = rows.value(t.coefficient);
        // A softmax of which the row counts for no child may have no finite sum.
        if (const NodeId x = softmax_of(t.basis); x != no_node) {
          coefficient = fmt::format("zero_mul({}, {})", coefficient, inverse(rows, x));
        }
        set(rows, fmt::format("c{}", i++), "float", coefficient);
      }
      i = 0;
      for (const ir::SparseTerm& t : c_.plan.loss.sparse) {
        set(rows, fmt::format("sparse{}", i), "float", rows.value(t.value));
        set(rows, fmt::format("place{}", i++), "int", rows.value(t.index));
      }
    }
    for (NodeId id : region_.stored) {
      rows.line(fmt::format("a.buffers[{}][r] = {};", c_.layout.buffer_of.at(id), rows.value(id)));
    }
  }

  void operands(ValuePrinter& rows, const ElementPrinter& element) {
    std::set<NodeId> done;
    auto store = [&](NodeId id) {
      if (!done.insert(id).second) return;
      if (owns(id)) {  // stands in the row already, or will when the sweep's anchors are found
        field(c_.name(id), type_of(c_.node(id).kind));
        return;
      }
      set(rows, c_.name(id), type_of(c_.node(id).kind), rows.value(id));
    };
    for (NodeId id : element.rows()) store(id);
    for (NodeId id : element.divisors()) {
      set(rows, c_.name(id, "per"), "float", fmt::format("1.0f / {}", rows.value(id)));
    }
    for (NodeId x : element.anchors()) store(find(Op::anchor, x));
    for (NodeId x : element.inverses()) set(rows, c_.name(x, "inverse"), "float", inverse(rows, x));
  }

  // ---------------------------------------------------------------------------------------------------------------
  // Functions

  // Rows whose label or segment is out of range are counted once, by the first region.
  std::string mark() {
    ValuePrinter rows = printer();
    std::string text = "  LOSSC_INLINE void mark(const Args& a, i64 r) {\n";
    if (index_ == 0 && computable(c_.plan.loss.bad)) {
      const std::string bad = rows.value(c_.plan.loss.bad);
      text += rows.statements() + fmt::format("    if ({}) mark_bad(a.head.status, r);\n", bad);
    }
    return text + "  }\n";
  }
  bool computable(NodeId id) const { return id != no_node && c_.number.count(id) > 0; }

  std::string active() {
    ValuePrinter rows = printer();
    const std::string v = rows.value(c_.plan.loss.active);
    return "  LOSSC_INLINE bool active(const Args& a, i64 r) {\n" + rows.statements() +
           fmt::format("    return {};\n  }}\n", v);
  }

  std::string skip() {
    std::string text = "  LOSSC_INLINE void skip(const Args& a, i64 r) {\n";
    for (NodeId id : region_.stored) {
      text += fmt::format("    a.buffers[{}][r] = 0.0f;\n", c_.layout.buffer_of.at(id));
    }
    return text + "  }\n";
  }

  std::string begin() {
    ValuePrinter rows = printer();
    for (NodeId id : region_.picks) {
      if (!from_sweep(c_.node(id).in[1])) pick(rows, id);
    }
    stage(rows, 0);
    for (NodeId id : hoisted_) set(rows, c_.name(id), type_of(c_.node(id).kind), rows.value(id));
    if (region_.emit) rows.line(fmt::format("row.live = {};", rows.value(c_.plan.loss.live)));
    return "  LOSSC_INLINE void begin(const Args& a, i64 r, Row& row) {\n" + rows.statements() + "  }\n\n";
  }

  // The members of a sweep's operand struct and how they are read.
  void members(const ElementPrinter& element, std::string& declared, std::string& assigned) const {
    std::set<std::string> done;
    auto add = [&](std::string_view type, const std::string& name, const std::string& value) {
      if (!done.insert(name).second) return;
      declared += fmt::format("      {} {};\n", type, name);
      assigned += fmt::format("{}{}({})", assigned.empty() ? "" : ", ", name, value);
    };
    for (NodeId id : element.rows()) add(type_of(c_.node(id).kind), c_.name(id), "row." + c_.name(id));
    for (NodeId id : element.divisors()) add("float", c_.name(id, "per"), "row." + c_.name(id, "per"));
    for (NodeId x : element.anchors()) {
      add("float", c_.name(x, "anchor"), fmt::format("row.{}", c_.name(find(Op::anchor, x))));
    }
    for (NodeId x : element.inverses()) add("float", c_.name(x, "inverse"), "row." + c_.name(x, "inverse"));
  }

  std::string operand_struct(const std::string& name, const ElementPrinter& element,
                             const std::string& function, const std::string& body) const {
    std::string declared, assigned;
    members(element, declared, assigned);
    return fmt::format(
        "    struct {0} {{\n{1}      __device__ __forceinline__ explicit {0}(const Row& row){2}{3} {{}}\n"
        "      __device__ __forceinline__ void {4} const {{\n{5}{6}      }}\n    }};\n",
        name, declared, assigned.empty() ? "" : " : ", assigned, function, element.statements(), body);
  }

  std::string phases() {
    std::string text;
    for (std::size_t k = 0; k < sweeps_.size(); ++k) text += phase(k);
    return text;
  }

  std::string keep(std::size_t sweep) const {
    const std::size_t sweeps = sweeps_.size() + (region_.emit ? 1 : 0);
    if (sweeps == 1) return "Keep::normal";
    return sweep + 1 == sweeps ? "Keep::first" : "Keep::last";
  }

  std::string phase(std::size_t k) {
    Sweep& s = sweeps_[k];
    std::string text = fmt::format(
        "  struct Phase{} {{\n    static constexpr int kSums = {}, kTops = {}, kAnchors = {};\n"
        "    static constexpr Keep kKeep = {};\n    static constexpr bool kPhase = true, kPicks = {};\n",
        k, s.sums.size(), s.tops.size(), s.anchored.size(), keep(k), picks_from_sweep());
    std::set<NodeId> inputs = s.terms.tensors();
    inputs.insert(s.anchors.tensors().begin(), s.anchors.tensors().end());
    text += access_functions(inputs);

    std::string body;
    for (std::size_t i = 0; i < s.anchored.size(); ++i)
      body += fmt::format("        v[{}] = {};\n", i, s.anchor_text[i]);
    if (!s.anchored.empty()) {
      text += operand_struct("Arguments", s.anchors, "arguments(const Input& x, float* v)", body);
      text += "    LOSSC_INLINE void set_anchors(Row& row, const float* tops, bool exact) {\n";
      for (std::size_t i = 0; i < s.anchored.size(); ++i) {
        const std::string anchor = c_.name(find(Op::anchor, s.anchored[i])),
                          sum = c_.name(s.anchored[i], "sum");
        field(anchor);
        field(sum);
        // A softmax whose sum was good keeps its anchor, and so its bits, whatever another one needs.
        text += fmt::format("      if (!exact || !good_sum(row.{})) row.{} = tops[{}];\n", sum, anchor, i);
      }
      text += "    }\n";
    }
    body.clear();
    for (std::size_t i = 0; i < s.sums.size(); ++i)
      body += fmt::format("        sums[{}] = {};\n", i, s.sum_text[i]);
    for (std::size_t i = 0; i < s.tops.size(); ++i)
      body += fmt::format("        tops[{}] = {};\n", i, s.top_text[i]);
    text += operand_struct("Operands", s.terms, "terms(const Input& x, float* sums, float* tops)", body);
    return text + good(s) + finish(k) + "  };\n\n";
  }

  // Keeps the sums of exponentials; false when one of them has outgrown its sampled anchor.
  std::string good(const Sweep& s) const {
    std::string stores, good;
    for (std::size_t i = 0; i < s.sums.size(); ++i) {
      const Node& n = c_.node(s.sums[i]);
      if (n.op != Op::log_sum) continue;
      stores += fmt::format("      row.{} = sums[{}];\n", c_.name(n.in[0], "sum"), i);
      good += fmt::format("{}good_sum(sums[{}])", good.empty() ? "" : " && ", i);
    }
    return "    LOSSC_INLINE bool good(Row& row, const float* sums) {\n" + stores +
           fmt::format("      return {};\n    }}\n", good.empty() ? "true" : good);
  }

  // What follows from a phase's sums.
  std::string finish(std::size_t k) {
    const Sweep& s = sweeps_[k];
    ValuePrinter rows = printer("      ", true);
    for (std::size_t i = 0; i < s.sums.size(); ++i) {
      const Node& n = c_.node(s.sums[i]);
      if (n.op != Op::log_sum) continue;
      const std::string sum = c_.name(n.in[0], "sum");
      field(sum);
      set(rows, c_.name(s.sums[i]), "float", fmt::format("logf(row.{})", sum));
    }
    inverses_.clear();
    for (std::size_t i = 0; i < s.sums.size(); ++i) {
      const Node& n = c_.node(s.sums[i]);
      if (n.op == Op::vocab_sum) set(rows, c_.name(s.sums[i]), "float", fmt::format("sums[{}]", i));
      if (n.op == Op::expect) {
        set(rows, c_.name(s.sums[i]), "float", fmt::format("sums[{}] * {}", i, inverse(rows, n.in[0])));
      }
    }
    for (std::size_t i = 0; i < s.tops.size(); ++i) {
      if (c_.node(s.tops[i]).op == Op::vocab_max) {
        set(rows, c_.name(s.tops[i]), "float", fmt::format("tops[{}]", i));
      } else {
        set(rows, c_.name(s.tops[i]), "int", fmt::format("places[{0}] == 0x7fffffff ? 0 : places[{0}]", i));
      }
    }
    for (NodeId id : region_.picks) {
      if (from_sweep(c_.node(id).in[1])) pick(rows, id);
    }
    rows.line("{");
    stage(rows, k + 1);
    rows.line("}");
    return "    LOSSC_INLINE void finish(const Args& a, i64 r, Row& row, const float* sums, const float* "
           "tops,\n"
           "                             const int* places) {\n" +
           rows.statements() + "    }\n";
  }

  std::string emit() {
    if (!region_.emit) return "  struct Emit {};\n";
    const std::size_t terms = c_.plan.loss.dense.size(), sparse = c_.plan.loss.sparse.size();
    std::string declared, assigned;
    members(emit_, declared, assigned);
    for (std::size_t i = 0; i < terms; ++i) {
      declared += fmt::format("      float c{};\n", i);
      assigned += fmt::format("{}c{}(row.c{})", assigned.empty() ? "" : ", ", i, i);
    }
    const std::set<NodeId>& inputs = emit_.tensors();
    std::string text = fmt::format(
        "  struct Emit {{\n    static constexpr Keep kKeep = {}, kStore = {};\n{}{}"
        "    __device__ __forceinline__ explicit Emit(const Row& row){}{} {{}}\n"
        "    __device__ __forceinline__ float gradient(const Input& x) const {{\n{}      return {};\n    "
        "}}\n  }};\n",
        keep(sweeps_.size()), sweeps_.empty() ? "Keep::normal" : "Keep::first", access_functions(inputs),
        declared, assigned.empty() ? "" : " : ", assigned, emit_.statements(), gradient_text_);
    std::string index, value;
    for (std::size_t i = 0; i < sparse; ++i) {
      index += fmt::format("    if (k == {0}) return row.place{0};\n", i);
      value += fmt::format("    if (k == {0}) return row.sparse{0};\n", i);
    }
    return text + "  LOSSC_INLINE int sparse_index(const Row& row, int k) {\n" + index +
           "    return -1;\n  }\n" + "  LOSSC_INLINE float sparse_value(const Row& row, int k) {\n" + value +
           "    return 0.0f;\n  }\n";
  }

  const SourceContext& c_;
  int index_;
  const Region& region_;
  std::set<NodeId> own_;  // statistics and picks of this region
  std::vector<bool> from_sweeps_;
  std::vector<Sweep> sweeps_;
  ElementPrinter emit_;
  std::string gradient_text_;
  std::map<std::string, std::string> fields_;  // of Row
  std::set<NodeId> local_, inverses_;
  std::set<NodeId> hoisted_;  // what code behind sweeps needs and does not depend on them
};

}  // namespace

RegionSource region_source(const SourceContext& context, int region) {
  return RegionGenerator(context, region).generate();
}

}  // namespace lossc::cuda
