// Selection of cuBLASLt's algorithms by precision mode. The library may use other arithmetic than
// the requested compute type, so each algorithm's numerical flags decide.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/problem.hpp"
#include "cuda/mode.hpp"
#include "cuda/plain.hpp"

namespace pydlbench::cuda::cublaslt {

// CUBLASLT_NUMERICAL_IMPL_FLAGS_* without the library's header; library.cpp checks the values.
namespace flag {
constexpr std::uint64_t fma = 0x01, hmma = 0x02, imma = 0x04, dmma = 0x08;
constexpr std::uint64_t tensor_operations = 0xfe, operations = 0xff;
constexpr std::uint64_t accumulator_16f = 0x01 << 8, accumulator_32f = 0x02 << 8,
                        accumulator_64f = 0x04 << 8, accumulator_32i = 0x08 << 8,
                        accumulators = 0xff << 8;
constexpr std::uint64_t input_16f = 0x01 << 16, input_16bf = 0x02 << 16, input_tf32 = 0x04 << 16,
                        input_32f = 0x08 << 16, input_64f = 0x10 << 16, input_8i = 0x20 << 16,
                        input_e4m3 = 0x40 << 16, input_e5m2 = 0x80 << 16, inputs = 0xff << 16;
constexpr std::uint64_t gaussian = std::uint64_t{1} << 32;
}  // namespace flag

// CUBLASLT_REDUCTION_SCHEME_*: how the parts of a split reduction are added.
namespace reduction {
constexpr std::uint32_t none = 0, in_place = 1, compute_type = 2, output_type = 4, any = 7;
}

// The requested compute type.
enum class Compute { float32, float32_pedantic, fast_tf32, float16, int32 };

// The compute types of a mode, the preferred one first.
std::vector<Compute> computes(Mode mode);

// The search preferences of a mode: allowed implementations and reductions.
std::uint64_t allowed_implementations(Mode mode);
std::uint32_t allowed_reductions(Mode mode, Compute compute);

// The reason why an algorithm with these flags and this reduction does not belong to the mode;
// nothing if it does.
//
// If flags are missing (as for some of the library's newest kernels), the requested compute type
// and the check of the result decide. Only fp16 requires flags: the same compute type may run on
// tensor cores.
std::optional<std::string> refusal(Mode mode, Compute compute, std::uint64_t flags,
                                   std::uint32_t reduction_scheme);

// Whether the flags contain tensor cores; nothing if they contain no operation.
std::optional<bool> tensor_cores(std::uint64_t flags);

// "int32", "float32" or "float16": the latter if the compute type or the flags contain it.
std::string accumulate(Compute compute, std::uint64_t flags);

// The library's names of the flags: "FMA", "ACCUMULATOR_32F", "INPUT_TF32".
std::vector<std::string> names(std::uint64_t flags);

// Throws Unsupported, with the reason, if GPUs of this compute capability (major x 10 + minor) or
// the libraries do not support the mode in these sizes.
void check_mode(Mode mode, const PlainGemm& problem, int capability);

}  // namespace pydlbench::cuda::cublaslt
