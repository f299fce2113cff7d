// Search of cuBLASLt's algorithms for a problem. Needs no device: the library is a table of
// functions, so that tests can use fake ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda/cublaslt/algorithm.hpp"
#include "cuda/cublaslt/library.hpp"
#include "cuda/cublaslt/mode_filter.hpp"
#include "cuda/cublaslt/product.hpp"
#include "cuda/plain.hpp"
#include "cuda/plan.hpp"

namespace pydlbench::cuda::cublaslt {

// The library's state in one search and its plans.
struct Session {
  explicit Session(Lt functions) : lt(std::move(functions)), handle(make_handle(lt)) {}

  Lt lt;
  Handle handle;
  std::shared_ptr<const void> one;  // 1.0f in device memory, for FP8
  // Returns device memory with the scales of a tensor's blocks.
  std::function<std::shared_ptr<const void>(const TensorSpec&)> block_scales;
};

// The library's descriptors of a product, which its plans share.
struct Described {
  std::shared_ptr<const Session> session;
  Product product;
  Compute compute;
  bool fused;
  Operation operation;
  Layout a, b, c, d;
  std::shared_ptr<const void> a_scales, b_scales;  // of blocks; null in other modes
};

std::shared_ptr<const Described> describe(std::shared_ptr<const Session> session, Product product,
                                          Mode mode, Compute compute, bool fused);

struct Found {
  cublasLtMatmulAlgo_t algorithm;
  AlgorithmConfig config;
  std::uint64_t flags;
  std::size_t workspace_bytes;
};

struct Search {
  std::vector<Found> found;  // of the mode, in the library's order
  int offered = 0;           // by the library, of any mode
  std::string refused;  // why the last other one does not belong to the mode, or none was offered
};

// Queries the heuristics and selects the algorithms of the mode.
Search search(const Described& described, Mode mode, std::size_t workspace_limit);

// Like gemm_plans() of plans.hpp, for a GPU of this compute capability.
std::vector<std::shared_ptr<Plan>> plans(const std::shared_ptr<const Session>& session,
                                         const PlainGemm& problem, Pass pass, Mode mode,
                                         int capability, std::size_t workspace_limit, bool fused);

}  // namespace pydlbench::cuda::cublaslt
