// Matrix-product plans: oneDNN's inner product and its matmul, with packed and with plain weights.
#include <string>
#include <utility>
#include <vector>

#include "cpu/plans.hpp"

namespace pydlbench::cpu {

namespace {

using dnnl::memory;
using Tag = dnnl::memory::format_tag;

// Layouts of the operand that a network keeps between steps. In inner product its dimensions are
// (n, k), so "ba" is the row-major k x n matrix of the problem and "ab" its transpose.
constexpr std::pair<const char*, Tag> kWeights[] = {
    {"any", Tag::any}, {"plain", Tag::ab}, {"plain", Tag::ba}};

constexpr std::pair<const char*, Tag> kBatchedWeights[] = {
    {"any", Tag::any}, {"plain", Tag::abc}, {"plain", Tag::acb}};

template <typename Descriptor>
void append(std::vector<Candidate>& candidates, const char* primitive, const char* variant,
            const Descriptor& descriptor, std::vector<Argument> arguments,
            const std::vector<std::string>& letters) {
  Candidate candidate{};
  candidate.primitive = primitive;
  candidate.variant = variant;
  candidate.implementation = std::string(primitive) + ":";
  candidate.run = {descriptor, std::move(arguments)};
  append_new(candidates, std::move(candidate), letters);
}

void inner_products(std::vector<Candidate>& candidates, const GemmProblem& p, Pass pass,
                    memory::data_type type) {
  const memory::dims src_dims{p.m, p.k};
  const memory::dims weights_dims{p.n, p.k};
  const memory::dims dst_dims{p.m, p.n};
  const auto f32 = memory::data_type::f32;
  // The caller's weights are (k, n): seen with their dimensions exchanged.
  const PlainTensors plain{
      {src_dims, f32, Tag::ab}, {weights_dims, f32, Tag::ba}, {dst_dims, f32, Tag::ab}};
  const std::vector<std::string> letters{"mk", "nk", "mn"};
  const auto attributes = user_scratchpad();
  auto& engine = cpu_engine();
  const char* name = "inner_product";

  for (const auto& [variant, tag] : kWeights) {
    const memory::desc src(src_dims, type, Tag::ab);
    const memory::desc weights(weights_dims, type, tag);
    const memory::desc dst(dst_dims, type, Tag::ab);
    if (is_forward(pass)) {
      for_each_implementation(dnnl::inner_product_forward::primitive_desc(
                                  engine, forward_kind(pass), src, weights, dst, attributes, true),
                              [&, v = variant](const auto& d) {
                                append(candidates, name, v, d, forward_arguments(d, plain),
                                       letters);
                              });
      continue;
    }
    const dnnl::inner_product_forward::primitive_desc hint(
        engine, dnnl::prop_kind::forward_training, memory::desc(src_dims, type, Tag::any),
        memory::desc(weights_dims, type, Tag::any), memory::desc(dst_dims, type, Tag::any),
        attributes, true);
    if (!hint) return;
    if (pass == Pass::backward_data) {
      for_each_implementation(dnnl::inner_product_backward_data::primitive_desc(
                                  engine, src, weights, dst, hint, attributes, true),
                              [&, v = variant](const auto& d) {
                                append(candidates, name, v, d, backward_data_arguments(d, plain),
                                       letters);
                              });
    } else {
      for_each_implementation(dnnl::inner_product_backward_weights::primitive_desc(
                                  engine, src, weights, dst, hint, attributes, true),
                              [&, v = variant](const auto& d) {
                                append(candidates, name, v, d, backward_weights_arguments(d, plain),
                                       letters);
                              });
    }
  }
}

// The product in oneDNN's terms: left x right = result, each with the role it has in the problem.
struct Product {
  memory::dims left, right, result;
  memory::desc plain_left, plain_right, plain_result;
  std::string left_role, right_role, result_role;
  std::vector<std::string> letters;
};

// The gradient of the weights has two where no inner product knows both orders of it: the second
// one is the transpose of the first.
std::vector<Product> products(const GemmProblem& p, Pass pass) {
  const bool batched = p.batch_count > 1;
  const auto dims = [&](std::int64_t rows, std::int64_t columns) {
    return batched ? memory::dims{p.batch_count, rows, columns} : memory::dims{rows, columns};
  };
  // Row-major as the caller holds it, or the transposed view of what the caller holds row-major.
  const auto plain = [&](std::int64_t rows, std::int64_t columns, bool transpose) {
    const auto tag = batched ? (transpose ? Tag::acb : Tag::abc) : (transpose ? Tag::ba : Tag::ab);
    return memory::desc(dims(rows, columns), memory::data_type::f32, tag);
  };
  const std::string g = batched ? "g" : "";
  if (is_forward(pass)) {
    return {{dims(p.m, p.k),
             dims(p.k, p.n),
             dims(p.m, p.n),
             plain(p.m, p.k, false),
             plain(p.k, p.n, false),
             plain(p.m, p.n, false),
             "src",
             "weights",
             "dst",
             {g + "mk", g + "kn", g + "mn"}}};
  }
  if (pass == Pass::backward_data) {
    return {{dims(p.m, p.n),
             dims(p.n, p.k),
             dims(p.m, p.k),
             plain(p.m, p.n, false),
             plain(p.n, p.k, true),
             plain(p.m, p.k, false),
             "dst",
             "weights",
             "src",
             {g + "mn", g + "nk", g + "mk"}}};
  }
  std::vector<Product> both{{dims(p.k, p.m),
                             dims(p.m, p.n),
                             dims(p.k, p.n),
                             plain(p.k, p.m, true),
                             plain(p.m, p.n, false),
                             plain(p.k, p.n, false),
                             "src",
                             "dst",
                             "weights",
                             {g + "km", g + "mn", g + "kn"}}};
  if (batched) {
    both.push_back({dims(p.n, p.m),
                    dims(p.m, p.k),
                    dims(p.n, p.k),
                    plain(p.n, p.m, true),
                    plain(p.m, p.k, false),
                    plain(p.n, p.k, true),
                    "dst",
                    "src",
                    "weights",
                    {g + "nm", g + "mk", g + "nk"}});
  }
  return both;
}

void matmuls(std::vector<Candidate>& candidates, const GemmProblem& p, Pass pass,
             memory::data_type type) {
  const bool batched = p.batch_count > 1;
  const auto straight = batched ? Tag::abc : Tag::ab;
  const auto across = batched ? Tag::acb : Tag::ba;
  const auto attributes = user_scratchpad();

  // In backward-weights the left operand is an activation's transpose, which memory holds row by
  // row: only that view exists without a copy.
  const auto left_tag = pass == Pass::backward_weights ? across : straight;
  for (const auto& terms : products(p, pass)) {
    for (const auto& [variant, tag] : batched ? kBatchedWeights : kWeights) {
      // Only weights may be packed; what else stands on the right is an activation's gradient.
      if (pass == Pass::backward_weights && tag != straight) continue;
      for_each_implementation(
          dnnl::matmul::primitive_desc(cpu_engine(), memory::desc(terms.left, type, left_tag),
                                       memory::desc(terms.right, type, tag),
                                       memory::desc(terms.result, type, straight), attributes,
                                       true),
          [&, v = variant](const auto& d) {
            append(
                candidates, "matmul", v, d,
                {{DNNL_ARG_SRC, terms.left_role, d.src_desc(), terms.plain_left, false},
                 {DNNL_ARG_WEIGHTS, terms.right_role, d.weights_desc(), terms.plain_right, false},
                 {DNNL_ARG_DST, terms.result_role, d.dst_desc(), terms.plain_result, true}},
                terms.letters);
          });
    }
  }
}

std::vector<Candidate> gemm_candidates(const Fields& fields, Pass pass, Precision precision,
                                       bool /*thorough*/) {
  const auto problem = problem_of<GemmProblem>(fields);
  const auto type = data_type(precision);
  return planned("matrix product", [&](std::vector<Candidate>& candidates) {
    if (problem.batch_count == 1) inner_products(candidates, problem, pass, type);
    matmuls(candidates, problem, pass, type);
  });
}

const Kind gemm("gemm", gemm_candidates);

}  // namespace

}  // namespace pydlbench::cpu
