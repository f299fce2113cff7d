#include "cuda/cublaslt/search.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "core/error.hpp"

namespace pydlbench::cuda::cublaslt {

namespace {

constexpr int kRequested = 64;  // at most so many algorithms per question
constexpr int kMostIds = 256;   // of the library's algorithms for some types

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
  }
  throw Unsupported("unknown data type");
}

cudaDataType_t scale_type(Compute compute) {
  return compute == Compute::float16 ? CUDA_R_16F : CUDA_R_32F;
}

// With an FP8 result the library requires a 16-bit C, although beta is zero and C is not read.
cudaDataType_t c_type(Mode mode) {
  return library_type(is_fp8(mode) ? DataType::bfloat16 : storage(mode));
}

Layout layout(const Lt& lt, const Product& product, const Seen& seen, cudaDataType_t type) {
  return make_layout(lt, type, seen.rows, seen.columns, seen.leading(), product.batch,
                     seen.batch_stride());
}

// The scale of the operands and of the result is one: uniform values in [-1, 1] need no other.
void set_fp8(const Session& session, Mode mode, const Operation& operation) {
  const auto& lt = session.lt;
  const void* one = session.one.get();
  for (const auto attribute :
       {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
        CUBLASLT_MATMUL_DESC_D_SCALE_POINTER}) {
    set(lt, operation, attribute, one);
  }
  // It leaves partial sums in the tensor cores' accumulators, which have fewer bits than float32.
  set(lt, operation, CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{mode == Mode::fp8_tc_fast});
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

// A question without an answer costs its own storage and compute type only.
bool is_no_answer(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
         status == CUBLAS_STATUS_ARCH_MISMATCH || status == CUBLAS_STATUS_INTERNAL_ERROR;
}

// The types that name a list of algorithms.
struct Types {
  cublasComputeType_t compute;
  cudaDataType_t scale, operands, c, d;
};

Types types_of(const Described& d, Mode mode) {
  const auto type = library_type(storage(mode));
  return {library_type(d.compute), scale_type(d.compute), type, c_type(mode), type};
}

// A question to the heuristics.
struct Question {
  std::uint64_t implementations = ~std::uint64_t{0};  // that are allowed
  std::optional<int> only;                            // the one algorithm that it is about
};

// Numbers of the library's algorithms for these types; none where it does not tell.
std::vector<int> algorithm_ids(const Described& d, Mode mode) {
  const auto t = types_of(d, mode);
  std::vector<int> ids(kMostIds);
  int count = 0;
  const auto status =
      d.session->lt.algorithm_ids(d.session->handle.get(), t.compute, t.scale, t.operands,
                                  t.operands, t.c, t.d, kMostIds, ids.data(), &count);
  ids.resize(status == CUBLAS_STATUS_SUCCESS ? static_cast<std::size_t>(count) : 0);
  return ids;
}

// What the heuristics answer; the library's own reason in `refused` where it is nothing.
std::vector<cublasLtMatmulHeuristicResult_t> ask(const Described& d, Mode mode,
                                                 std::size_t workspace_limit,
                                                 const Question& question, std::string& refused) {
  const auto& lt = d.session->lt;
  const auto preference = make_preference(lt);
  set(lt, preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
      static_cast<std::uint64_t>(workspace_limit));
  // What is not restricted is not mentioned: the library may look the plain question up in a list.
  if (~question.implementations != 0) {
    set(lt, preference, CUBLASLT_MATMUL_PREF_IMPL_MASK, question.implementations);
  }
  if (const auto reductions = allowed_reductions(mode, d.compute); reductions != reduction::any) {
    set(lt, preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions);
  }
  std::vector<cublasLtMatmulHeuristicResult_t> results(question.only ? 1 : kRequested);
  if (question.only) {
    set(lt, preference, CUBLASLT_MATMUL_PREF_SEARCH_MODE,
        static_cast<std::uint32_t>(CUBLASLT_SEARCH_LIMITED_BY_ALGO_ID));
    const auto t = types_of(d, mode);
    if (lt.algorithm_init(d.session->handle.get(), t.compute, t.scale, t.operands, t.operands, t.c,
                          t.d, *question.only, &results[0].algo) != CUBLAS_STATUS_SUCCESS) {
      return {};
    }
  }
  int count = 0;
  const auto status = lt.heuristic(d.session->handle.get(), d.operation.get(), d.a.get(), d.b.get(),
                                   d.c.get(), d.d.get(), preference.get(),
                                   static_cast<int>(results.size()), results.data(), &count);
  if (is_no_answer(status)) {
    if (!question.only) refused = std::string("the heuristics say: ") + lt.status_string(status);
    return {};
  }
  lt.check(status, "cublasLtMatmulAlgoGetHeuristic");
  results.resize(static_cast<std::size_t>(count));
  return results;
}

// Adds the answers to a question.
void add(Search& result, const Described& described, Mode mode, std::size_t workspace_limit,
         const Question& question) {
  const auto& lt = described.session->lt;
  int offered = 0;
  for (const auto& candidate : ask(described, mode, workspace_limit, question, result.refused)) {
    if (candidate.state != CUBLAS_STATUS_SUCCESS) continue;
    ++offered;
    const auto config = config_of(lt, candidate.algo);
    const auto flags = numerical_flags(lt, candidate.algo);
    result.ids.insert(config.id);
    // Where nothing is split there are no partial sums, whatever scheme stands in the algorithm.
    const auto scheme = config.split_k == 1 ? reduction::none : config.reduction_scheme;
    // The library knows the limits; this checks that it respects them.
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
  result.offered = question.only ? result.offered + offered : std::max(result.offered, offered);
}

}  // namespace

std::shared_ptr<const Described> describe(std::shared_ptr<const Session> session, Product product,
                                          Mode mode, Compute compute, bool fused) {
  const auto& lt = session->lt;
  auto operation = make_operation(lt, library_type(compute), scale_type(compute));
  set(lt, operation, CUBLASLT_MATMUL_DESC_TRANSA,
      std::int32_t{product.a.transpose ? CUBLAS_OP_T : CUBLAS_OP_N});
  set(lt, operation, CUBLASLT_MATMUL_DESC_TRANSB,
      std::int32_t{product.b.transpose ? CUBLAS_OP_T : CUBLAS_OP_N});
  if (is_fp8(mode)) set_fp8(*session, mode, operation);
  if (fused) {
    set(lt, operation, CUBLASLT_MATMUL_DESC_EPILOGUE,
        static_cast<std::uint32_t>(CUBLASLT_EPILOGUE_RELU_BIAS));
    set(lt, operation, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE,
        static_cast<std::int32_t>(library_type(product.tensors[product.bias].type)));
    // Not read until the product runs, but its alignment decides which algorithms are offered; all
    // device memory of ours is aligned to 256 bytes.
    set(lt, operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(256));
  }
  const auto type = library_type(storage(mode));
  auto a = layout(lt, product, product.a, type), b = layout(lt, product, product.b, type);
  auto c = layout(lt, product, product.d, c_type(mode)), d = layout(lt, product, product.d, type);
  return std::make_shared<Described>(Described{std::move(session), std::move(product), compute,
                                               fused, std::move(operation), std::move(a),
                                               std::move(b), std::move(c), std::move(d)});
}

Search search(const Described& described, Mode mode, std::size_t workspace_limit) {
  const auto allowed = allowed_implementations(mode);
  Search result;
  add(result, described, mode, workspace_limit, {allowed, {}});
  // For CUDA cores, what the restriction keeps out is of another mode. Tensor modes ask without it
  // as well: tensor cores are what the library chooses first by itself, and a list that was tuned
  // for the plain question must not be lost to how the restriction works inside. Algorithms that
  // both answers have are listed once: see Names in plans.cpp.
  if (on_tensor_cores(mode) || result.found.empty())
    add(result, described, mode, workspace_limit, {});
  // The answers are a few that the library takes for fast: on Hopper, for TF32, only kernels of
  // older cards, which take twice as long as those that it does not name.
  for (const int id : algorithm_ids(described, mode)) {
    if (result.ids.count(id) != 0) continue;
    const auto implementations = on_tensor_cores(mode) ? ~std::uint64_t{0} : allowed;
    add(result, described, mode, workspace_limit, {implementations, id});
  }
  return result;
}

}  // namespace pydlbench::cuda::cublaslt
