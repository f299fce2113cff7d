// cuBLASLt's search and plans with a fake library, as C functions. The fake library offers the
// algorithms of a test, records its arguments, and multiplies float32 matrices in host memory like
// the real one.
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <sstream>
#include <string>

#include "cuda/cublaslt/search.hpp"
#include "problem_from.hpp"

using namespace pydlbench;
using namespace pydlbench::cuda;
using namespace pydlbench::cuda::cublaslt;

namespace {

// The fake library's opaque types.
struct FakeOperation : cublasLtMatmulDescOpaque_t {
  std::int32_t compute, scale, transpose_a = CUBLAS_OP_N, transpose_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};
struct FakeLayout : cublasLtMatrixLayoutOpaque_t {
  std::int32_t type, batch = 1;
  std::int64_t rows, columns, leading, batch_stride = 0;
};

struct FakePreference : cublasLtMatmulPreferenceOpaque_t {
  std::uint64_t implementations = ~std::uint64_t{0};
};

std::ostringstream record;
std::string answer;
std::vector<cublasLtMatmulHeuristicResult_t> offers;
cublasStatus_t heuristic_status, matmul_status;
bool gives_flags, restricts;  // whether the library reports flags and respects the restriction
int live = 0;

const char* kept(std::string text) {
  answer = std::move(text);
  return answer.c_str();
}

template <typename Base, typename Derived>
cublasStatus_t created(Base** out, Derived* object) {
  ++live;
  *out = object;
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Derived, typename Base>
cublasStatus_t destroyed(Base* object) {
  --live;
  delete static_cast<Derived*>(object);
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Value>
Value read(const void* from, std::size_t bytes) {
  if (bytes != sizeof(Value)) record << "WRONG SIZE " << bytes << "\n";
  Value value{};
  std::memcpy(&value, from, std::min(bytes, sizeof value));
  return value;
}

cublasStatus_t fake_create(cublasLtHandle_t* handle) {
  ++live;
  *handle = reinterpret_cast<cublasLtHandle_t>(&live);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t fake_destroy(cublasLtHandle_t) {
  --live;
  return CUBLAS_STATUS_SUCCESS;
}
const char* fake_status_string(cublasStatus_t) { return "an invented reason"; }

cublasStatus_t fake_operation_create(cublasLtMatmulDesc_t* out, cublasComputeType_t compute,
                                     cudaDataType_t scale) {
  auto* operation = new FakeOperation{};
  operation->compute = compute, operation->scale = scale;
  record << "operation compute " << compute << " scale " << scale << "\n";
  return created(out, operation);
}

cublasStatus_t fake_operation_set(cublasLtMatmulDesc_t descriptor,
                                  cublasLtMatmulDescAttributes_t attribute, const void* value,
                                  std::size_t bytes) {
  auto& operation = *static_cast<FakeOperation*>(descriptor);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      operation.transpose_a = read<std::int32_t>(value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      operation.transpose_b = read<std::int32_t>(value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      operation.epilogue = read<std::uint32_t>(value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      operation.bias = read<const void*>(value, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      record << "bias type " << read<std::int32_t>(value, bytes) << "\n";
      break;
    case CUBLASLT_MATMUL_DESC_FAST_ACCUM:
      record << "fast accumulation " << int{read<std::int8_t>(value, bytes)} << "\n";
      break;
#if CUBLAS_VERSION >= 120800
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE:
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE:
      record << "scale mode " << read<std::int32_t>(value, bytes) << "\n";
      break;
#endif
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
    case CUBLASLT_MATMUL_DESC_D_SCALE_POINTER:
      record << "scale " << attribute << " is " << *read<const float*>(value, bytes) << "\n";
      break;
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t fake_layout_create(cublasLtMatrixLayout_t* out, cudaDataType type,
                                  std::uint64_t rows, std::uint64_t columns, std::int64_t leading) {
  auto* layout = new FakeLayout{};
  layout->type = type, layout->leading = leading;
  layout->rows = static_cast<std::int64_t>(rows),
  layout->columns = static_cast<std::int64_t>(columns);
  record << "matrix " << type << "\n";
  return created(out, layout);
}

cublasStatus_t fake_layout_set(cublasLtMatrixLayout_t descriptor,
                               cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                               std::size_t bytes) {
  auto& layout = *static_cast<FakeLayout*>(descriptor);
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) {
    layout.batch = read<std::int32_t>(value, bytes);
  } else if (attribute == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET) {
    layout.batch_stride = read<std::int64_t>(value, bytes);
  } else {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t fake_preference_create(cublasLtMatmulPreference_t* out) {
  return created(out, new FakePreference{});
}

cublasStatus_t fake_preference_set(cublasLtMatmulPreference_t descriptor,
                                   cublasLtMatmulPreferenceAttributes_t attribute,
                                   const void* value, std::size_t bytes) {
  if (attribute == CUBLASLT_MATMUL_PREF_IMPL_MASK) {
    static_cast<FakePreference*>(descriptor)->implementations = read<std::uint64_t>(value, bytes);
  }
  record << "preference " << attribute << " is "
         << (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK
                 ? read<std::uint32_t>(value, bytes)
                 : read<std::uint64_t>(value, bytes))
         << "\n";
  return CUBLAS_STATUS_SUCCESS;
}

// An invented algorithm keeps its configuration and its flags in its own words.
enum Word { id_word, tile_word, stages_word, split_word, scheme_word, option_word, flags_word };

cublasStatus_t fake_heuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                              cublasLtMatrixLayout_t, cublasLtMatmulPreference_t preference,
                              int requested, cublasLtMatmulHeuristicResult_t results[],
                              int* count) {
  if (heuristic_status != CUBLAS_STATUS_SUCCESS) return heuristic_status;
  const auto allowed = static_cast<FakePreference*>(preference)->implementations;
  *count = 0;
  for (const auto& offer : offers) {
    if (*count == requested || (restricts && (offer.algo.data[flags_word] & ~allowed))) continue;
    results[(*count)++] = offer;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t fake_capability(const cublasLtMatmulAlgo_t* algorithm,
                               cublasLtMatmulAlgoCapAttributes_t attribute, void* out,
                               std::size_t bytes, std::size_t* written) {
  if (attribute != CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS || bytes != 8) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (!gives_flags) return CUBLAS_STATUS_NOT_SUPPORTED;
  std::memcpy(out, &algorithm->data[flags_word], 8);
  *written = 8;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t fake_configuration(const cublasLtMatmulAlgo_t* algorithm,
                                  cublasLtMatmulAlgoConfigAttributes_t attribute, void* out,
                                  std::size_t bytes, std::size_t* written) {
  int word = 0;
  switch (attribute) {
    case CUBLASLT_ALGO_CONFIG_ID:
      word = id_word;
      break;
    case CUBLASLT_ALGO_CONFIG_TILE_ID:
      word = tile_word;
      break;
    case CUBLASLT_ALGO_CONFIG_STAGES_ID:
      word = stages_word;
      break;
    case CUBLASLT_ALGO_CONFIG_SPLITK_NUM:
      word = split_word;
      break;
    case CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME:
      word = scheme_word;
      break;
    case CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION:
      word = option_word;
      break;
    default:
      return CUBLAS_STATUS_INVALID_VALUE;
  }
  if (bytes != 4) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(out, &algorithm->data[word], bytes);
  *written = bytes;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t fake_matmul(cublasLtHandle_t, cublasLtMatmulDesc_t operation_, const void* alpha,
                           const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                           cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                           cublasLtMatrixLayout_t c_layout, void* d,
                           cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm,
                           void* workspace, std::size_t workspace_bytes, cudaStream_t stream) {
  const auto& operation = *static_cast<FakeOperation*>(operation_);
  const auto& left = *static_cast<FakeLayout*>(a_layout);
  const auto& right = *static_cast<FakeLayout*>(b_layout);
  const auto& out = *static_cast<FakeLayout*>(d_layout);
  record << "matmul algo " << algorithm->data[id_word] << " c type "
         << static_cast<FakeLayout*>(c_layout)->type << (c == d ? " in place" : "")
         << (c == nullptr ? " none" : "") << " workspace " << workspace << " of " << workspace_bytes
         << " stream " << stream;
  if (operation.scale == CUDA_R_16F) {
    std::uint16_t scales[2];
    std::memcpy(&scales[0], alpha, 2), std::memcpy(&scales[1], beta, 2);
    record << " half alpha " << scales[0] << " beta " << scales[1] << "\n";
  } else if (operation.scale == CUDA_R_32I) {
    std::int32_t scales[2];
    std::memcpy(&scales[0], alpha, 4), std::memcpy(&scales[1], beta, 4);
    record << " whole alpha " << scales[0] << " beta " << scales[1] << "\n";
  } else {
    float scales[2];
    std::memcpy(&scales[0], alpha, 4), std::memcpy(&scales[1], beta, 4);
    record << " alpha " << scales[0] << " beta " << scales[1] << "\n";
  }
  if (matmul_status != CUBLAS_STATUS_SUCCESS) return matmul_status;
  if (out.type != CUDA_R_32F) return CUBLAS_STATUS_SUCCESS;
  const auto at = [](const void* data, const FakeLayout& m, std::int64_t batch, std::int64_t row,
                     std::int64_t column) {
    return static_cast<const float*>(data)[batch * m.batch_stride + column * m.leading + row];
  };
  const bool ta = operation.transpose_a == CUBLAS_OP_T, tb = operation.transpose_b == CUBLAS_OP_T;
  const auto depth = ta ? left.rows : left.columns;
  if ((tb ? right.columns : right.rows) != depth || (ta ? left.columns : left.rows) != out.rows ||
      (tb ? right.rows : right.columns) != out.columns || left.batch != out.batch ||
      right.batch != out.batch) {
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  for (std::int64_t batch = 0; batch < out.batch; ++batch) {
    for (std::int64_t i = 0; i < out.rows; ++i) {
      for (std::int64_t j = 0; j < out.columns; ++j) {
        double sum = 0.0;
        for (std::int64_t l = 0; l < depth; ++l) {
          sum += double{at(a, left, batch, ta ? l : i, ta ? i : l)} *
                 at(b, right, batch, tb ? j : l, tb ? l : j);
        }
        if (operation.epilogue & CUBLASLT_EPILOGUE_BIAS) {
          sum += static_cast<const float*>(operation.bias)[i];
        }
        if (operation.epilogue & CUBLASLT_EPILOGUE_RELU) sum = std::max(sum, 0.0);
        static_cast<float*>(d)[batch * out.batch_stride + j * out.leading + i] =
            static_cast<float>(sum);
      }
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}

Lt invented() {
  return {"cuBLASLt 0.0.0",
          &fake_create,
          &fake_destroy,
          &fake_status_string,
          &fake_operation_create,
          &destroyed<FakeOperation, cublasLtMatmulDescOpaque_t>,
          &fake_operation_set,
          &fake_layout_create,
          &destroyed<FakeLayout, cublasLtMatrixLayoutOpaque_t>,
          &fake_layout_set,
          &fake_preference_create,
          &destroyed<FakePreference, cublasLtMatmulPreferenceOpaque_t>,
          &fake_preference_set,
          &fake_heuristic,
          &fake_capability,
          &fake_configuration,
          &fake_matmul};
}

std::vector<std::shared_ptr<Plan>> made;

template <typename Run>
const char* guarded(Run&& run) {
  try {
    return kept(run());
  } catch (const Unsupported& error) {
    return kept(std::string("!unsupported ") + error.what());
  } catch (const OutOfMemory& error) {
    return kept(std::string("!memory ") + error.what());
  } catch (const std::exception& error) {
    return kept(std::string("!") + error.what());
  }
}

}  // namespace

extern "C" {

// Resets all state, and sets the library's status codes.
void reset_library(int heuristic, int matmul) {
  made.clear();
  offers.clear();
  record.str("");
  heuristic_status = static_cast<cublasStatus_t>(heuristic);
  matmul_status = static_cast<cublasStatus_t>(matmul);
  gives_flags = true, restricts = false;
}

void set_behaviour(int flags, int restriction) {
  gives_flags = flags != 0, restricts = restriction != 0;
}

void offer_algorithm(std::uint64_t id, std::uint64_t tile, std::uint64_t split_k,
                     std::uint64_t scheme, std::uint64_t option, std::uint64_t flags,
                     std::uint64_t workspace, int state) {
  cublasLtMatmulHeuristicResult_t result{};
  const std::uint64_t words[] = {id, tile, 0, split_k, scheme, option, flags};
  std::copy(std::begin(words), std::end(words), result.algo.data);
  result.workspaceSize = workspace;
  result.state = static_cast<cublasStatus_t>(state);
  offers.push_back(result);
}

int live_library_objects() { return live; }
const char* recorded_calls() { return kept(record.str()); }

// One line for each plan; fields between bars.
const char* gemm_plans_of(const char* pass, const char* mode, std::int64_t batch, std::int64_t m,
                          std::int64_t k, std::int64_t n, int capability, std::size_t limit,
                          int fused) {
  return guarded([&] {
    made.clear();
    auto session = std::make_shared<Session>(invented());
    static const float scales[] = {1.0f, 2.0f, 3.0f};  // of FP8; of blocks: src, any other
    const auto scale = [](int i) { return std::shared_ptr<const void>(scales + i, [](auto) {}); };
    session->one = scale(0);
    session->block_scales = [&](const TensorSpec& spec) {
      return scale(spec.role == "src" ? 1 : 2);
    };
    made = plans(session, gemm_problem(batch, m, k, n), pass_of(pass), mode_of(mode), capability,
                 limit, fused != 0);
    std::ostringstream lines;
    for (const auto& plan : made) {
      const auto& facts = plan->facts();
      lines << facts.primitive << "|" << facts.variant << "|" << facts.layout << "|"
            << facts.algorithm << "|" << facts.accumulate << "|"
            << (facts.tensor_cores ? int{*facts.tensor_cores} : -1) << "|";
      for (const auto& note : facts.notes) lines << note << " ";
      lines << "|" << plan->workspace_bytes() << "|";
      for (const auto& tensor : plan->tensors()) lines << tensor.role << " ";
      lines << "\n";
    }
    return lines.str();
  });
}

// The strides of a plan's tensor, three numbers.
void gemm_strides_of(int plan, int tensor, std::int64_t* out) {
  const auto& strides = made.at(static_cast<std::size_t>(plan))
                            ->tensors()
                            .at(static_cast<std::size_t>(tensor))
                            .strides;
  std::copy(strides.begin(), strides.end(), out);
}

const char* run_gemm_plan(int plan, void** pointers, int count, void* workspace) {
  return guarded([&] {
    auto& chosen = *made.at(static_cast<std::size_t>(plan));
    chosen.prepare();
    chosen.enqueue(std::vector<void*>(pointers, pointers + count), workspace, nullptr);
    return std::string();
  });
}

}  // extern "C"
