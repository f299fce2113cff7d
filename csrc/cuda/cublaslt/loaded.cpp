// The table of functions, from the library that was loaded.
#include "cuda/cublaslt/functions.hpp"
#include "cuda/libraries/loader.hpp"

namespace pydlbench::cuda::cublaslt {

namespace {

template <typename Function>
void find(Function& function, const char* name) {
  function = reinterpret_cast<Function>(cublaslt_symbol(name));
}

}  // namespace

Lt Lt::loaded() {
  Lt lt{};
  lt.version = cublaslt_version_text();
  find(lt.create, "cublasLtCreate");
  find(lt.destroy, "cublasLtDestroy");
  find(lt.status_string, "cublasLtGetStatusString");
  find(lt.operation_create, "cublasLtMatmulDescCreate");
  find(lt.operation_destroy, "cublasLtMatmulDescDestroy");
  find(lt.operation_set, "cublasLtMatmulDescSetAttribute");
  find(lt.layout_create, "cublasLtMatrixLayoutCreate");
  find(lt.layout_destroy, "cublasLtMatrixLayoutDestroy");
  find(lt.layout_set, "cublasLtMatrixLayoutSetAttribute");
  find(lt.preference_create, "cublasLtMatmulPreferenceCreate");
  find(lt.preference_destroy, "cublasLtMatmulPreferenceDestroy");
  find(lt.preference_set, "cublasLtMatmulPreferenceSetAttribute");
  find(lt.heuristic, "cublasLtMatmulAlgoGetHeuristic");
  find(lt.capability, "cublasLtMatmulAlgoCapGetAttribute");
  find(lt.configuration, "cublasLtMatmulAlgoConfigGetAttribute");
  find(lt.matmul, "cublasLtMatmul");
  return lt;
}

}  // namespace pydlbench::cuda::cublaslt
