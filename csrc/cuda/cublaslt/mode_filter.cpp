#include "cuda/cublaslt/mode_filter.hpp"

#include <utility>

#include "core/error.hpp"
#include "cuda/mode.hpp"

namespace pydlbench::cuda::cublaslt {

std::vector<Compute> computes(Mode mode) {
  switch (mode) {
    case Mode::fp32:
      // The second one for products that the first does not support.
      return {Compute::float32, Compute::float32_pedantic};
    case Mode::tf32:
      return {Compute::fast_tf32};
    case Mode::fp16:
      return {Compute::float32, Compute::float16};
    case Mode::fp16_tc:
    case Mode::bf16_tc:
    case Mode::fp8_tc:
    case Mode::fp8_tc_fast:
    case Mode::mxfp8_tc:
    case Mode::nvfp4_tc:
      return {Compute::float32};
    case Mode::int8:
      return {Compute::int32};
  }
  return {};
}

std::uint64_t allowed_implementations(Mode mode) {
  // Restrict only the operations: accumulators and inputs follow from the types, and a mask without
  // their bits may exclude all algorithms.
  const std::uint64_t others = ~flag::operations;
  return others | (on_tensor_cores(mode) ? flag::tensor_operations : flag::fma);
}

std::uint32_t allowed_reductions(Mode mode, Compute compute) {
  // Partial sums that are stored in 16 bits are not float32 accumulation.
  const bool narrow_output = bytes_of(result_type(mode)) < bytes_of(DataType::float32);
  return narrow_output && compute != Compute::float16 ? reduction::compute_type : reduction::any;
}

std::optional<std::string> refusal(Mode mode, Compute compute, std::uint64_t flags,
                                   std::uint32_t reduction_scheme) {
  const auto operations = flags & flag::operations;
  const auto accumulators = flags & flag::accumulators;
  const auto inputs = flags & flag::inputs;
  if (!on_tensor_cores(mode)) {
    // CUBLAS_COMPUTE_32F guarantees float32 for float32 inputs, but not for 16 bits.
    if (operations == 0 && mode == Mode::fp16) return "does not say whether it uses tensor cores";
    if (operations != 0 && operations != flag::fma) return "is not plain FMA";
    const auto others =
        flag::input_tf32 | flag::input_16bf | (mode == Mode::fp32 ? flag::input_16f : 0);
    if (inputs & others) return "rounds its inputs";
  } else if (operations != 0 && !(mode == Mode::tf32 && (inputs & flag::input_tf32))) {
    // Unknown bits of newer libraries count as tensor cores. Only tensor cores compute with TF32
    // inputs, although Hopper's kernels report FMA.
    const auto others = is_narrow(mode) ? 0 : flag::imma | flag::dmma;
    if (!(operations & flag::tensor_operations & ~others)) {
      return is_narrow(mode) ? "uses no tensor cores" : "uses no floating-point tensor cores";
    }
  }
  // For 16 and 8 bits the storage type decides: Hopper's kernels report all of them as float16.
  if (mode == Mode::tf32 && (inputs & ~(flag::input_tf32 | flag::input_32f))) {
    return "does not compute in TF32";
  }
  const bool integers = mode == Mode::int8;
  const auto wanted = integers ? flag::accumulator_32i : flag::accumulator_32f;
  if (on_tensor_cores(mode) && accumulators != 0 && !(accumulators & wanted)) {
    return integers ? "does not accumulate in int32" : "does not accumulate in float32";
  }
  if (compute != Compute::float16 && (accumulators & flag::accumulator_16f)) {
    return "accumulates in float16";
  }
  if (reduction_scheme & ~allowed_reductions(mode, compute)) {
    return "adds partial sums in the output's type";
  }
  return std::nullopt;
}

std::optional<bool> tensor_cores(std::uint64_t flags) {
  if (!(flags & flag::operations)) return std::nullopt;
  return (flags & (flag::tensor_operations | flag::input_tf32)) != 0;
}

std::string accumulate(Compute compute, std::uint64_t flags) {
  if (compute == Compute::int32) return "int32";
  // Hopper's kernels for float16 accumulate in it, but report float32.
  return compute == Compute::float16 || (flags & flag::accumulator_16f) ? "float16" : "float32";
}

std::vector<std::string> names(std::uint64_t flags) {
  static constexpr struct {
    std::uint64_t bit;
    const char* name;
  } kNames[] = {{flag::fma, "FMA"},
                {flag::hmma, "HMMA"},
                {flag::imma, "IMMA"},
                {flag::dmma, "DMMA"},
                {flag::accumulator_16f, "ACCUMULATOR_16F"},
                {flag::accumulator_32f, "ACCUMULATOR_32F"},
                {flag::accumulator_64f, "ACCUMULATOR_64F"},
                {flag::accumulator_32i, "ACCUMULATOR_32I"},
                {flag::input_16f, "INPUT_16F"},
                {flag::input_16bf, "INPUT_16BF"},
                {flag::input_tf32, "INPUT_TF32"},
                {flag::input_32f, "INPUT_32F"},
                {flag::input_64f, "INPUT_64F"},
                {flag::input_8i, "INPUT_8I"},
                {flag::input_e4m3, "INPUT_8F_E4M3"},
                {flag::input_e5m2, "INPUT_8F_E5M2"},
                {flag::gaussian, "GAUSSIAN"}};
  std::vector<std::string> result;
  for (const auto& [bit, name] : kNames) {
    if (flags & bit) result.emplace_back(name);
  }
  return result;
}

void check_mode(Mode mode, const PlainGemm& problem, int capability) {
  require_capability(mode, capability);
  if (!is_narrow(mode)) return;
  const int multiple = mode == Mode::int8 ? 4 : scale_block(mode) > 0 ? 32 : 16;
  for (const auto& [letter, size] :
       {std::pair{"m", problem.m}, {"k", problem.k}, {"n", problem.n}}) {
    if (size % multiple != 0) {
      throw Unsupported(std::string(name_of(mode)) + " needs sizes that are multiples of " +
                        std::to_string(multiple) + ", and " + letter + " is " +
                        std::to_string(size));
    }
  }
}

}  // namespace pydlbench::cuda::cublaslt
