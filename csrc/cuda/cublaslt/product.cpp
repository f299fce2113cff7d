#include "cuda/cublaslt/product.hpp"

#include <utility>

#include "core/error.hpp"

namespace pydlbench::cuda::cublaslt {

namespace {

// A matrix of the problem, with its dimensions in the caller's order.
struct Matrix {
  const char* role;
  char row_letter, column_letter;
  std::int64_t rows, columns;
  bool stored_transposed;
};

// An operand of: result = left x right.
struct Operand {
  Matrix matrix;
  bool flipped;  // the operand is the transpose of the caller's matrix
};

TensorSpec spec(const Matrix& matrix, std::int64_t batch, DataType type, Use use) {
  const auto size = matrix.rows * matrix.columns;
  std::vector<std::int64_t> strides{size, matrix.columns, 1};
  if (matrix.stored_transposed) strides = {size, 1, matrix.rows};
  return {matrix.role, type, {batch, matrix.rows, matrix.columns}, std::move(strides), use};
}

// Describes a matrix as column-major memory, in which plain storage is the transpose.
// `wants_transpose`: whether cuBLAS is to multiply with the transpose of the caller's matrix.
Seen seen(const Matrix& matrix, std::size_t tensor, bool wants_transpose) {
  const bool is_transpose = !matrix.stored_transposed;
  return {tensor, is_transpose ? matrix.columns : matrix.rows,
          is_transpose ? matrix.rows : matrix.columns, is_transpose != wants_transpose};
}

std::string described(const Matrix& matrix, bool batched) {
  std::string letters = batched ? "g" : "";
  letters += matrix.stored_transposed ? matrix.column_letter : matrix.row_letter;
  letters += matrix.stored_transposed ? matrix.row_letter : matrix.column_letter;
  return std::string(matrix.role) + " " + letters;
}

}  // namespace

Product product(const PlainGemm& problem, Pass pass, const Storage& storage, Mode mode,
                bool fused) {
  const auto& p = problem;
  const auto type = cuda::storage(mode);
  const auto bias_type = is_narrow(mode) ? DataType::bfloat16 : type;
  PYDLBENCH_CHECK(p.batch_count > 0 && p.m > 0 && p.k > 0 && p.n > 0, "sizes are positive");
  const Matrix src{"src", 'm', 'k', p.m, p.k, storage.src};
  const Matrix weights{"weights", 'k', 'n', p.k, p.n, storage.weights};
  const Matrix dst{"dst", 'm', 'n', p.m, p.n, storage.dst};

  Operand left{src, false}, right{weights, false};
  Matrix result = dst;
  if (pass == Pass::backward_data) {
    left = {dst, false}, right = {weights, true}, result = src;
  } else if (pass == Pass::backward_weights) {
    left = {src, true}, right = {dst, false}, result = weights;
  }
  PYDLBENCH_CHECK(!fused || result.role == dst.role, "only the forward pass is fused");

  // The tensors in the order src, weights, dst, with the result at the end.
  const bool left_first = pass != Pass::backward_data;
  const std::size_t left_index = left_first ? 0 : 1, right_index = left_first ? 1 : 0;
  const std::size_t result_index = fused ? 3 : 2;

  Product made{};
  made.batch = p.batch_count;
  if (result.stored_transposed) {
    // D is the result itself: left x right.
    made.a = seen(left.matrix, left_index, left.flipped);
    made.b = seen(right.matrix, right_index, right.flipped);
    made.d = {result_index, result.rows, result.columns, false};
  } else {
    // D is the result's transpose: right^T x left^T.
    made.a = seen(right.matrix, right_index, !right.flipped);
    made.b = seen(left.matrix, left_index, !left.flipped);
    made.d = {result_index, result.columns, result.rows, false};
  }

  made.tensors.resize(2);
  made.tensors[left_index] = spec(left.matrix, made.batch, type, Use::input);
  made.tensors[right_index] = spec(right.matrix, made.batch, type, Use::input);
  for (auto& operand : made.tensors) operand.scale_block = scale_block(mode);
  if (fused) {
    made.bias = made.tensors.size();
    made.tensors.push_back({"bias", bias_type, {1, 1, p.n}, {p.n, p.n, 1}, Use::input});
  }
  made.tensors.push_back(spec(result, made.batch, result_type(mode), Use::output));

  const bool batched = p.batch_count > 1;
  made.layout = described(src, batched) + ", " + described(weights, batched) + ", " +
                described(dst, batched) + ", " + (made.a.transpose ? "T" : "N") +
                (made.b.transpose ? "T" : "N");
  return made;
}

std::vector<Storage> storages(Pass pass, Mode mode) {
  const Storage plain{}, weights_transposed{false, true, false};
  if (!is_narrow(mode)) return {plain, weights_transposed};
  switch (pass) {
    case Pass::forward_inference:
    case Pass::forward_training:
      return {weights_transposed};
    case Pass::backward_data:
      return {plain};
    case Pass::backward_weights:
      // Transposed activations, as in FP8 training.
      return {{true, false, true}, {true, true, true}};
  }
  return {};
}

}  // namespace pydlbench::cuda::cublaslt
