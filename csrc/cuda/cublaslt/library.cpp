#include "cuda/cublaslt/library.hpp"

#include "core/error.hpp"
#include "cuda/cublaslt/mode_filter.hpp"
#include "cuda/libraries.hpp"

namespace pydlbench::cuda::cublaslt {

// mode_filter.hpp does not include the library's header; compare its constants here.
static_assert(flag::fma == CUBLASLT_NUMERICAL_IMPL_FLAGS_FMA);
static_assert(flag::hmma == CUBLASLT_NUMERICAL_IMPL_FLAGS_HMMA);
static_assert(flag::imma == CUBLASLT_NUMERICAL_IMPL_FLAGS_IMMA);
static_assert(flag::dmma == CUBLASLT_NUMERICAL_IMPL_FLAGS_DMMA);
static_assert(flag::tensor_operations == CUBLASLT_NUMERICAL_IMPL_FLAGS_TENSOR_OP_MASK);
static_assert(flag::operations == CUBLASLT_NUMERICAL_IMPL_FLAGS_OP_TYPE_MASK);
static_assert(flag::accumulator_16f == CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_16F);
static_assert(flag::accumulator_32f == CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_32F);
static_assert(flag::accumulator_64f == CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_64F);
static_assert(flag::accumulator_32i == CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_32I);
static_assert(flag::input_16f == CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16F);
static_assert(flag::input_16bf == CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16BF);
static_assert(flag::input_tf32 == CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_TF32);
static_assert(flag::input_32f == CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_32F);
static_assert(flag::input_64f == CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_64F);
static_assert(flag::input_8i == CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_8I);
static_assert(flag::input_e4m3 == CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_8F_E4M3);
static_assert(flag::input_e5m2 == CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_8F_E5M2);
static_assert(flag::accumulators == CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_TYPE_MASK);
static_assert(flag::inputs == CUBLASLT_NUMERICAL_IMPL_FLAGS_OP_INPUT_TYPE_MASK);
static_assert(flag::gaussian == CUBLASLT_NUMERICAL_IMPL_FLAGS_GAUSSIAN);
static_assert(reduction::in_place == CUBLASLT_REDUCTION_SCHEME_INPLACE);
static_assert(reduction::compute_type == CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
static_assert(reduction::output_type == CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE);
static_assert(reduction::any == CUBLASLT_REDUCTION_SCHEME_MASK);

void Lt::check(cublasStatus_t status, const char* call) const {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  const std::string reason = version + ", " + call + ": " + status_string(status);
  switch (status) {
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH:
      throw Unsupported(reason);
    case CUBLAS_STATUS_ALLOC_FAILED:
      throw OutOfMemory(reason);
    default:
      throw PrimitiveFailure("matrix product", reason);
  }
}

Handle make_handle(const Lt& lt) {
  cublasLtHandle_t handle = nullptr;
  lt.check(lt.create(&handle), "cublasLtCreate");
  return {handle, lt.destroy};
}

Operation make_operation(const Lt& lt, cublasComputeType_t compute, cudaDataType_t scale) {
  cublasLtMatmulDesc_t operation = nullptr;
  lt.check(lt.operation_create(&operation, compute, scale), "cublasLtMatmulDescCreate");
  return {operation, lt.operation_destroy};
}

Layout make_layout(const Lt& lt, cudaDataType_t type, std::int64_t rows, std::int64_t columns,
                   std::int64_t leading, std::int64_t batch, std::int64_t batch_stride) {
  cublasLtMatrixLayout_t created = nullptr;
  lt.check(lt.layout_create(&created, type, static_cast<std::uint64_t>(rows),
                            static_cast<std::uint64_t>(columns), leading),
           "cublasLtMatrixLayoutCreate");
  Layout layout{created, lt.layout_destroy};
  if (batch > 1) {
    const auto count = static_cast<std::int32_t>(batch);
    lt.check(lt.layout_set(created, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
             "cublasLtMatrixLayoutSetAttribute");
    lt.check(lt.layout_set(created, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_stride,
                           sizeof batch_stride),
             "cublasLtMatrixLayoutSetAttribute");
  }
  return layout;
}

Preference make_preference(const Lt& lt) {
  cublasLtMatmulPreference_t preference = nullptr;
  lt.check(lt.preference_create(&preference), "cublasLtMatmulPreferenceCreate");
  return {preference, lt.preference_destroy};
}

std::uint64_t numerical_flags(const Lt& lt, const cublasLtMatmulAlgo_t& algorithm) {
  std::uint64_t flags = 0;
  std::size_t written = 0;
  const auto status = lt.capability(&algorithm, CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS, &flags,
                                    sizeof flags, &written);
  return status == CUBLAS_STATUS_SUCCESS && written == sizeof flags ? flags : 0;
}

Lt Lt::loaded() {
#define PYDLBENCH_LOOK_UP(member, name) reinterpret_cast<decltype(&name)>(cublaslt_symbol(#name)),
  return {cublaslt_version_text(), PYDLBENCH_CUBLASLT_FUNCTIONS(PYDLBENCH_LOOK_UP)};
#undef PYDLBENCH_LOOK_UP
}

}  // namespace pydlbench::cuda::cublaslt
