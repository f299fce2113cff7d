// Matrix-product plans: oneDNN's inner product and its matmul, with packed and with plain weights.
#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "core/batch.hpp"
#include "cpu/fused.hpp"
#include "cpu/plans.hpp"

namespace pydlbench::cpu {

namespace {

using dnnl::memory;
using Tag = dnnl::memory::format_tag;

// Layouts of the weights, which a network keeps between steps: packed, row-major, or transposed.
struct WeightsLayout {
  const char* variant;
  bool packed, across;
};
constexpr WeightsLayout kWeights[] = {
    {"any", true, false}, {"plain", false, false}, {"plain", false, true}};

// A contiguous batch of `rows` x `columns` matrices; if `across`, each is stored transposed.
memory::desc matrices(const memory::dims& batch, memory::dim rows, memory::dim columns,
                      memory::data_type type, bool across) {
  auto dims = batch;
  dims.insert(dims.end(), {rows, columns});
  memory::dims strides(dims.size(), 1);
  strides[across ? batch.size() + 1 : batch.size()] = across ? rows : columns;
  memory::dim step = rows * columns;
  for (std::size_t i = batch.size(); i-- > 0; step *= batch[i]) strides[i] = step;
  return {dims, type, strides};
}

memory::desc stored(const memory::desc& plain, memory::data_type type,
                    const WeightsLayout& layout) {
  auto dims = plain.get_dims();
  if (layout.packed) return {dims, type, Tag::any};
  const auto columns = dims.back(), rows = dims[dims.size() - 2];
  dims.resize(dims.size() - 2);
  return matrices(dims, rows, columns, type, layout.across);
}

// The request, and the results so far.
struct Search {
  const GemmProblem& problem;
  Pass pass;
  const FusedOps& fused;
  std::vector<Candidate>& candidates;

  bool wants(const WeightsLayout& layout) const {
    return problem.weights_tag == "any" || !layout.packed;
  }

  template <typename Descriptor>
  void append(const char* primitive, const char* variant, const Descriptor& descriptor,
              std::vector<Argument> arguments, const std::vector<std::string>& letters,
              const FusedShape& shape) {
    const auto is_weights = [](const Argument& one) { return one.role == "weights"; };
    const auto& weights = *std::find_if(arguments.begin(), arguments.end(), is_weights);
    if (!in_wanted_order(weights)) return;
    Candidate candidate{};
    candidate.primitive = primitive;
    candidate.variant = variant;
    candidate.implementation = std::string(primitive) + ":";
    fused.append(descriptor, shape, arguments);
    candidate.run = {descriptor, std::move(arguments)};
    append_new(candidates, std::move(candidate), letters);
  }

 private:
  // A vector is the same in either order. The caller's array is (k, n).
  bool in_wanted_order(const Argument& weights) const {
    if (problem.weights_tag == "any" || problem.k == 1 || problem.n == 1) return true;
    const auto rank = weights.desc.get_dims().size();
    const auto last_is_inner = [rank](const memory::desc& desc) {
      return desc.get_strides()[rank - 1] == 1;
    };
    return (last_is_inner(weights.desc) == last_is_inner(weights.plain)) ==
           (problem.weights_tag == "kn");
  }
};

void inner_products(Search& search) {
  const auto& p = search.problem;
  const auto types = search.fused.types();
  const auto f32 = memory::data_type::f32;
  // The weights of an inner product have dimensions (n, k): describe the caller's as transposed.
  const PlainTensors plain{matrices({}, p.m, p.k, f32, false), matrices({}, p.n, p.k, f32, true),
                           matrices({}, p.m, p.n, search.fused.plain_type(), false)};
  const std::vector<std::string> letters{"mk", "nk", "mn"};
  const FusedShape shape{plain.dst, 1, 1, {p.n}};
  const auto attributes = search.fused.attributes(shape);
  const auto bias = search.fused.bias(shape);
  auto& engine = cpu_engine();
  const char* name = "inner_product";
  const auto src = matrices({}, p.m, p.k, types.src, false),
             dst = matrices({}, p.m, p.n, types.dst, false);

  for (const auto& layout : kWeights) {
    if (!search.wants(layout)) continue;
    const auto weights = stored(plain.weights, types.weights, layout);
    if (is_forward(search.pass)) {
      for_each_implementation(
          dnnl::inner_product_forward::primitive_desc(engine, forward_kind(search.pass), src,
                                                      weights, bias, dst, attributes, true),
          [&](const auto& d) {
            search.append(name, layout.variant, d, forward_arguments(d, plain), letters, shape);
          });
      continue;
    }
    const auto any = [&types](const memory::desc& desc) {
      return memory::desc(desc.get_dims(), types.src, Tag::any);
    };
    const dnnl::inner_product_forward::primitive_desc hint(
        engine, dnnl::prop_kind::forward_training, any(plain.src), any(plain.weights),
        any(plain.dst), attributes, true);
    if (!hint) return;
    if (search.pass == Pass::backward_data) {
      for_each_implementation(dnnl::inner_product_backward_data::primitive_desc(
                                  engine, src, weights, dst, hint, attributes, true),
                              [&](const auto& d) {
                                search.append(name, layout.variant, d,
                                              backward_data_arguments(d, plain), letters, shape);
                              });
    } else {
      for_each_implementation(dnnl::inner_product_backward_weights::primitive_desc(
                                  engine, src, weights, dst, hint, attributes, true),
                              [&](const auto& d) {
                                search.append(name, layout.variant, d,
                                              backward_weights_arguments(d, plain), letters, shape);
                              });
    }
  }
}

// A matrix of a product with its role in the problem, the letters of its rows and columns, and
// whether the caller's array is its transpose.
struct Matrix {
  const char* role;
  char rows, columns;
  bool across;
};

// left x right = result
struct Product {
  Matrix left, right, result;
};

// The gradient of batched weights has two products, one the transpose of the other, because only
// inner products, which have no batch, support both layouts of the result.
std::vector<Product> products(Pass pass, bool batched) {
  const Matrix src{"src", 'm', 'k', false}, src_across{"src", 'k', 'm', true};
  const Matrix weights{"weights", 'k', 'n', false}, weights_across{"weights", 'n', 'k', true};
  const Matrix dst{"dst", 'm', 'n', false}, dst_across{"dst", 'n', 'm', true};
  if (is_forward(pass)) return {{src, weights, dst}};
  if (pass == Pass::backward_data) return {{dst, weights_across, src}};
  std::vector<Product> both{{src_across, dst, weights}};
  if (batched) both.push_back({dst_across, src, weights_across});
  return both;
}

// The batch of each tensor of a folded problem.
class Batches {
 public:
  explicit Batches(const GemmProblem& problem)
      : src_(problem.src_batch), weights_(problem.weights_batch), dst_(src_) {
    for (std::size_t i = 0; i < dst_.size(); ++i) dst_[i] = std::max(src_[i], weights_[i]);
  }

  const memory::dims& of(const std::string& role) const {
    return role == "src" ? src_ : role == "weights" ? weights_ : dst_;
  }
  bool broadcasts(const std::string& role) const { return of(role) != dst_; }
  std::string letters() const { return std::string("ghijopqrst").substr(0, dst_.size()); }

 private:
  memory::dims src_, weights_, dst_;
};

void matmuls(Search& search) {
  const auto& p = search.problem;
  const Batches batches(p);
  const auto& types = search.fused.types();
  const auto size = [&](char letter) { return letter == 'm' ? p.m : letter == 'k' ? p.k : p.n; };
  const auto plain = [&](const Matrix& matrix) {
    const bool is_result = matrix.role == std::string("dst") && is_forward(search.pass);
    return matrices(batches.of(matrix.role), size(matrix.rows), size(matrix.columns),
                    is_result ? search.fused.plain_type() : memory::data_type::f32, matrix.across);
  };
  const auto letters = [&](const Matrix& matrix) {
    return batches.letters() + matrix.rows + matrix.columns;
  };

  for (const auto& [left, right, result] : products(search.pass, !p.src_batch.empty())) {
    if (batches.broadcasts(result.role)) {
      throw Unsupported(std::string("oneDNN matmul: the gradient of ") + result.role +
                        " is a sum over the batch that it is broadcast to");
    }
    const auto rank = p.src_batch.size() + 2;
    memory::dims bias_dims(rank, 1);
    bias_dims.back() = p.n;
    const int last = static_cast<int>(rank) - 1;
    const FusedShape shape{plain(result), last, 1 << last, bias_dims};
    const auto attributes = search.fused.attributes(shape);
    const auto bias = search.fused.bias(shape);
    const bool of_weights = search.pass == Pass::backward_weights;
    for (const auto& layout : kWeights) {
      // Only weights may be packed; other right operands are gradients of activations.
      if (of_weights ? layout.packed || layout.across : !search.wants(layout)) continue;
      // In backward-weights the left operand is the transpose of a row-major activation: only that
      // view exists without a copy.
      const WeightsLayout straight{"", false, false}, as_held{"", false, of_weights};
      for_each_implementation(
          dnnl::matmul::primitive_desc(cpu_engine(), stored(plain(left), types.src, as_held),
                                       stored(plain(right), types.weights, layout), bias,
                                       stored(plain(result), types.dst, straight), attributes,
                                       true),
          [&, &left = left, &right = right, &result = result](const auto& d) {
            search.append("matmul", layout.variant, d,
                          {{DNNL_ARG_SRC, left.role, d.src_desc(), plain(left), false},
                           {DNNL_ARG_WEIGHTS, right.role, d.weights_desc(), plain(right), false},
                           {DNNL_ARG_DST, result.role, d.dst_desc(), plain(result), true}},
                          {letters(left), letters(right), letters(result)}, shape);
          });
    }
  }
}

std::vector<Candidate> gemm_candidates(const Fields& given, Pass pass, Precision precision,
                                       bool /*thorough*/) {
  auto fields = given;
  const FusedOps fused(fields, precision);
  const auto problem = fold_batch(problem_of<GemmProblem>(fields));
  return planned("matrix product", [&](std::vector<Candidate>& candidates) {
    Search search{problem, pass, fused, candidates};
    if (problem.src_batch.empty()) inner_products(search);
    matmuls(search);
  });
}

const Kind gemm("gemm", gemm_candidates);

}  // namespace

}  // namespace pydlbench::cpu
