// What bias and the batch normalisation of inference share.
#pragma once

#include <functional>
#include <vector>

#include "cpu/pointwise/draft.hpp"

namespace pydlbench::cpu::pointwise {

// From the first argument to that of number `target`, along `line(pointers, channel)`.
void draft_affine(Draft& draft, const std::vector<Argument>& arguments, int target,
                  const std::function<Affine(Pointers, Index)>& line);

}  // namespace pydlbench::cpu::pointwise
