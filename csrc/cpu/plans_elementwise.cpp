// Element-wise arithmetic with broadcasting: oneDNN's binary, eltwise, prelu and reorder, and loops
// of our own.
#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cpu/plans.hpp"
#include "cpu/pointwise/plan_builder.hpp"
#include "cpu/pointwise/threads.hpp"

namespace pydlbench::cpu {

namespace {

using namespace pointwise;
using dnnl::algorithm;

constexpr std::size_t kMax = 3;
constexpr const char* kRoles[kMax] = {"src", "src2", "src3"};

struct Op {
  std::string_view name;
  std::optional<Arithmetic> own;  // of our loops
  std::optional<algorithm> one;   // of oneDNN's eltwise, with its parameters
  float alpha = 0.0f, beta = 0.0f;
  std::optional<algorithm> two{};  // of oneDNN's binary
};

const std::vector<Op>& ops() {
  static const std::vector<Op> all{
      {"abs", Arithmetic::abs, algorithm::eltwise_abs},
      {"neg", Arithmetic::neg, algorithm::eltwise_linear, -1.0f},
      {"square", Arithmetic::square, algorithm::eltwise_square},
      {"sqrt", Arithmetic::sqrt, algorithm::eltwise_sqrt},
      {"rsqrt", Arithmetic::rsqrt, algorithm::eltwise_pow, 1.0f, -0.5f},
      {"exp", {}, algorithm::eltwise_exp},
      {"log", {}, algorithm::eltwise_log},
      {"rint", Arithmetic::rint, algorithm::eltwise_round},
      {"floor", Arithmetic::floor, {}},
      {"ceil", Arithmetic::ceil, {}},
      {"sign", Arithmetic::sign, {}},
      {"power", {}, algorithm::eltwise_pow, 1.0f},  // beta is its number
      {"xlogy", Arithmetic::xlogy, {}},
      {"xlogx", Arithmetic::xlogx, {}},
      {"hardshrink", Arithmetic::hardshrink, {}},
      {"softshrink", Arithmetic::softshrink, {}},
      {"threshold", Arithmetic::threshold, {}},
      {"add", Arithmetic::add, {}, 0.0f, 0.0f, algorithm::binary_add},
      {"mul", Arithmetic::mul, {}, 0.0f, 0.0f, algorithm::binary_mul},
      {"div", Arithmetic::div, {}, 0.0f, 0.0f, algorithm::binary_div},
      {"max", Arithmetic::max, {}, 0.0f, 0.0f, algorithm::binary_max},
      {"min", Arithmetic::min, {}, 0.0f, 0.0f, algorithm::binary_min},
      {"cast-from-fp32", {}, {}},
      {"cast-to-fp32", {}, {}},
      {"cast-from-int32", {}, {}},
      {"cast-from-uint8", {}, {}},
      {"cast-from-bool", {}, {}},
      {"leaky-relu", Arithmetic::leaky_relu, {}},
      {"add-square", Arithmetic::add_square, {}},
      {"sum3", Arithmetic::sum3, {}},
      {"lerp", Arithmetic::lerp, {}},
      {"addcmul", Arithmetic::addcmul, {}},
      {"addcdiv", Arithmetic::addcdiv, {}},
      {"clamp", Arithmetic::clamp, {}},
      {"leaky-relu-gradient", Arithmetic::leaky_relu_gradient, {}},
      {"select", Arithmetic::select, {}},
      {"eq", Arithmetic::eq, {}, 0.0f, 0.0f, algorithm::binary_eq},
      {"ne", Arithmetic::ne, {}, 0.0f, 0.0f, algorithm::binary_ne},
      {"lt", Arithmetic::lt, {}, 0.0f, 0.0f, algorithm::binary_lt},
      {"le", Arithmetic::le, {}, 0.0f, 0.0f, algorithm::binary_le},
      {"gt", Arithmetic::gt, {}, 0.0f, 0.0f, algorithm::binary_gt},
      {"ge", Arithmetic::ge, {}, 0.0f, 0.0f, algorithm::binary_ge},
  };
  return all;
}

struct Problem {
  const Op* op;
  std::vector<memory::dims> operands;
  memory::dims dst;
  float number;
  bool in_place;

  bool compares() const { return op->own >= Arithmetic::eq; }  // the result is a mask
  // The operand that is a mask, or the number of operands.
  std::size_t mask() const { return op->own == Arithmetic::select ? 2 : operands.size(); }
};

Problem problem_from(Fields fields) {
  Problem p{};
  auto name = fields.take<std::string>("op");
  p.in_place = take_in_place(name);
  for (const Op& one : ops()) {
    if (one.name == name) p.op = &one;
  }
  if (p.op == nullptr) throw Unsupported("no elementwise kernel named " + name);
  for (const auto* role : kRoles) {
    const auto dims = fields.take<std::vector<std::int64_t>>(role);
    if (!dims.empty()) p.operands.emplace_back(dims.begin(), dims.end());
  }
  p.number = static_cast<float>(fields.take<double>("number"));
  fields.check_all_taken();
  PYDLBENCH_CHECK(!p.operands.empty(), "there are operands");
  p.dst = p.operands[0];
  for (const auto& dims : p.operands) {
    PYDLBENCH_CHECK(dims.size() == p.dst.size(), "operands have as many dimensions");
    for (std::size_t i = 0; i < dims.size(); ++i) p.dst[i] = std::max(p.dst[i], dims[i]);
  }
  PYDLBENCH_CHECK(!p.in_place || p.operands[0] == p.dst, "what is overwritten holds the result");
  return p;
}

void with_eltwise(PlanBuilder& builder, const Problem& p, const Argument& dst) {
  const auto src = builder.vector("src", Use::input, p.operands[0], builder.type, DNNL_ARG_SRC);
  const float beta = p.op->name == "power" ? p.number : p.op->beta;
  for_each_implementation(dnnl::eltwise_forward::primitive_desc(
                              cpu_engine(), forward_kind(builder.pass), *p.op->one, src.desc,
                              dst.desc, p.op->alpha, beta, user_scratchpad(), true),
                          [&](const auto& d) { builder.add_primitive("eltwise", d, {src, dst}); });
}

void with_prelu(PlanBuilder& builder, const Problem& p, const Argument& dst) {
  if (p.operands[0] != p.dst) return;
  const auto src = builder.vector("src", Use::input, p.dst, builder.type, DNNL_ARG_SRC);
  const auto slope =
      builder.vector("src2", Use::input, p.operands[1], builder.type, DNNL_ARG_WEIGHTS);
  for_each_implementation(
      dnnl::prelu_forward::primitive_desc(cpu_engine(), forward_kind(builder.pass), src.desc,
                                          slope.desc, dst.desc, user_scratchpad(), true),
      [&](const auto& d) { builder.add_primitive("prelu", d, {src, slope, dst}); });
}

// A conversion between the type of the precision and another one. oneDNN rounds to the nearest
// integer, where frameworks truncate.
void with_cast(PlanBuilder& builder, const Problem& p) {
  using Type = memory::data_type;
  const bool to = p.op->name == "cast-to-fp32";
  if (p.op->name == "cast-from-int32" && builder.type != Type::f32) {
    throw Unsupported("oneDNN converts int32 to fp32 only; nearest: fp32");
  }
  const auto other = p.op->name == "cast-from-int32"                ? Type::s32
                     : p.op->name.find("fp32") != std::string::npos ? Type::f32
                                                                    : Type::u8;
  const auto src =
      builder.vector("src", Use::input, p.dst, to ? builder.type : other, DNNL_ARG_FROM);
  const auto dst =
      builder.vector("dst", Use::output, p.dst, to ? other : builder.type, DNNL_ARG_TO);
  builder.add_primitive("reorder",
                        dnnl::reorder::primitive_desc(cpu_engine(), src.desc, cpu_engine(),
                                                      dst.desc, user_scratchpad()),
                        {src, dst});
}

// oneDNN broadcasts only its second source, and adds and subtracts without a factor.
void with_binary(PlanBuilder& builder, const Problem& p, const Argument& dst) {
  auto how = *p.op->two;
  if (how == algorithm::binary_add && p.number != 1.0f) {
    if (p.number != -1.0f) return;
    how = algorithm::binary_sub;
  }
  std::size_t first = 0, second = 1;
  if (p.operands[0] != p.dst) {
    if (p.operands[1] != p.dst || p.compares() || how == algorithm::binary_sub ||
        how == algorithm::binary_div) {
      return;
    }
    std::swap(first, second);
  }
  const auto operand = [&](std::size_t which, int index) {
    return builder.vector(kRoles[which], Use::input, p.operands[which], builder.type, index);
  };
  const auto left = operand(first, DNNL_ARG_SRC_0), right = operand(second, DNNL_ARG_SRC_1);
  for_each_implementation(
      dnnl::binary::primitive_desc(cpu_engine(), how, left.desc, right.desc, dst.desc,
                                   user_scratchpad(), true),
      [&](const auto& d) { builder.add_primitive("binary", d, {left, right, dst}); });
}

// oneDNN's sum does not broadcast.
void with_sum(PlanBuilder& builder, const Problem& p, const Argument& dst) {
  std::vector<Argument> arguments;
  std::vector<memory::desc> sources;
  for (std::size_t i = 0; i < p.operands.size(); ++i) {
    if (p.operands[i] != p.dst) return;
    arguments.push_back(builder.vector(kRoles[i], Use::input, p.dst, builder.type,
                                       DNNL_ARG_MULTIPLE_SRC + static_cast<int>(i)));
    sources.push_back(arguments.back().desc);
  }
  arguments.push_back(dst);
  const std::vector<float> factors(sources.size(), 1.0f);
  builder.add_primitive(
      "sum", dnnl::sum::primitive_desc(cpu_engine(), dst.desc, factors, sources, user_scratchpad()),
      arguments);
}

// Strides of an operand along each dimension of the result; 0 for broadcast dimensions.
memory::dims steps(const memory::dims& dims) {
  memory::dims found(dims.size(), 0);
  Index step = 1;
  for (std::size_t i = dims.size(); i-- > 0; step *= dims[i]) found[i] = dims[i] == 1 ? 0 : step;
  return found;
}

// Frameworks compute a third power (in the GELU of GPT-2) by products; oneDNN by a logarithm.
std::optional<Arithmetic> own_loop(const Problem& p) {
  return p.op->name == "power" && p.number == 3.0f ? Arithmetic::cube : p.op->own;
}

void with_loops(PlanBuilder& builder, const Problem& p, Arithmetic own, const Argument& dst) {
  std::vector<Argument> arguments;
  std::vector<memory::dims> moves;
  for (std::size_t i = 0; i < p.operands.size(); ++i) {
    const bool mask = i == p.mask();
    arguments.push_back(builder.vector(mask ? "mask" : kRoles[i], Use::input, p.operands[i],
                                       mask ? memory::data_type::u8 : builder.type));
    moves.push_back(steps(p.operands[i]));
  }
  arguments.push_back(dst);
  const Index row = p.dst.back();
  Index elements = 1;
  for (const auto size : p.dst) elements *= size;
  const auto item = memory::data_type_size(builder.type);
  const auto written = memory::data_type_size(dst.desc.get_data_type());
  const auto mask = p.mask();
  const auto work = [=, op = own, dims = p.dst, number = p.number](const Kernels& k,
                                                                   bool streaming) {
    return [=, &k](Pointers pointers, void*) {
      on_threads(elements, [&](Index thread, Index threads) {
        const Span span = share(elements, 64, thread, threads);
        std::array<const void*, kMax> from{};
        std::array<bool, kMax> whole{};
        for (Index i = span.begin; i < span.end;) {
          const Index within = i % row;
          const Index length = std::min(span.end - i, row - within);
          for (std::size_t o = 0; o < moves.size(); ++o) {
            Index offset = 0, left = i;
            for (std::size_t d = dims.size(); d-- > 0; left /= dims[d]) {
              offset += left % dims[d] * moves[o][d];
            }
            from[o] = at(pointers[o], offset, o == mask ? 1 : item);
            whole[o] = moves[o].back() != 0;
          }
          k.arithmetic(op, from.data(), whole.data(), at(pointers[moves.size()], i, written),
                       length, number, streaming);
          i += length;
        }
      });
    };
  };
  if (!p.compares()) return builder.add_streaming("", arguments, 0, work);
  builder.add_own("", arguments, 0, [&](const Kernels& k) { return work(k, false); });
}

std::vector<Candidate> elementwise_candidates(const Fields& fields, Pass pass, Precision precision,
                                              bool thorough) {
  const auto p = problem_from(fields);
  std::vector<Candidate> candidates;
  PointwiseProblem named{};
  named.op = p.op->name;
  PlanBuilder builder{named,    pass,       supported_type("elementwise", pass, precision),
                      thorough, candidates, "plain"};
  builder.in_place = p.in_place;
  const auto dst =
      builder.vector(p.compares() ? "mask" : "dst", Use::output, p.dst,
                     p.compares() ? memory::data_type::u8 : builder.type, DNNL_ARG_DST);
  with_onednn(named.op, [&] {
    if (p.op->one) with_eltwise(builder, p, dst);
    if (p.op->two) with_binary(builder, p, dst);
    if (named.op == "sum3") with_sum(builder, p, dst);
    if (named.op == "leaky-relu") with_prelu(builder, p, dst);
    if (named.op.rfind("cast", 0) == 0) with_cast(builder, p);
  });
  if (const auto own = own_loop(p)) with_loops(builder, p, *own, dst);
  for (auto& one : candidates) one.layout = "plain";
  return candidates;
}

const Kind elementwise("elementwise", elementwise_candidates);

}  // namespace

}  // namespace pydlbench::cpu
