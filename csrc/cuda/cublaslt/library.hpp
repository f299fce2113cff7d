// cuBLASLt's functions as a table: from the loaded library, or fake functions in tests.
#pragma once

#include <cublasLt.h>

#include <memory>
#include <string>

namespace pydlbench::cuda::cublaslt {

// All functions of cuBLASLt that this module calls: the member of Lt, and the name in the library.
#define PYDLBENCH_CUBLASLT_FUNCTIONS(FUNCTION)                   \
  FUNCTION(create, cublasLtCreate)                               \
  FUNCTION(destroy, cublasLtDestroy)                             \
  FUNCTION(status_string, cublasLtGetStatusString)               \
  FUNCTION(operation_create, cublasLtMatmulDescCreate)           \
  FUNCTION(operation_destroy, cublasLtMatmulDescDestroy)         \
  FUNCTION(operation_set, cublasLtMatmulDescSetAttribute)        \
  FUNCTION(layout_create, cublasLtMatrixLayoutCreate)            \
  FUNCTION(layout_destroy, cublasLtMatrixLayoutDestroy)          \
  FUNCTION(layout_set, cublasLtMatrixLayoutSetAttribute)         \
  FUNCTION(preference_create, cublasLtMatmulPreferenceCreate)    \
  FUNCTION(preference_destroy, cublasLtMatmulPreferenceDestroy)  \
  FUNCTION(preference_set, cublasLtMatmulPreferenceSetAttribute) \
  FUNCTION(heuristic, cublasLtMatmulAlgoGetHeuristic)            \
  FUNCTION(capability, cublasLtMatmulAlgoCapGetAttribute)        \
  FUNCTION(configuration, cublasLtMatmulAlgoConfigGetAttribute)  \
  FUNCTION(matmul, cublasLtMatmul)

struct Lt {
  std::string version;  // "cuBLASLt 13.10.0"
#define PYDLBENCH_DECLARE(member, name) decltype(&name) member;
  PYDLBENCH_CUBLASLT_FUNCTIONS(PYDLBENCH_DECLARE)
#undef PYDLBENCH_DECLARE

  // Returns the functions of the loaded library; throws Unsupported if the library is not loaded
  // or lacks one of them.
  static Lt loaded();

  // Throws Unsupported, OutOfMemory or PrimitiveFailure, with the library's reason.
  void check(cublasStatus_t status, const char* call) const;
};

// Owners of the library's objects; `lt` has to outlive them.
using Handle = std::unique_ptr<cublasLtContext, decltype(&cublasLtDestroy)>;
using Operation = std::unique_ptr<cublasLtMatmulDescOpaque_t, decltype(&cublasLtMatmulDescDestroy)>;
using Layout =
    std::unique_ptr<cublasLtMatrixLayoutOpaque_t, decltype(&cublasLtMatrixLayoutDestroy)>;
using Preference =
    std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, decltype(&cublasLtMatmulPreferenceDestroy)>;

Handle make_handle(const Lt& lt);
Operation make_operation(const Lt& lt, cublasComputeType_t compute, cudaDataType_t scale);
// Column-major and dense; `batch` matrices one after another.
Layout make_layout(const Lt& lt, cudaDataType_t type, std::int64_t rows, std::int64_t columns,
                   std::int64_t leading, std::int64_t batch, std::int64_t batch_stride);
Preference make_preference(const Lt& lt);

template <typename Value>
void set(const Lt& lt, const Operation& operation, cublasLtMatmulDescAttributes_t attribute,
         Value value) {
  lt.check(lt.operation_set(operation.get(), attribute, &value, sizeof value),
           "cublasLtMatmulDescSetAttribute");
}

template <typename Value>
void set(const Lt& lt, const Preference& preference, cublasLtMatmulPreferenceAttributes_t attribute,
         Value value) {
  lt.check(lt.preference_set(preference.get(), attribute, &value, sizeof value),
           "cublasLtMatmulPreferenceSetAttribute");
}

// An attribute of an algorithm, or `otherwise` if this version of the library does not have it.
template <typename Value>
Value configuration(const Lt& lt, const cublasLtMatmulAlgo_t& algorithm,
                    cublasLtMatmulAlgoConfigAttributes_t attribute, Value otherwise) {
  Value value{};
  std::size_t written = 0;
  const auto status = lt.configuration(&algorithm, attribute, &value, sizeof value, &written);
  return status == CUBLAS_STATUS_SUCCESS && written == sizeof value ? value : otherwise;
}

// CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS; 0 if the library does not report them.
std::uint64_t numerical_flags(const Lt& lt, const cublasLtMatmulAlgo_t& algorithm);

}  // namespace pydlbench::cuda::cublaslt
