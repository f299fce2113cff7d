// A step's kernels in their order, with plans chosen, conversions between them, and memory by
// lifetime. Independent of CUDA: the device is abstract, so that it can be tested without one.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/chain.hpp"
#include "cuda/plan.hpp"
#include "cuda/tensor.hpp"

namespace pydlbench::cuda {

// In which layout convolutions are wanted; everything else takes what it is given, as far as it
// can.
enum class Layouts { channels_last, channels_first, chosen };

// From one layout of the same dimensions to another.
struct Conversion {
  TensorSpec from, to;
};

class Offers {
 public:
  virtual ~Offers() = default;
  // Every plan for the link in a layout ("nchw", "nhwc", "any"), in its library's order. Throws
  // Unsupported where there is none.
  virtual std::vector<std::shared_ptr<Plan>> plans(const Link& link, const std::string& layout) = 0;
  // What the plan takes behind the conversions; infinite where it cannot be built or run after all.
  virtual double seconds(const std::shared_ptr<Plan>& plan,
                         const std::vector<Conversion>& conversions) = 0;
};

struct Offered {
  std::vector<std::shared_ptr<Plan>> plans;
  std::string refused;  // why there is none
};

// What was found out about problems, for all chains that are planned with it. Of one device and
// mode.
struct Choices {
  std::map<std::string, Offered> offered;                // by problem and layout
  std::map<std::string, std::shared_ptr<Plan>> fastest;  // by problem and the layouts that it found
};

// A tensor as it lies in a block.
struct Placed {
  TensorSpec spec;
  std::size_t block;
};

struct ChainStep {
  std::string name;
  std::string tensor;           // that is converted; empty where this is a kernel
  std::shared_ptr<Plan> plan;   // of a kernel
  std::vector<Placed> tensors;  // in the order of the plan's; from and to of a conversion
};

// A tensor that is given, or a copy of it in another layout: filled before the first execution.
struct ChainLoad {
  std::string tensor;
  Placed placed;
};

struct ChainPlan {
  std::vector<ChainStep> steps;
  std::vector<ChainLoad> loads;
  std::vector<Block> blocks;
  std::size_t workspace_bytes = 0;        // of one workspace for all plans
  std::map<std::string, Placed> tensors;  // as each was written last; of those that are kept
};

// Chooses a plan for each link, builds it, and finds what has to be converted between them.
//
// Convolutions are looked for in `layouts`, and in both where there is none; everything else among
// the plans that need the fewest bytes converted, and matrices that the step changes among those
// that take them as they are given. Of several, the first few are timed and the fastest one is
// taken, once for all links of one problem that find their operands in the same layouts. A tensor
// that no link writes is laid out as each reader wants it, before the first execution; one that is
// given and written is kept as its first reader wants it. What a gradient takes from its forward
// pass besides tensors (where maxima were) is that of the forward link's plan. `given` is elements
// by name; `kept` are the tensors that can be read after an execution.
//
// Throws std::invalid_argument for a list that does not fit together, Unsupported where a link has
// no plan.
ChainPlan plan_chain(const std::vector<Link>& links,
                     const std::map<std::string, std::size_t>& given,
                     const std::set<std::string>& kept, Layouts layouts, Offers& offers,
                     Choices& choices);

// Whether it lies as the dense array; strides of dimensions of size one do not matter.
bool is_plain(const TensorSpec& spec);

// "acdb": the dimensions from the outermost to the innermost one.
std::string order_text(const TensorSpec& spec);

}  // namespace pydlbench::cuda
