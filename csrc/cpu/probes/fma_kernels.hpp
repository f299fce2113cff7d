// Inner loops of the FMA-peak probe, in assembly: a compiler may merge or drop accumulators.
#pragma once

#include <string>

namespace pydlbench::cpu {

struct FmaKernel {
  const char* name;         // the instruction and its width, for the record
  double flops_per_loop;    // counted from the instructions: lanes x 2 x instructions per loop
  void (*run)(long loops);  // executes `loops` times
};

// The kernel with the highest rate for "fp32", "bf16" or "fp16" on this CPU. Throws Unsupported
// when the CPU, the operating system or the compiler that built this lacks the instructions, and
// std::invalid_argument for another precision.
FmaKernel choose_fma_kernel(const std::string& precision);

}  // namespace pydlbench::cpu
