// The loops for avx512.
#define PYDLBENCH_ISA avx512
#include "cpu/pointwise/isa/table.hpp"
