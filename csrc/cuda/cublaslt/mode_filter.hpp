// Which algorithms of cuBLASLt belong to a precision mode. A mode is more than the compute type
// that is asked for: the library may answer with other arithmetic, so each algorithm's own
// numerical flags decide.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/problem.hpp"
#include "cuda/mode.hpp"
#include "cuda/plain.hpp"

namespace pydlbench::cuda::cublaslt {

// CUBLASLT_NUMERICAL_IMPL_FLAGS_*, without the library's header; library.cpp holds them equal.
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

// CUBLASLT_REDUCTION_SCHEME_*: where the parts of a split reduction are added.
namespace reduction {
constexpr std::uint32_t none = 0, in_place = 1, compute_type = 2, output_type = 4, any = 7;
}

// The request to the library.
enum class Compute { float32, float32_pedantic, fast_tf32, float16 };

// The compute types to ask for in a mode, the preferred one first.
std::vector<Compute> computes(Mode mode);

// The search preferences that go with a mode: implementations and reductions that are allowed.
std::uint64_t allowed_implementations(Mode mode);
std::uint32_t allowed_reductions(Mode mode, Compute compute);

// Why an algorithm with these flags and this reduction is not of the mode; nothing where it is.
//
// What the flags say counts; what they leave open (a library may give none for its newest kernels)
// is settled by the compute type that was asked for, and by the check of the result. Only fp16
// needs the flags' word: the same compute type may run on tensor cores.
std::optional<std::string> refusal(Mode mode, Compute compute, std::uint64_t flags,
                                   std::uint32_t reduction_scheme);

// Whether the flags name tensor cores; nothing where they name no operation at all.
std::optional<bool> tensor_cores(std::uint64_t flags);

// "float32" or "float16": that of the compute type, or what the flags name if they name float16.
std::string accumulate(Compute compute, std::uint64_t flags);

// The flags by the library's names: "FMA", "ACCUMULATOR_32F", "INPUT_TF32".
std::vector<std::string> names(std::uint64_t flags);

// Throws Unsupported, with the reason in one sentence, where no GPU of this compute capability
// (major x 10 + minor) or no library computes the mode in these sizes.
void check_mode(Mode mode, const PlainGemm& problem, int capability);

}  // namespace pydlbench::cuda::cublaslt
