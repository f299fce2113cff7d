#include "cuda/cublaslt/search.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"

namespace pydlbench::cuda::cublaslt {

namespace {

constexpr int kRequested = 64;  // largest number of algorithms per request

cublasComputeType_t library_type(Compute compute) {
  switch (compute) {
    case Compute::float32:
      return CUBLAS_COMPUTE_32F;
    case Compute::float32_pedantic:
      return CUBLAS_COMPUTE_32F_PEDANTIC;
    case Compute::fast_tf32:
      return CUBLAS_COMPUTE_32F_FAST_TF32;
    case Compute::float16:
      return CUBLAS_COMPUTE_16F;
    case Compute::int32:
      return CUBLAS_COMPUTE_32I;
  }
  throw Unsupported("unknown compute type");
}

cudaDataType_t library_type(DataType type) {
  switch (type) {
    case DataType::float32:
      return CUDA_R_32F;
    case DataType::float16:
      return CUDA_R_16F;
    case DataType::bfloat16:
      return CUDA_R_16BF;
    case DataType::float8_e4m3:
      return CUDA_R_8F_E4M3;
    case DataType::int32:
      return CUDA_R_32I;
    case DataType::int8:
      return CUDA_R_8I;
    case DataType::float4_e2m1:
#if CUBLAS_VERSION >= 120800
      return CUDA_R_4F_E2M1;
#else
      break;
#endif
  }
  throw Unsupported("unknown data type");
}

Layout layout(const Lt& lt, const Product& product, const Seen& seen, DataType type) {
  return make_layout(lt, library_type(type), seen.rows, seen.columns, seen.leading(), product.batch,
                     seen.batch_stride());
}

// Sets the scales of operands and result to one, sufficient for uniform values in [-1, 1].
void set_fp8(const Session& session, Mode mode, const Operation& operation) {
  const auto& lt = session.lt;
  const void* one = session.one.get();
  for (const auto attribute :
       {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
        CUBLASLT_MATMUL_DESC_D_SCALE_POINTER}) {
    set(lt, operation, attribute, one);
  }
  // Keeps partial sums in the tensor cores' accumulators, with fewer bits than float32.
  set(lt, operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{mode == Mode::fp8_tc_fast});
}

// Sets the scales of the operands' blocks.
void set_block_scales(const Lt& lt, Mode mode, const Operation& operation, const void* a,
                      const void* b) {
#if CUBLAS_VERSION >= 120800
  const auto kind =
      static_cast<std::int32_t>(mode == Mode::nvfp4_tc ? CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3
                                                       : CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0);
  set(lt, operation, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, kind);
  set(lt, operation, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, kind);
  set(lt, operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, a);
  set(lt, operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, b);
#else
  (void)lt, (void)operation, (void)a, (void)b;
  throw Unsupported(std::string(name_of(mode)) +
                    " needs a build with cuBLAS 12.8 or later, for its block scales");
#endif
}

AlgorithmConfig config_of(const Lt& lt, const cublasLtMatmulAlgo_t& algorithm) {
  AlgorithmConfig c;
  c.id = configuration(lt, algorithm, CUBLASLT_ALGO_CONFIG_ID, c.id);
  c.tile = configuration(lt, algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID, c.tile);
  c.stages = configuration(lt, algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID, c.stages);
  c.split_k = configuration(lt, algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, c.split_k);
  c.reduction_scheme =
      configuration(lt, algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, c.reduction_scheme);
  c.swizzle = configuration(lt, algorithm, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, c.swizzle);
  c.custom_option =
      configuration(lt, algorithm, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, c.custom_option);
  c.inner_shape = configuration(lt, algorithm, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, c.inner_shape);
  c.cluster = configuration(lt, algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, c.cluster);
  return c;
}

// Whether a status excludes only the requested storage and compute type.
bool is_no_answer(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
         status == CUBLAS_STATUS_ARCH_MISMATCH || status == CUBLAS_STATUS_INTERNAL_ERROR;
}

// The heuristics' algorithms; if there are none, the library's reason in `refused`.
std::vector<cublasLtMatmulHeuristicResult_t> ask(const Described& d, const Preference& preference,
                                                 std::string& refused) {
  const auto& lt = d.session->lt;
  std::vector<cublasLtMatmulHeuristicResult_t> results(kRequested);
  int count = 0;
  const auto status =
      lt.heuristic(d.session->handle.get(), d.operation.get(), d.a.get(), d.b.get(), d.c.get(),
                   d.d.get(), preference.get(), kRequested, results.data(), &count);
  if (is_no_answer(status)) {
    refused = std::string("the heuristics say: ") + lt.status_string(status);
    return {};
  }
  lt.check(status, "cublasLtMatmulAlgoGetHeuristic");
  results.resize(static_cast<std::size_t>(count));
  return results;
}

// The algorithms of one request, with `implementations` allowed.
Search search_among(const Described& described, Mode mode, std::size_t workspace_limit,
                    std::uint64_t implementations) {
  const auto& lt = described.session->lt;
  const auto preference = make_preference(lt);
  set(lt, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
      static_cast<std::uint64_t>(workspace_limit));
  set(lt, preference, CUBLASLT_MATMUL_PREF_IMPL_MASK, implementations);
  set(lt, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      allowed_reductions(mode, described.compute));

  Search result;
  for (const auto& candidate : ask(described, preference, result.refused)) {
    if (candidate.state != CUBLAS_STATUS_SUCCESS) continue;
    ++result.offered;
    const auto config = config_of(lt, candidate.algo);
    const auto flags = numerical_flags(lt, candidate.algo);
    // Without a split there are no partial sums, whatever the algorithm's reduction scheme.
    const auto scheme = config.split_k == 1 ? reduction::none : config.reduction_scheme;
    // The request excludes other algorithms; check that the library respects it.
    auto reason = refusal(mode, described.compute, flags, scheme);
    if (!reason && candidate.workspaceSize > workspace_limit) {
      reason = "needs more workspace than is allowed";
    }
    if (reason) {
      std::string all;
      for (const auto& name : names(flags)) all += (all.empty() ? "" : " ") + name;
      result.refused = text(config) + " " + *reason + " (" + (all.empty() ? "no flags" : all) + ")";
      continue;
    }
    result.found.push_back({candidate.algo, config, flags, candidate.workspaceSize});
  }
  return result;
}

}  // namespace

std::shared_ptr<const Described> describe(std::shared_ptr<const Session> session, Product product,
                                          Mode mode, Compute compute, bool fused) {
  const auto& lt = session->lt;
  const auto scale = compute == Compute::float16 ? CUDA_R_16F
                     : compute == Compute::int32 ? CUDA_R_32I
                                                 : CUDA_R_32F;
  auto operation = make_operation(lt, library_type(compute), scale);
  set(lt, operation, CUBLASLT_MATMUL_DESC_TRANSA,
      std::int32_t{product.a.transpose ? CUBLAS_OP_T : CUBLAS_OP_N});
  set(lt, operation, CUBLASLT_MATMUL_DESC_TRANSB,
      std::int32_t{product.b.transpose ? CUBLAS_OP_T : CUBLAS_OP_N});
  if (is_fp8(mode)) set_fp8(*session, mode, operation);
  std::shared_ptr<const void> a_scales, b_scales;
  if (scale_block(mode) > 0) {
    a_scales = session->block_scales(product.tensors[product.a.tensor]);
    b_scales = session->block_scales(product.tensors[product.b.tensor]);
    set_block_scales(lt, mode, operation, a_scales.get(), b_scales.get());
  }
  if (fused) {
    set(lt, operation, CUBLASLT_MATMUL_DESC_EPILOGUE,
        static_cast<std::uint32_t>(CUBLASLT_EPILOGUE_RELU_BIAS));
    set(lt, operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
        static_cast<std::int32_t>(library_type(product.tensors[product.bias].type)));
    // A placeholder until the product runs, but its alignment determines the offered algorithms;
    // our device memory is aligned to 256 bytes.
    set(lt, operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(256));
  }
  const auto type = storage(mode);
  // With an FP8 result the library requires a 16-bit C, although beta is zero and C is not read.
  const auto d_type = result_type(mode), c_type = is_fp8(mode) ? DataType::bfloat16 : d_type;
  auto a = layout(lt, product, product.a, type), b = layout(lt, product, product.b, type);
  auto c = layout(lt, product, product.d, c_type), d = layout(lt, product, product.d, d_type);
  return std::make_shared<Described>(Described{
      std::move(session), std::move(product), compute, fused, std::move(operation), std::move(a),
      std::move(b), std::move(c), std::move(d), std::move(a_scales), std::move(b_scales)});
}

Search search(const Described& described, Mode mode, std::size_t workspace_limit) {
  auto result = search_among(described, mode, workspace_limit, allowed_implementations(mode));
  // For CUDA cores, the restriction excludes only algorithms of other modes. Tensor modes also send
  // a request without it: the library prefers tensor cores anyway, and the restriction may change
  // its tuned list. Names in plans.cpp removes algorithms that are in both answers.
  if (!on_tensor_cores(mode) && !result.found.empty()) return result;
  auto more = search_among(described, mode, workspace_limit, ~std::uint64_t{0});
  for (const auto& found : more.found) result.found.push_back(found);
  result.offered = std::max(result.offered, more.offered);
  if (!more.refused.empty()) result.refused = std::move(more.refused);
  return result;
}

}  // namespace pydlbench::cuda::cublaslt
