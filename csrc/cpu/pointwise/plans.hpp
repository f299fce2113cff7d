// Memory-bound layers: every way in which oneDNN or loops of our own compute one.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "core/problem.hpp"
#include "cpu/candidate.hpp"

namespace pydlbench::cpu {

struct PointwiseProblem {
  std::string op;  // "relu", "batchnorm", ...
  std::int64_t batch, channels, height, width;
  std::map<std::string, double> numbers;  // parameters of the op: "epsilon", "keep", ...
  std::vector<std::int64_t> sources;      // channels of each source of a concatenation
};

// In all layouts. Roles and formulas are those of pydlbench.layers.Pointwise; arithmetic is float32
// in both precisions, fp32 and bf16. Of our own loops those for the widest instruction set, unless
// `thorough`, which is for tests: then all, and streaming stores for the smallest tensors too.
// Throws Unsupported where the op has no such pass or precision, std::invalid_argument where a
// parameter is missing or unknown.
std::vector<Candidate> pointwise_candidates(const PointwiseProblem& problem, Pass pass,
                                            Precision precision, bool thorough);

}  // namespace pydlbench::cpu
