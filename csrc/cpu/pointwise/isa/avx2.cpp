// The loops for avx2.
#define PYDLBENCH_ISA avx2
#include "cpu/pointwise/isa/table.hpp"
