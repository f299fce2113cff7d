// A step's kernels in their order, with layouts chosen, conversions between them, and memory by
// lifetime; nothing is allocated or run here but what it takes to choose.
#pragma once

#include <cstddef>
#include <map>
#include <oneapi/dnnl/dnnl.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/problem.hpp"
#include "cpu/candidate.hpp"
#include "cpu/chain/link.hpp"

namespace pydlbench::cpu {

// A candidate for a link; with that for the backward link that reads its workspace, whose format
// belongs to one implementation.
struct Option {
  Candidate candidate;
  std::optional<Candidate> backward;
};

// What was found out about problems, for all chains that are planned with it.
struct Choices {
  std::map<std::string, std::vector<Candidate>> candidates;  // by problem
  std::map<std::string, Option> fastest;  // by problem and the layouts that it found
};

// In which layout convolutions are wanted; everything else takes what it is given, as far as it
// can.
enum class Layouts { channels_last, blocked, chosen };

// A tensor as it lies in a block; `plain` is the dense float32 array that it stands for, in the
// dimensions of `desc`.
struct View {
  dnnl::memory::desc desc;
  dnnl::memory::desc plain;
  std::size_t block;
};

// What is executed: a kernel, or a conversion (`candidate` has nothing to run then, and `views` are
// from and to).
struct ChainStep {
  std::string name;
  bool is_reorder;
  std::string tensor;  // of a conversion
  Candidate candidate;
  std::vector<View> views;  // in the order of the candidate's arguments
  bool has_workspace = false;
  std::size_t workspace = 0;  // block
};

// A tensor that is given, or a copy of it in another layout: filled before the first execution.
struct Load {
  std::string tensor;
  View view;
  bool is_plain;
};

struct ChainPlan {
  std::vector<ChainStep> steps;
  std::vector<Load> loads;
  std::vector<Block> blocks;
  std::size_t scratch_bytes = 0;
  std::map<std::string, View> tensors;  // as each was written last; of those that are kept
};

// Chooses a candidate for each link and what has to be converted between them.
//
// Convolutions are looked for in `layouts`; everything else among the candidates that need the
// fewest bytes converted. Of several, each is run a few times on memory of its own and the fastest
// one is taken, once for all links of one problem that find their operands in the same layouts. A
// tensor that no link writes is laid out as each reader wants it, before the first execution; one
// that is given and written is kept as its first reader wants it. `given` is elements by name;
// `kept` are the tensors that can be read after an execution. `choices` are taken where they are
// known, and added to.
ChainPlan plan_chain(const std::vector<Link>& links,
                     const std::map<std::string, std::size_t>& given,
                     const std::set<std::string>& kept, Precision precision, Layouts layouts,
                     Choices& choices);

}  // namespace pydlbench::cpu
