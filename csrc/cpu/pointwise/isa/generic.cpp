// The loops for the baseline of this architecture.
#define PYDLBENCH_ISA generic
#include "cpu/pointwise/isa/table.hpp"
