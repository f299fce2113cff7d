#include "cuda/chain/plan.hpp"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "core/chain_planner.hpp"
#include "core/error.hpp"

namespace pydlbench::cuda {

namespace {

// Plans of one link that are timed: the libraries put the likely ones first, and building one of
// cuDNN's can take a second.
constexpr std::size_t kMostTried = 8;

bool same_strides(const std::vector<std::int64_t>& dims, const std::vector<std::int64_t>& left,
                  const std::vector<std::int64_t>& right) {
  for (std::size_t i = 0; i < dims.size(); ++i) {
    if (dims[i] > 1 && left[i] != right[i]) return false;
  }
  return true;
}

// Whether the numbers of one are where the other wants them. Of other dimensions they are where
// both are dense rows: the same array then.
bool lies_as(const TensorSpec& left, const TensorSpec& right) {
  if (left.type != right.type) return false;
  if (left.dims == right.dims) return same_strides(left.dims, left.strides, right.strides);
  return left.elements() == right.elements() && is_plain(left) && is_plain(right);
}

TensorSpec plain(const TensorSpec& spec, DataType type) {
  return {spec.role, type, spec.dims, plain_strides(spec.dims), spec.use};
}

// The way from one layout to another; between different dimensions by way of the dense array.
std::vector<Conversion> conversions_between(const TensorSpec& from, const TensorSpec& to) {
  if (lies_as(from, to)) return {};
  if (from.dims == to.dims) return {{from, to}};
  std::vector<Conversion> found;
  if (!is_plain(from)) found.push_back({from, plain(from, from.type)});
  const auto again = plain(to, from.type);
  if (!lies_as(again, to)) found.push_back({again, to});
  return found;
}

class Planner final : public ChainPlanner<ChainPlan, Placed, Layouts> {
 public:
  Planner(const std::vector<Link>& links, const std::map<std::string, std::size_t>& given,
          const std::set<std::string>& kept, Layouts layouts, Offers& offers, Choices& choices)
      : ChainPlanner(links, given, kept, layouts), offers_(offers), known_(choices) {}

 private:
  // The name of what a plan reads; null where its forward pass has left no such thing.
  const std::string* name_of_input(const Link& link, const TensorSpec& spec) const {
    if (spec.use != Use::derived) return &name_of_role(link, link.reads, spec.role);
    const std::string* name = &link.workspace;
    if (spec.role == "maxima") {
      const auto forward = std::find_if(links_.begin(), links_.end(), [&](const Link& one) {
        return !link.workspace.empty() && one.workspace == link.workspace && is_forward(one.pass);
      });
      if (forward == links_.end()) return nullptr;
      name = &name_of_role(*forward, forward->writes, "dst");
    }
    return states_.count(*name) > 0 ? name : nullptr;
  }

  // Where the maxima were is no tensor of the list: it goes by the name of the workspace.
  static std::string name_of_output(const Link& link, const TensorSpec& spec) {
    if (spec.role == "argmax" && !link.workspace.empty()) return link.workspace;
    return name_of_role(link, link.writes, spec.role);
  }

  // ---------------------------------------------------------------------------------------------
  // Tensors in the layouts that links want.

  // As the spec, in the block of a view that lies so.
  static std::optional<Placed> find(const State& state, const TensorSpec& spec) {
    for (const auto& view : state.views) {
      if (lies_as(view.spec, spec)) return Placed{spec, view.block};
    }
    return std::nullopt;
  }

  Placed loaded(const std::string& name, const TensorSpec& spec) {
    auto& state = state_of(name);
    check_elements(name, state.given == static_cast<std::size_t>(spec.elements()));
    const Placed placed{spec, new_block(spec.bytes(), true)};
    state.views.push_back(placed);
    plan_.loads.push_back({name, placed});
    return placed;
  }

  // The tensor in the layout of a reader, after the necessary conversions.
  Placed reading(const std::string& name, const TensorSpec& spec) {
    auto& state = state_of(name);
    if (const auto found = find(state, spec)) return *found;
    if (state.constant || state.views.empty()) {
      PYDLBENCH_CHECK(state.given > 0, name + " is read before it is written");
      return loaded(name, spec);
    }
    const auto& first = state.views.front().spec;
    check_elements(name, first.elements() == spec.elements());
    for (const auto& [from, to] : conversions_between(first, spec)) {
      const auto source = reading(name, from);
      const Placed target{to, new_block(to.bytes(), false)};
      use(source.block);
      use(target.block);
      plan_.steps.push_back({name + " reorder", name, nullptr, {source, target}});
      state.views.push_back(target);
    }
    return *find(state, spec);
  }

  // ---------------------------------------------------------------------------------------------
  // Links.

  void add(const Link& link) override {
    const auto weights = weights_of(link);
    const auto plan = choose(link);
    plan->prepare();
    const auto& specs = plan->tensors();
    ChainStep step{link.name, "", plan, std::vector<Placed>(specs.size())};
    for (std::size_t i = 0; i < specs.size(); ++i) {
      auto wanted = specs[i];
      if (weights && is_weight_role(wanted.role)) {
        wanted.dims = weights->dims;
        wanted.strides = weights->strides;
      }
      if (wanted.use == Use::in_out) {
        const auto& name = name_of_role(link, link.writes, wanted.role);
        step.tensors[i] = updated(name, reading(name, wanted));
      } else if (wanted.use != Use::output) {
        step.tensors[i] = reading(*name_of_input(link, wanted), wanted);
      }
    }
    for (std::size_t i = 0; i < specs.size(); ++i) {
      if (specs[i].use != Use::output) continue;
      step.tensors[i] = written(name_of_output(link, specs[i]), {specs[i], 0}, specs[i].bytes());
    }
    for (const auto& placed : step.tensors) use(placed.block);
    plan_.workspace_bytes = std::max(plan_.workspace_bytes, plan->workspace_bytes());
    plan_.steps.push_back(std::move(step));
  }

  // How the weights lie that a link goes over one by one; nothing for all other links.
  std::optional<TensorSpec> weights_of(const Link& link) {
    if (!is_of_weights(link)) return std::nullopt;
    const auto& name = name_of_role(link, link.reads, "weights");
    const auto& state = state_of(name);
    if (!state.views.empty()) return state.views.front().spec;
    const auto elements = static_cast<std::int64_t>(state.given);
    return TensorSpec{"weights", DataType::float32, {elements}, {1}, Use::input};
  }

  // ---------------------------------------------------------------------------------------------
  // The choice among plans.

  std::vector<std::string> layouts_of(const Link& link) const {
    if (is_convolution(link)) {
      if (layouts_ == Layouts::chosen) return {"any"};
      return {layouts_ == Layouts::channels_last ? "nhwc" : "nchw"};
    }
    if (link.fields.kind() == "gemm" || is_of_weights(link)) return {"nchw"};
    return {"nhwc", "nchw"};
  }

  const Offered& offered(const Link& link, const std::string& layout) {
    const auto key = link.problem + " " + layout;
    const auto known = known_.offered.find(key);
    if (known != known_.offered.end()) return known->second;
    Offered found;
    try {
      found.plans = offers_.plans(link, layout);
    } catch (const Unsupported& error) {
      found.refused = error.what();
    }
    return known_.offered.emplace(key, std::move(found)).first->second;
  }

  bool can_run(const Plan& plan, const Link& link) const {
    const auto& specs = plan.tensors();
    return std::all_of(specs.begin(), specs.end(), [&](const TensorSpec& spec) {
      return spec.use != Use::derived || name_of_input(link, spec) != nullptr;
    });
  }

  std::vector<std::shared_ptr<Plan>> plans(const Link& link) {
    std::vector<std::shared_ptr<Plan>> found;
    std::string refused = "what its plans need is not left by the forward pass";
    const auto append = [&](const std::string& layout) {
      const auto& offer = offered(link, layout);
      if (!offer.refused.empty()) refused = offer.refused;
      std::copy_if(offer.plans.begin(), offer.plans.end(), std::back_inserter(found),
                   [&](const auto& plan) { return can_run(*plan, link); });
    };
    for (const auto& layout : layouts_of(link)) append(layout);
    if (found.empty() && is_convolution(link) && layouts_ != Layouts::chosen) append("any");
    if (found.empty()) throw Unsupported(link.name + ": " + refused);
    return found;
  }

  std::shared_ptr<Plan> choose(const Link& link) {
    auto found = plans(link);
    narrow(found, link);
    if (found.size() == 1) return found.front();
    // Which plans of a gradient can run depends on what its forward pass has left.
    const bool has_workspace = states_.count(link.workspace) > 0;
    auto& known = known_.fastest[key_of(link) + (has_workspace ? " with workspace" : "")];
    if (!known) known = fastest(found, link);
    return known;
  }

  void narrow(std::vector<std::shared_ptr<Plan>>& found, const Link& link) {
    if (layouts_ == Layouts::chosen && !link.choice.empty()) {
      prefer(found, [&](const auto& one) {
        return one->facts().algorithm + " " + one->facts().layout == link.choice;
      });
      if (found.size() == 1) return;
    }
    if (is_changing_matrix(link)) {
      prefer(found, [](const auto& one) { return one->facts().variant == "plain"; });
    }
    if (!is_convolution(link)) {
      prefer_least(found, [&](const auto& one) { return converted_bytes(*one, link); });
    }
    if (found.size() > kMostTried) found.resize(kMostTried);
  }

  std::string text_of(const Placed& placed) const override { return order_text(placed.spec); }

  // The conversions that a plan costs within a step: of what it reads, and of the gradient of
  // weights that are kept in another layout.
  std::vector<Conversion> conversions(const Plan& plan, const Link& link) {
    std::vector<Conversion> found;
    if (is_of_weights(link)) return found;
    const auto append = [&](const std::vector<Conversion>& more) {
      found.insert(found.end(), more.begin(), more.end());
    };
    const auto weights = link.reads.find("weights");
    for (const auto& spec : plan.tensors()) {
      if (spec.use == Use::input || spec.use == Use::derived) {
        const auto& name = *name_of_input(link, spec);
        const Placed* from = stored(name);
        if (from != nullptr && !find(state_of(name), spec)) {
          append(conversions_between(from->spec, spec));
        }
      } else if (spec.role == "weights" && link.pass == Pass::backward_weights &&
                 weights != link.reads.end()) {
        const Placed* to = stored(weights->second);
        if (to != nullptr) append(conversions_between(spec, to->spec));
      }
    }
    return found;
  }

  std::size_t converted_bytes(const Plan& plan, const Link& link) {
    std::size_t bytes = 0;
    for (const auto& one : conversions(plan, link)) bytes += one.to.bytes();
    return bytes;
  }

  std::shared_ptr<Plan> fastest(const std::vector<std::shared_ptr<Plan>>& found, const Link& link) {
    std::shared_ptr<Plan> best;
    double least = std::numeric_limits<double>::infinity();
    for (const auto& one : found) {
      const double taken = offers_.seconds(one, conversions(*one, link));
      if (taken >= least) continue;
      least = taken;
      best = one;
    }
    if (!best) {
      throw Unsupported(link.name + ": none of " + std::to_string(found.size()) +
                        " plans can be built and run");
    }
    return best;
  }

  Offers& offers_;
  Choices& known_;
};

}  // namespace

ChainPlan plan_chain(const std::vector<Link>& links,
                     const std::map<std::string, std::size_t>& given,
                     const std::set<std::string>& kept, Layouts layouts, Offers& offers,
                     Choices& choices) {
  PYDLBENCH_CHECK(!links.empty(), "a chain without links");
  return Planner(links, given, kept, layouts, offers, choices).plan();
}

bool is_plain(const TensorSpec& spec) {
  return same_strides(spec.dims, spec.strides, plain_strides(spec.dims));
}

std::string order_text(const TensorSpec& spec) {
  std::vector<std::size_t> axes(spec.dims.size());
  std::iota(axes.begin(), axes.end(), std::size_t{0});
  std::stable_sort(axes.begin(), axes.end(),
                   [&](auto left, auto right) { return spec.strides[left] > spec.strides[right]; });
  std::string text;
  for (const auto axis : axes) text += static_cast<char>('a' + axis);
  return text;
}

}  // namespace pydlbench::cuda
