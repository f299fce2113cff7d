// The parts of csrc/cuda/cublaslt that need no CUDA header, behind C functions.
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include "cuda/cublaslt/algorithm.hpp"
#include "cuda/cublaslt/mode_filter.hpp"
#include "cuda/cublaslt/product.hpp"
#include "problem_from.hpp"

using namespace pydlbench;
using namespace pydlbench::cuda;

namespace {

std::string answer;

const char* kept(std::string text) {
  answer = std::move(text);
  return answer.c_str();
}

void write(std::int64_t*& out, const cublaslt::Seen& seen) {
  *out++ = static_cast<std::int64_t>(seen.tensor);
  *out++ = seen.rows;
  *out++ = seen.columns;
  *out++ = seen.leading();
  *out++ = seen.batch_stride();
  *out++ = seen.transpose;
}

}  // namespace

extern "C" {

// Fills `out` with A, B and D (six numbers each), the batch, the index of the bias and the number
// of tensors, then dimensions, strides and use of each; returns "roles|layout", or "!" and an
// error.
const char* product_of(const char* pass, const char* mode, int storage, int fused,
                       std::int64_t batch, std::int64_t m, std::int64_t k, std::int64_t n,
                       std::int64_t* out) try {
  const cublaslt::Storage stored{(storage & 1) != 0, (storage & 2) != 0, (storage & 4) != 0};
  const auto product = cublaslt::product(gemm_problem(batch, m, k, n), pass_of(pass), stored,
                                         mode_of(mode), fused != 0);
  write(out, product.a);
  write(out, product.b);
  write(out, product.d);
  *out++ = product.batch;
  *out++ = static_cast<std::int64_t>(product.bias);
  *out++ = static_cast<std::int64_t>(product.tensors.size());
  std::string roles;
  for (const auto& tensor : product.tensors) {
    for (const auto dim : tensor.dims) *out++ = dim;
    for (const auto stride : tensor.strides) *out++ = stride;
    *out++ = static_cast<std::int64_t>(tensor.use);
    *out++ = static_cast<std::int64_t>(tensor.type);
    roles += (roles.empty() ? "" : ",") + tensor.role;
  }
  return kept(roles + "|" + product.layout);
} catch (const std::exception& error) {
  return kept(std::string("!") + error.what());
}

// The storages of a pass and mode, one number each: src + 2 weights + 4 dst.
const char* storages_of(const char* pass, const char* mode) {
  std::string result;
  for (const auto& s : cublaslt::storages(pass_of(pass), mode_of(mode))) {
    result += std::to_string(s.src + 2 * s.weights + 4 * s.dst) + " ";
  }
  return kept(result);
}

const char* refusal_of(const char* mode, int compute, std::uint64_t flags, std::uint32_t scheme) {
  return kept(
      cublaslt::refusal(mode_of(mode), static_cast<cublaslt::Compute>(compute), flags, scheme)
          .value_or(""));
}

int tensor_cores_of(std::uint64_t flags) {
  const auto known = cublaslt::tensor_cores(flags);
  return known ? *known : -1;
}

const char* accumulate_of(int compute, std::uint64_t flags) {
  return kept(cublaslt::accumulate(static_cast<cublaslt::Compute>(compute), flags));
}

const char* computes_of(const char* mode) {
  std::string result;
  for (const auto compute : cublaslt::computes(mode_of(mode))) {
    result += std::to_string(static_cast<int>(compute)) + " ";
  }
  return kept(result);
}

std::uint64_t implementations_of(const char* mode) {
  return cublaslt::allowed_implementations(mode_of(mode));
}

const char* names_of(std::uint64_t flags) {
  std::string result;
  for (const auto& name : cublaslt::names(flags)) result += name + " ";
  return kept(result);
}

const char* check_of(const char* mode, std::int64_t m, std::int64_t k, std::int64_t n,
                     int capability) try {
  cublaslt::check_mode(mode_of(mode), gemm_problem(1, m, k, n), capability);
  return "";
} catch (const Unsupported& error) {
  return kept(error.what());
}

const char* tile_of(std::uint32_t id) { return kept(cublaslt::tile_name(id)); }
const char* stages_of(std::uint32_t id) { return kept(cublaslt::stages_name(id)); }
const char* cluster_of(std::uint32_t id) { return kept(cublaslt::cluster_name(id)); }

const char* text_of(int id, std::uint32_t tile, std::uint32_t stages, int split_k,
                    std::uint32_t scheme, std::uint32_t swizzle, std::uint32_t option, int inner,
                    int cluster) {
  return kept(
      cublaslt::text({id, tile, stages, split_k, scheme, swizzle, option,
                      static_cast<std::uint16_t>(inner), static_cast<std::uint16_t>(cluster)}));
}

}  // extern "C"
