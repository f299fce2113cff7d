// Memory-bound layers: every way in which oneDNN or loops of our own compute one.
#pragma once

#include <vector>

#include "core/problem.hpp"
#include "cpu/candidate.hpp"

namespace pydlbench::cpu {

// In all layouts. Roles and formulas are those of pydlbench.layers.pointwise; arithmetic is float32
// in both precisions, fp32 and bf16. Of our own loops those for the widest instruction set, unless
// `thorough`, which is for tests: then all, and streaming stores for the smallest tensors too.
// Throws Unsupported where the op has no such pass or precision, std::invalid_argument where a
// parameter is missing or unknown.
std::vector<Candidate> pointwise_candidates(const PointwiseProblem& problem, Pass pass,
                                            Precision precision, bool thorough);

}  // namespace pydlbench::cpu
