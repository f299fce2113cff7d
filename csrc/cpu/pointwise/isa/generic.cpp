// The loops for what every CPU of this architecture has.
#define PYDLBENCH_ISA generic
#include "cpu/pointwise/isa/table.hpp"
