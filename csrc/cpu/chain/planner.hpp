// A step's tensors while the plan of a chain is made.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "cpu/chain/link.hpp"

namespace pydlbench {

// Keeps those of `options` that satisfy, unless none does.
template <typename Option, typename Predicate>
void prefer(std::vector<Option>& options, Predicate&& satisfies) {
  std::vector<Option> kept;
  std::copy_if(options.begin(), options.end(), std::back_inserter(kept), satisfies);
  if (!kept.empty()) options = std::move(kept);
}

// Keeps those of `options` that have the fewest bytes.
template <typename Option, typename Bytes>
void prefer_least(std::vector<Option>& options, Bytes&& bytes_of) {
  std::size_t least = std::numeric_limits<std::size_t>::max();
  for (const auto& one : options) least = std::min(least, bytes_of(one));
  prefer(options, [&](const Option& one) { return bytes_of(one) == least; });
}

// Goes over the links in their order. A `View` says how a tensor lies in its `block`, a `Plan` has
// `steps`, `blocks`, and `tensors` by name, and `Layouts` is an enumeration that has `chosen`. The
// lists that it is made with stay the caller's.
template <typename Plan, typename View, typename Layouts>
class ChainPlanner {
 public:
  Plan plan() {
    for (const auto& link : links_) add(link);
    for (const auto& name : kept_) {
      const auto& state = state_of(name);
      PYDLBENCH_CHECK(!state.views.empty(), "no link has read or written " + name);
      plan_.tensors.emplace(name, state.views.front());
    }
    return std::move(plan_);
  }

 protected:
  // A tensor. The first view is the tensor, all others are conversions of it.
  struct State {
    std::vector<View> views;  // empty: a given tensor that was not read yet
    std::size_t given = 0;    // elements
    bool constant = false;    // given, and no link writes it
  };

  // `given` is elements by name.
  ChainPlanner(const std::vector<Link>& links, const std::map<std::string, std::size_t>& given,
               const std::set<std::string>& kept, Layouts layouts)
      : links_(links), kept_(kept), layouts_(layouts) {
    for (const auto& [name, elements] : given) states_[name] = {{}, elements, true};
    for (const auto& link : links) {
      for (const auto& [role, name] : link.writes) {
        const auto found = states_.find(name);
        if (found != states_.end()) found->second.constant = false;
      }
    }
  }
  ~ChainPlanner() = default;

  virtual void add(const Link& link) = 0;
  // The same text for what lies alike.
  virtual std::string text_of(const View& view) const = 0;

  State& state_of(const std::string& name) {
    const auto found = states_.find(name);
    PYDLBENCH_CHECK(found != states_.end(), "no tensor named " + name);
    return found->second;
  }

  // How the tensor lies that a step would have to convert; null where it is laid out before the
  // first execution, as each reader wants it.
  const View* stored(const std::string& name) {
    const auto& state = state_of(name);
    return state.constant || state.views.empty() ? nullptr : &state.views.front();
  }

  std::size_t new_block(std::size_t bytes, bool kept) {
    plan_.blocks.push_back({bytes, kept});
    return plan_.blocks.size() - 1;
  }

  // The next step works on the block.
  void use(std::size_t block) { plan_.blocks[block].use(plan_.steps.size()); }

  static void check_elements(const std::string& name, bool same) {
    PYDLBENCH_CHECK(same, "the tensor " + name + " has the wrong number of elements");
  }

  // The tensor itself, read as `view`, to be overwritten.
  View updated(const std::string& name, const View& view) {
    auto& state = state_of(name);
    const auto first = state.views.front();
    PYDLBENCH_CHECK(state.given == 0 || view.block == first.block,
                    name + " is updated in another layout than it is kept in");
    if (kept_.count(name) > 0) plan_.blocks[view.block].kept = true;
    state.views = {view.block == first.block ? first : view};
    return view;
  }

  // A tensor that a link makes, in a block of its own.
  View written(const std::string& name, View view, std::size_t bytes) {
    auto& state = states_[name];
    PYDLBENCH_CHECK(state.views.empty() && state.given == 0, name + " is written twice");
    view.block = new_block(bytes, kept_.count(name) > 0);
    state.views = {view};
    return view;
  }

  // A large matrix that every step changes would be laid out anew as often.
  bool is_changing_matrix(const Link& link) {
    return link.fields.kind() == "gemm" &&
           !state_of(name_of_role(link, link.reads, "weights")).constant;
  }

  // What a link finds: its problem, and how what it reads lies.
  std::string key_of(const Link& link) const {
    std::string key = link.problem;
    // Nothing else depends on what convolutions are wanted in.
    if (is_convolution(link)) key += " " + std::to_string(static_cast<int>(layouts_));
    if (layouts_ == Layouts::chosen) key += " " + link.choice;
    for (const auto& [role, name] : link.reads) {
      const auto found = states_.find(name);
      if (found == states_.end()) continue;  // of another pass
      const auto& state = found->second;
      const bool free = state.constant || state.views.empty();
      key += " " + role + " ";
      key += free ? (state.constant ? "constant" : "given") : text_of(state.views.front());
    }
    return key;
  }

  const std::vector<Link>& links_;
  const std::set<std::string>& kept_;
  Layouts layouts_;
  Plan plan_;
  std::map<std::string, State> states_;
};

}  // namespace pydlbench
