// Tile products of Intel AMX for the FMA-peak probe.
#pragma once

#include "fma_kernels.hpp"

namespace pydlbench::cpu {

// The tile kernels; `run` is null when the compiler that built this did not know the instruction.
// The process must hold the tile permission (request_amx) before `run` is called.
FmaKernel amx_bf16_kernel();
FmaKernel amx_fp16_kernel();

}  // namespace pydlbench::cpu
