// The three passes of a matrix product as cuBLAS computes them: D = op(A) x op(B), column-major.
//
// Row-major memory read as column-major is the transpose. So a row-major result dst[m, n] is
// cuBLAS's D[n, m], and dst = src x weights becomes D = weights^T x src^T: what stands on the right
// for us is cuBLAS's A, and a row-major operand needs no transposition ("N").
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/problem.hpp"
#include "cuda/plain.hpp"
#include "cuda/tensor.hpp"

namespace pydlbench::cuda::cublaslt {

// Which matrices lie transposed in memory; the others are dense and row-major, as the caller's.
struct Storage {
  bool src = false, weights = false, dst = false;
  bool plain() const { return !src && !weights && !dst; }
};

// A matrix as cuBLAS sees it in memory, column-major and dense.
struct Seen {
  std::size_t tensor;  // its index in Product::tensors
  std::int64_t rows, columns;
  bool transpose;  // op() is the transpose; never for D

  std::int64_t leading() const { return rows; }
  std::int64_t batch_stride() const { return rows * columns; }
};

struct Product {
  std::int64_t batch;
  Seen a, b, d;
  std::vector<TensorSpec> tensors;  // inputs, then the result; the bias in between
  std::size_t bias = 0;             // its index where the product is fused
  std::string layout;               // "src mk, weights nk, dst mn, TN"
};

// `type` is that of the matrices, `bias_type` that of the bias. A fused product (forward only) has
// a bias [1, 1, n] before its result, along the rows of D.
Product product(const PlainGemm& problem, Pass pass, const Storage& storage, DataType type,
                bool fused, DataType bias_type);

// The storages to try, the plain one first; for FP8 those that are TN: both operands with the
// reduced dimension contiguous, the only way FP8 tensor cores read.
std::vector<Storage> storages(Pass pass, Mode mode);

}  // namespace pydlbench::cuda::cublaslt
