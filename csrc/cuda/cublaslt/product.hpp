// The three passes of a matrix product as cuBLAS computes them: D = op(A) x op(B), column-major.
//
// Row-major memory interpreted as column-major is the transpose. So a row-major result dst[m, n] is
// cuBLAS's D[n, m], and dst = src x weights becomes D = weights^T x src^T: our right operand is
// cuBLAS's A, and a row-major operand needs no transposition ("N").
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/problem.hpp"
#include "cuda/plain.hpp"
#include "cuda/tensor.hpp"

namespace pydlbench::cuda::cublaslt {

// Matrices that are stored transposed; the others are dense and row-major.
struct Storage {
  bool src = false, weights = false, dst = false;
  bool plain() const { return !src && !weights && !dst; }
};

// A matrix as dense column-major memory for cuBLAS.
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
  std::size_t bias = 0;             // its index if the product is fused
  std::string layout;               // "src mk, weights nk, dst mn, TN"
};

// Describes a product for cuBLAS. A fused product (forward only) has a bias [1, 1, n] before its
// result, along the rows of D.
Product product(const PlainGemm& problem, Pass pass, const Storage& storage, Mode mode, bool fused);

// The storages to try, the plain one first; for 8 bits and less only TN: both operands with the
// reduced dimension contiguous, as tensor cores require.
std::vector<Storage> storages(Pass pass, Mode mode);

}  // namespace pydlbench::cuda::cublaslt
