#include "cpu/chain/plan.hpp"

#include <algorithm>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "core/error.hpp"
#include "cpu/arena.hpp"
#include "cpu/chain/bound.hpp"
#include "cpu/chain/planner.hpp"
#include "cpu/counters.hpp"
#include "cpu/plans.hpp"

namespace pydlbench::cpu {

using dnnl::memory;

namespace {

// The view with the dimensions of `plain`, another shape of the same dense array; empty where its
// numbers lie in no order that these dimensions can tell. Rows and columns of an image are so one
// dimension, whatever its layout; channels and pixels only where they are dense.
std::optional<View> reshaped(const View& view, const memory::desc& plain) {
  if (view.desc.get_format_kind() != memory::format_kind::blocked ||
      view.plain.get_size() != plain.get_size()) {
    return std::nullopt;
  }
  const auto desc = view.desc.reshape(plain.get_dims(), true);
  if (!desc) return std::nullopt;
  return View{desc, plain, view.block};
}

// Whether a view has the layout of `desc`.
bool lies_as(const View& view, const memory::desc& desc, const memory::desc& plain) {
  if (same_layout(view.plain, plain)) return same_layout(view.desc, desc);
  const auto other = reshaped(view, plain);
  return other && same_layout(other->desc, desc);
}

// What a candidate wants a tensor to be, with its dimensions in the order of the dense array:
// products know weights as (k, n) and as (n, k), and one may lie as the other.
View wanted_by(const Argument& argument) {
  View view{argument.desc, argument.plain, 0};
  if (argument.desc.get_format_kind() != memory::format_kind::blocked) return view;
  const auto dims = argument.plain.get_dims(), strides = argument.plain.get_strides();
  std::vector<int> order(dims.size());
  std::iota(order.begin(), order.end(), 0);
  // Equal strides: one of the two has size one, and in a dense array that one is the inner.
  std::stable_sort(order.begin(), order.end(), [&](int left, int right) {
    const auto l = static_cast<std::size_t>(left), r = static_cast<std::size_t>(right);
    return strides[l] != strides[r] ? strides[l] > strides[r] : dims[l] > dims[r];
  });
  // Where each dimension goes.
  std::vector<int> places(dims.size());
  for (std::size_t i = 0; i < order.size(); ++i) {
    places[static_cast<std::size_t>(order[i])] = static_cast<int>(i);
  }
  view.desc = view.desc.permute_axes(places);
  view.plain = view.plain.permute_axes(places);
  return view;
}

bool mentions(const Option& option, const char* text) {
  return option.candidate.implementation.find(text) != std::string::npos;
}

// Memory with numbers that are neither zero (which is faster to compute with) nor denormal
// (slower); whole numbers are zero: they may be an index.
std::shared_ptr<Buffer> operand(const memory::desc& desc) {
  auto buffer = std::make_shared<Buffer>(desc.get_size());
  const auto type = desc.get_data_type();
  const bool whole = type == memory::data_type::s32 || type == memory::data_type::u8;
  fill_bytes(buffer->data(), whole ? 0 : 0x3c, buffer->size());
  return buffer;
}

class Planner final : public ChainPlanner<ChainPlan, View, Layouts> {
 public:
  Planner(const std::vector<Link>& links, const std::map<std::string, std::size_t>& given,
          const std::set<std::string>& kept, Precision precision, Layouts layouts, Choices& choices)
      : ChainPlanner(links, given, kept, layouts), precision_(precision), known_(choices) {}

 private:
  // ---------------------------------------------------------------------------------------------
  // Tensors in the layouts that links want.

  View loaded(const std::string& name, const memory::desc& desc, const memory::desc& plain) {
    auto& state = state_of(name);
    check_elements(name, state.given * sizeof(float) == plain.get_size());
    const View view{desc, plain, new_block(desc.get_size(), true)};
    state.views.push_back(view);
    plan_.loads.push_back({name, view, same_layout(desc, retyped(plain, desc.get_data_type()))});
    return view;
  }

  // The tensor in the layout of a reader, after the necessary conversions.
  View reading(const std::string& name, const memory::desc& desc, const memory::desc& plain) {
    auto& state = state_of(name);
    for (const auto& view : state.views) {
      if (lies_as(view, desc, plain)) return {desc, plain, view.block};
    }
    if (state.constant) return loaded(name, desc, plain);
    if (state.views.empty()) {
      PYDLBENCH_CHECK(state.given > 0, name + " is read before it is written");
      // Updates go over the elements one by one, which no packed format without strides allows.
      const bool strided = desc.get_format_kind() == memory::format_kind::blocked;
      const auto first = loaded(name, strided ? desc : retyped(plain, desc.get_data_type()), plain);
      if (strided) return first;
    }
    return converted(name, desc, plain);
  }

  View converted(const std::string& name, const memory::desc& desc, const memory::desc& plain) {
    View from = state_of(name).views.front();
    if (!same_layout(from.plain, plain)) {
      check_elements(name, from.plain.get_size() == plain.get_size());
      if (const auto other = reshaped(from, plain)) {
        from = *other;
      } else {
        const auto type = from.desc.get_data_type();
        const auto dense = reading(name, retyped(from.plain, type), from.plain);
        from = {retyped(plain, type), plain, dense.block};
        if (same_layout(from.desc, desc)) return {desc, plain, from.block};
      }
    }
    const View to{desc, plain, new_block(desc.get_size(), false)};
    use(from.block);
    use(to.block);
    plan_.scratch_bytes =
        std::max(plan_.scratch_bytes, Bound::reorder_scratch_bytes(from.desc, to.desc));
    plan_.steps.push_back({name + " reorder", true, name, {}, {from, to}});
    state_of(name).views.push_back(to);
    return to;
  }

  // ---------------------------------------------------------------------------------------------
  // Links.

  void add(const Link& given) override {
    Link link = given;
    std::optional<View> weights;
    if (is_of_weights(link)) {
      // All elements of the tensor as it is kept, the zeros that fill up its blocks among them.
      const auto& name = name_of_role(link, link.reads, "weights");
      if (state_of(name).views.empty()) {
        const memory::dims dims{static_cast<memory::dim>(state_of(name).given)};
        const memory::desc plain(dims, memory::data_type::f32, memory::format_tag::a);
        loaded(name, retyped(plain, data_type(precision_)), plain);
      }
      weights = state_of(name).views.front();
      const auto count = weights->desc.get_size() / memory::data_type_size(data_type(precision_));
      link.fields.set("channels", static_cast<std::int64_t>(count));
      link.problem += " " + std::to_string(count);
    }
    const auto option = choose(link, weights);
    const auto& candidate = option.candidate;
    const auto& arguments = candidate.run.arguments;
    ChainStep step{link.name, false, "", candidate, {}};
    step.views.resize(arguments.size());
    const auto wanted = [&](const Argument& argument) {
      const bool free = weights && is_weight_role(argument.role);
      return free ? *weights : wanted_by(argument);
    };
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      const auto& role = arguments[i].role;
      const auto want = wanted(arguments[i]);
      if (!arguments[i].is_output) {
        step.views[i] = reading(name_of_role(link, link.reads, role), want.desc, want.plain);
      } else if (arguments[i].is_updated) {
        const auto& name = name_of_role(link, link.writes, role);
        step.views[i] = updated(name, reading(name, want.desc, want.plain));
      }
    }
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (!arguments[i].is_output || arguments[i].is_updated) continue;
      step.views[i] = written(name_of_role(link, link.writes, arguments[i].role),
                              wanted_by(arguments[i]), arguments[i].desc.get_size());
    }
    if (candidate.workspace_bytes() > 0) {
      step.has_workspace = true;
      step.workspace = workspace_of(link, static_cast<std::size_t>(candidate.workspace_bytes()));
      use(step.workspace);
    }
    for (const auto& view : step.views) use(view.block);
    plan_.scratch_bytes =
        std::max(plan_.scratch_bytes, static_cast<std::size_t>(candidate.scratchpad_bytes()));
    plan_.steps.push_back(std::move(step));
  }

  std::size_t workspace_of(const Link& link, std::size_t bytes) {
    if (link.workspace.empty()) return new_block(bytes, false);
    const auto found = workspaces_.find(link.workspace);
    if (found != workspaces_.end()) return found->second;
    return workspaces_[link.workspace] = new_block(bytes, false);
  }

  // ---------------------------------------------------------------------------------------------
  // The choice among candidates.

  const std::vector<Candidate>& candidates(const Link& link) {
    const auto found = known_.candidates.find(link.problem);
    if (found != known_.candidates.end()) return found->second;
    return known_.candidates[link.problem] =
               candidates_of(link.fields, link.pass, precision_, false);
  }

  const Link* backward_of(const Link& link) const {
    if (link.workspace.empty() || !is_forward(link.pass)) return nullptr;
    for (const auto& other : links_) {
      if (other.workspace == link.workspace && !is_forward(other.pass)) return &other;
    }
    return nullptr;
  }

  std::vector<Option> options(const Link& link) {
    std::vector<Option> found;
    if (const Link* backward = backward_of(link)) {
      bool can_do_without = false;
      for (const auto& one : candidates(*backward)) {
        if (!one.forward) {
          can_do_without = true;
          continue;
        }
        Candidate forward = one;
        forward.primitive = link.name;
        forward.run = *one.forward;
        forward.forward.reset();
        found.push_back({std::move(forward), one});
      }
      if (can_do_without) {
        for (const auto& one : candidates(link)) {
          if (one.workspace_bytes() == 0) found.push_back({one, std::nullopt});
        }
      }
      return found;
    }
    const bool reads_workspace = !link.workspace.empty() && !is_forward(link.pass);
    if (reads_workspace) {
      if (const auto& paired = paired_[link.workspace]) return {{*paired, std::nullopt}};
    }
    for (const auto& one : candidates(link)) {
      if (reads_workspace && one.forward) continue;
      found.push_back({one, std::nullopt});
    }
    return found;
  }

  Option choose(const Link& link, const std::optional<View>& weights) {
    auto found = options(link);
    PYDLBENCH_CHECK(!found.empty(), link.name + ": no candidate");
    if (found.size() > 1) {
      auto key = key_of(link);
      if (const Link* backward = backward_of(link)) key += " " + backward->problem;
      const auto known = known_.fastest.find(key);
      if (known != known_.fastest.end()) {
        found = {known->second};
      } else {
        narrow(found, link);
        found = {fastest(found, link, weights)};
        known_.fastest.emplace(key, found.front());
      }
    }
    if (backward_of(link) != nullptr) paired_[link.workspace] = found.front().backward;
    return found.front();
  }

  void narrow(std::vector<Option>& found, const Link& link) {
    prefer(found, [](const Option& one) { return !one.candidate.is_reference; });
    if (layouts_ == Layouts::chosen && !link.choice.empty()) {
      prefer(found, [&](const Option& one) {
        return one.candidate.implementation + " " + one.candidate.layout == link.choice;
      });
      if (found.size() == 1) return;
    }
    // Code for shorter vectors is never the fastest, and slow to find that out.
    prefer(found, [](const Option& one) { return !mentions(one, "sse41"); });
    const auto wide = [](const Option& one) { return mentions(one, "avx512"); };
    if (std::any_of(found.begin(), found.end(), wide)) {
      prefer(found, [](const Option& one) { return !mentions(one, "avx2"); });
    }
    if (is_convolution(link)) {
      const std::string variant = layouts_ == Layouts::channels_last ? "nhwc"
                                  : layouts_ == Layouts::blocked     ? "blocked"
                                                                     : "any";
      prefer(found, [&](const Option& one) { return one.candidate.variant == variant; });
      return;
    }
    if (is_changing_matrix(link)) {
      prefer(found, [](const Option& one) { return one.candidate.variant == "plain"; });
    }
    prefer_least(found, [&](const Option& one) { return converted_bytes(one, link); });
  }

  std::string text_of(const View& view) const override {
    const auto count = static_cast<std::size_t>(view.desc.get_ndims());
    return format_name(view.desc, std::string("abcdefghijkl").substr(0, count));
  }

  // Null where the tensor needs no conversion within a step.
  const View* to_be_converted(const std::string& name, const View& wanted) {
    for (const auto& view : state_of(name).views) {
      if (lies_as(view, wanted.desc, wanted.plain)) return nullptr;
    }
    return stored(name);
  }

  std::size_t converted_bytes(const Option& option, const Link& link) {
    if (is_of_weights(link)) return 0;
    std::size_t bytes = 0;
    for (const auto& argument : option.candidate.run.arguments) {
      if (argument.is_output) continue;
      const auto& name = name_of_role(link, link.reads, argument.role);
      if (to_be_converted(name, wanted_by(argument)) != nullptr) {
        bytes += argument.desc.get_size();
      }
    }
    return bytes;
  }

  const Option& fastest(const std::vector<Option>& found, const Link& link,
                        const std::optional<View>& weights) {
    std::size_t best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t i = 0; i < found.size() && found.size() > 1; ++i) {
      const double taken = seconds(found[i].candidate, link, weights);
      if (taken < least) {
        least = taken;
        best = i;
      }
    }
    return found[best];
  }

  // Adds the conversion of one view into the other; of other dimensions by way of the dense array.
  static void append(std::vector<std::pair<memory::desc, memory::desc>>& found, const View& from,
                     const View& to) {
    if (same_layout(from.plain, to.plain)) {
      found.emplace_back(from.desc, to.desc);
      return;
    }
    if (const auto other = reshaped(from, to.plain)) {
      found.emplace_back(other->desc, to.desc);
      return;
    }
    const auto dense = retyped(from.plain, from.desc.get_data_type());
    if (!same_layout(from.desc, dense)) found.emplace_back(from.desc, dense);
    const auto again = retyped(to.plain, from.desc.get_data_type());
    if (!same_layout(again, to.desc)) found.emplace_back(again, to.desc);
  }

  // The conversions that a candidate costs within a step: of what it reads, and of the gradient of
  // weights that are kept in another layout. From and to.
  std::vector<std::pair<memory::desc, memory::desc>> conversions(const Candidate& candidate,
                                                                 const Link& link) {
    std::vector<std::pair<memory::desc, memory::desc>> found;
    const auto weights = link.reads.find("weights");
    for (const auto& argument : candidate.run.arguments) {
      const auto wanted = wanted_by(argument);
      if (!argument.is_output) {
        const auto& name = name_of_role(link, link.reads, argument.role);
        if (const View* from = to_be_converted(name, wanted)) append(found, *from, wanted);
      } else if (argument.role == "weights" && link.pass == Pass::backward_weights &&
                 weights != link.reads.end()) {
        const View* to = stored(weights->second);
        if (to != nullptr && !lies_as(*to, wanted.desc, wanted.plain)) append(found, wanted, *to);
      }
    }
    return found;
  }

  // The least of a few times of a candidate, with the conversions that it needs within a step.
  double seconds(const Candidate& candidate, const Link& link, const std::optional<View>& weights) {
    constexpr int kTries = 3;
    constexpr double kEnough = 0.2;  // seconds; a long kernel tells the same at once
    const auto needed = weights ? std::vector<std::pair<memory::desc, memory::desc>>{}
                                : conversions(candidate, link);
    std::size_t scratch_bytes = static_cast<std::size_t>(candidate.scratchpad_bytes());
    for (const auto& [from, to] : needed) {
      scratch_bytes = std::max(scratch_bytes, Bound::reorder_scratch_bytes(from, to));
    }
    const Buffer scratch(scratch_bytes);
    std::vector<std::shared_ptr<Buffer>> held;
    const auto fresh = [&](const memory::desc& desc) {
      held.push_back(operand(desc));
      return held.back()->data();
    };
    std::vector<void*> tensors;
    for (const auto& argument : candidate.run.arguments) tensors.push_back(fresh(argument.desc));
    void* workspace = nullptr;
    if (candidate.workspace_bytes() > 0) {
      workspace = fresh(candidate.run.primitive.query_md(dnnl::query::workspace_md));
    }
    std::vector<Bound> bound;
    for (const auto& [from, to] : needed) {
      bound.emplace_back(from, fresh(from), to, fresh(to), scratch.data());
    }
    bound.emplace_back(candidate, tensors, workspace, scratch.data());
    dnnl::stream stream(cpu_engine());
    double least = std::numeric_limits<double>::infinity();
    const double begin = now();
    for (int i = 0; i <= kTries; ++i) {
      const double start = now();
      for (auto& one : bound) one.run(stream);
      stream.wait();
      const double end = now();
      if (i > 0) least = std::min(least, end - start);  // the first run touches memory
      if (i > 0 && end - begin > kEnough) break;
    }
    return least;
  }

  Precision precision_;
  Choices& known_;
  std::map<std::string, std::optional<Candidate>> paired_;
  std::map<std::string, std::size_t> workspaces_;
};

}  // namespace

ChainPlan plan_chain(const std::vector<Link>& links,
                     const std::map<std::string, std::size_t>& given,
                     const std::set<std::string>& kept, Precision precision, Layouts layouts,
                     Choices& choices) {
  return Planner(links, given, kept, precision, layouts, choices).plan();
}

}  // namespace pydlbench::cpu
