// A step as a list of kernels with named tensors, and memory that they share by lifetime.
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/fields.hpp"
#include "core/host_tensor.hpp"
#include "core/problem.hpp"

namespace pydlbench {

// Elements of each of the caller's tensors.
inline std::map<std::string, std::size_t> sizes(const std::map<std::string, HostTensor>& given) {
  std::map<std::string, std::size_t> found;
  for (const auto& [name, tensor] : given) found[name] = tensor.elements;
  return found;
}

// One kernel of a step, by the names of the tensors that it works on.
struct Link {
  std::string name;     // "conv1 forward", for people
  std::string problem;  // links with the same text have the same fields and pass
  Fields fields;
  Pass pass;
  std::map<std::string, std::string> reads, writes;  // tensors by role; updated ones in both
  std::string workspace;  // what a forward link leaves for the backward link of the same text
  std::string choice;     // "<implementation> <layout>" that was found to be the fastest, or empty
};

inline const std::string& name_of_role(const Link& link,
                                       const std::map<std::string, std::string>& names,
                                       const std::string& role) {
  const auto found = names.find(role);
  PYDLBENCH_CHECK(found != names.end(), link.name + ": no tensor for the role " + role);
  return found->second;
}

// Works on the elements of weight tensors one by one: in whatever layout they lie, if all lie
// alike.
inline bool is_of_weights(const Link& link) {
  if (link.fields.kind() != "pointwise") return false;
  auto fields = link.fields;
  const auto op = fields.take<std::string>("op");
  return op == "sgd" || op == "momentum" || op == "l2";
}

inline bool is_weight_role(const std::string& role) {
  return role == "weights" || role == "gradient" || role == "velocity";
}

inline bool is_convolution(const Link& link) {
  const auto op = link.fields.op();
  return op == "conv" || op == "deconv";
}

// Memory that is in use from step `first` to step `last`, or in all of them and between executions.
struct Block {
  std::size_t bytes;
  bool kept;
  std::size_t first = std::numeric_limits<std::size_t>::max(), last = 0;

  void use(std::size_t step) {
    first = std::min(first, step);
    last = std::max(last, step);
  }
};

// Offsets by block in the one piece of memory of all that are not kept, and its bytes.
struct Placement {
  std::vector<std::size_t> offsets;
  std::size_t bytes;
};

// Puts blocks that are not kept into one piece of memory. Two of them share bytes only where no
// step uses both: the largest block first, each at the lowest place that is free while it lives, at
// a multiple of `grain` bytes.
inline Placement place(const std::vector<Block>& blocks, std::size_t grain) {
  const auto rounded = [grain](std::size_t bytes) { return (bytes + grain - 1) / grain * grain; };
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

// Bytes of a chain's memory. It stays between executions, so that none of them touches memory for
// the first time.
struct ChainMemory {
  std::size_t kept;      // given tensors, what can be read afterwards
  std::size_t shared;    // everything else, by lifetime
  std::size_t unshared;  // what that would be without sharing
  std::size_t scratch;   // the libraries', one for all kernels
};

}  // namespace pydlbench
