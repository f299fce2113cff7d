// Memory by lifetime: the largest block first, each at the lowest place that is free while it
// lives.
#include <algorithm>
#include <numeric>

#include "cpu/chain/plan.hpp"

namespace pydlbench::cpu {

namespace {
// A page: no two tensors share one.
constexpr std::size_t kGrain = 4096;

std::size_t rounded(std::size_t bytes) { return (bytes + kGrain - 1) / kGrain * kGrain; }
}  // namespace

Placement place(const std::vector<Block>& blocks) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (!blocks[i].kept) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t left, std::size_t right) {
    return blocks[left].bytes > blocks[right].bytes;
  });
  Placement found{std::vector<std::size_t>(blocks.size(), 0), 0};
  std::vector<std::size_t> placed;  // by offset
  for (const auto index : order) {
    const auto& block = blocks[index];
    const auto bytes = rounded(block.bytes);
    std::size_t offset = 0;
    for (const auto other : placed) {
      const auto& taken = blocks[other];
      if (taken.last < block.first || block.last < taken.first) continue;
      if (offset + bytes <= found.offsets[other]) break;
      offset = std::max(offset, found.offsets[other] + rounded(taken.bytes));
    }
    found.offsets[index] = offset;
    found.bytes = std::max(found.bytes, offset + bytes);
    const auto behind = std::upper_bound(
        placed.begin(), placed.end(), offset,
        [&](std::size_t place, std::size_t one) { return place < found.offsets[one]; });
    placed.insert(behind, index);
  }
  return found;
}

}  // namespace pydlbench::cpu
