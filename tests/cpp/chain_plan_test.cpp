// Chains of invented plans, planned as for a GPU and run on the host: whatever is chosen, each link
// finds what the list says.
#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "check.hpp"
#include "core/chain.hpp"
#include "core/error.hpp"
#include "cuda/chain/plan.hpp"
#include "cuda/chain/sequence.hpp"

namespace {

using namespace pydlbench;
using namespace pydlbench::cuda;

using Dense = std::vector<float>;

bool is_read(const TensorSpec& spec) { return spec.use != Use::output; }
bool is_written(const TensorSpec& spec) {
  return spec.use == Use::output || spec.use == Use::in_out;
}

Dense read(const TensorSpec& spec, const void* data) {
  Dense dense(static_cast<std::size_t>(spec.elements()));
  to_dense(spec, data, dense.data(), nullptr);
  return dense;
}

// What all invented kernels compute, element by element of the dense arrays; results that are
// written beside one another differ.
Dense computed(const std::vector<Dense>& inputs, std::int64_t elements, std::size_t which) {
  Dense found;
  for (std::size_t i = 0; i < static_cast<std::size_t>(elements); ++i) {
    float sum = 1.0f + static_cast<float>(which);
    for (const auto& input : inputs) sum += input[i % input.size()];
    // Small whole numbers: exact in every format.
    found.push_back(static_cast<float>(static_cast<int>(sum) % 50));
  }
  return found;
}

class Invented final : public Plan {
 public:
  Invented(std::string algorithm, std::string variant, std::vector<TensorSpec> tensors)
      : tensors_(std::move(tensors)) {
    facts_.algorithm = std::move(algorithm);
    facts_.variant = facts_.layout = std::move(variant);
  }
  const PlanFacts& facts() const override { return facts_; }
  const std::vector<TensorSpec>& tensors() const override { return tensors_; }
  std::size_t workspace_bytes() const override { return facts_.algorithm.size(); }
  void build() override {}
  void enqueue(const std::vector<void*>& pointers, void*, CUstream_st*) override {
    std::vector<Dense> inputs;
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (is_read(tensors_[i])) inputs.push_back(read(tensors_[i], pointers[i]));
    }
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (!is_written(tensors_[i])) continue;
      const auto result = computed(inputs, tensors_[i].elements(), i);
      to_storage(result.data(), tensors_[i], pointers[i], nullptr);
    }
  }

 private:
  PlanFacts facts_;
  std::vector<TensorSpec> tensors_;
};

TensorSpec image(const char* role, Use use, bool last, std::vector<std::int64_t> dims,
                 DataType type = DataType::float32) {
  auto strides = last ? channels_last_strides(dims) : plain_strides(dims);
  return {role, type, std::move(dims), std::move(strides), use};
}

TensorSpec rows(const char* role, Use use, std::int64_t height, std::int64_t width,
                bool transposed = false) {
  std::vector<std::int64_t> strides{height * width, width, 1};
  if (transposed) strides = {height * width, 1, height};
  return {role, DataType::float32, {1, height, width}, std::move(strides), use};
}

// Images {2, 3, 2, 2}, a convolution of 4 channels and 3x2 windows, a pooling to {2, 4, 1, 2}, a
// matrix of 8 x 3: everything as small as it can be and still lie in several ways.
class World final : public Offers {
 public:
  std::vector<std::shared_ptr<Plan>> plans(const Link& link, const std::string& layout) override {
    ++asked;
    if (refused.count(layout) > 0) throw Unsupported("nothing in " + layout);
    std::vector<std::shared_ptr<Plan>> found;
    const auto add = [&](const char* algorithm, const char* variant,
                         std::vector<TensorSpec> tensors) {
      found.push_back(std::make_shared<Invented>(algorithm, variant, std::move(tensors)));
    };
    const auto in = Use::input, out = Use::output;
    const bool forward = is_forward(link.pass);
    for (const bool last : {true, false}) {
      if (layout != "any" && last != (layout == "nhwc")) continue;
      const char* variant = last ? "nhwc" : "nchw";
      const auto src = [&](Use use) { return image("src", use, last, {2, 4, 2, 2}); };
      const auto dst = [&](Use use) { return image("dst", use, last, {2, 4, 1, 2}); };
      if (link.fields.kind() == "conv2d") {
        add("conv", variant,
            {image("src", in, last, {2, 3, 2, 2}),
             image("weights", forward ? in : out, last, {4, 3, 3, 2}),
             image("dst", forward ? out : in, last, {2, 4, 2, 2})});
      } else if (link.fields.kind() == "pool2d" && forward) {
        add("own", variant,
            {src(in), dst(out), image("argmax", out, last, {2, 4, 1, 2}, DataType::int8)});
        add("library", variant, {src(in), dst(out)});
      } else if (link.fields.kind() == "pool2d") {
        add("own", variant,
            {src(in), image("argmax", Use::derived, last, {2, 4, 1, 2}, DataType::int8), dst(in),
             src(out)});
        add("library", variant,
            {src(in), image("maxima", Use::derived, last, {2, 4, 1, 2}), dst(in), src(out)});
      } else if (link.name == "relu") {
        add("relu", variant, {src(in), image("dst", out, last, {2, 4, 2, 2})});
      }
    }
    if (link.fields.kind() == "gemm") {
      for (const bool transposed : {false, true}) {
        const bool backward_data = link.pass == Pass::backward_data;
        const bool backward_weights = link.pass == Pass::backward_weights;
        std::vector<TensorSpec> tensors;
        tensors.push_back(rows("src", backward_data ? out : in, 2, 8));
        tensors.push_back(rows("weights", backward_weights ? out : in, 8, 3, transposed));
        tensors.push_back(rows("dst", forward ? out : in, 2, 3));
        // As the products' own, all of these know all three: what a pass does not read stays out.
        if (backward_data) std::swap(tensors[0], tensors[2]);
        if (backward_weights) std::swap(tensors[1], tensors[2]);
        add(transposed ? "transposed" : "plain", transposed ? "transposed" : "plain",
            std::move(tensors));
      }
    }
    if (link.fields.kind() == "pointwise" && link.name != "relu") {
      const std::int64_t count = link.name == "conv update" ? 72 : 24;
      add("sgd", "plain",
          {{"gradient", DataType::float32, {count}, {1}, in},
           {"weights", DataType::float32, {count}, {1}, Use::in_out}});
    }
    return found;
  }

  double seconds(const std::shared_ptr<Plan>& plan,
                 const std::vector<Conversion>& conversions) override {
    ++timed;
    const auto known = times.find(plan->facts().algorithm);
    double sum = known == times.end() ? 1.0 : known->second;
    for (const auto& one : conversions) sum += 1e-3 * static_cast<double>(one.to.bytes());
    return sum;
  }

  std::set<std::string> refused;
  std::map<std::string, double> times;
  int asked = 0, timed = 0;
};

Link link(const char* name, const char* kind, Pass pass, std::map<std::string, std::string> reads,
          std::map<std::string, std::string> writes, const char* workspace = "") {
  Fields fields(kind, {});
  const bool update = std::string(name).find("update") != std::string::npos;
  if (std::string(kind) == "pointwise") fields.set("op", std::string(update ? "sgd" : "relu"));
  return {name, name, fields, pass, std::move(reads), std::move(writes), workspace, ""};
}

std::vector<Link> training() {
  const auto forward = Pass::forward_training;
  return {
      link("conv", "conv2d", forward, {{"src", "images"}, {"weights", "conv"}}, {{"dst", "a"}}),
      link("relu", "pointwise", forward, {{"src", "a"}}, {{"dst", "b"}}),
      link("pool", "pool2d", forward, {{"src", "b"}}, {{"dst", "c"}}, "pool/workspace"),
      link("fc", "gemm", forward, {{"src", "c"}, {"weights", "fc"}}, {{"dst", "d"}}),
      link("fc data", "gemm", Pass::backward_data, {{"dst", "d"}, {"weights", "fc"}},
           {{"src", "e"}}),
      link("fc weights", "gemm", Pass::backward_weights,
           {{"src", "c"}, {"dst", "d"}, {"weights", "fc"}}, {{"weights", "fc/gradient"}}),
      link("pool data", "pool2d", Pass::backward_data, {{"src", "b"}, {"dst", "e"}}, {{"src", "f"}},
           "pool/workspace"),
      link("conv weights", "conv2d", Pass::backward_weights,
           {{"src", "images"}, {"dst", "f"}, {"weights", "conv"}}, {{"weights", "conv/gradient"}}),
      link("fc update", "pointwise", forward, {{"gradient", "fc/gradient"}, {"weights", "fc"}},
           {{"weights", "fc"}}),
      link("conv update", "pointwise", forward,
           {{"gradient", "conv/gradient"}, {"weights", "conv"}}, {{"weights", "conv"}}),
  };
}

const std::map<std::string, std::size_t> kGiven{{"images", 24}, {"conv", 72}, {"fc", 24}};
const std::set<std::string> kKept{"d", "fc/gradient", "conv/gradient", "fc", "conv"};

Dense first(const std::string& name) {
  Dense values;
  for (std::size_t i = 0; i < kGiven.at(name); ++i) {
    values.push_back(static_cast<float>((i * i + name.size()) % 11));
  }
  return values;
}

// What the links compute on dense arrays, whose names alone connect them.
std::map<std::string, Dense> expected(const std::vector<Link>& links, const ChainPlan& plan) {
  std::map<std::string, Dense> known;
  for (const auto& [name, elements] : kGiven) known[name] = first(name);
  std::size_t next = 0;
  for (const auto& step : plan.steps) {
    if (!step.plan) continue;
    const auto& one = links.at(next++);
    CHECK_EQ(step.name, one.name);
    const auto& specs = step.plan->tensors();
    std::vector<Dense> inputs;
    for (const auto& spec : specs) {
      if (spec.role == "argmax" && is_read(spec)) {
        inputs.push_back(known.at("pool/workspace"));
      } else if (spec.role == "maxima") {
        inputs.push_back(known.at("c"));
      } else if (is_read(spec)) {
        inputs.push_back(known.at(one.reads.at(spec.role)));
      }
    }
    for (std::size_t i = 0; i < specs.size(); ++i) {
      if (!is_written(specs[i])) continue;
      const bool argmax = specs[i].role == "argmax";
      const auto& name = argmax ? one.workspace : one.writes.at(specs[i].role);
      known[name] = computed(inputs, specs[i].elements(), i);
    }
  }
  CHECK_EQ(next, links.size());
  return known;
}

// The plan on the host's memory, which holds NaN before; twice, to see that nothing is left over.
std::map<std::string, Dense> run(const ChainPlan& plan) {
  const auto placed = place(plan.blocks, 64);
  std::vector<unsigned char> shared(placed.bytes, 0xff);
  std::vector<std::vector<unsigned char>> kept;
  std::vector<void*> blocks;
  for (std::size_t i = 0; i < plan.blocks.size(); ++i) {
    const auto& block = plan.blocks[i];
    if (block.kept) kept.emplace_back(block.bytes, static_cast<unsigned char>(0xff));
    blocks.push_back(block.kept ? kept.back().data() : shared.data() + placed.offsets[i]);
  }
  Sequence sequence;
  for (const auto& step : plan.steps) {
    Bound bound{step.plan, {}, {}};
    for (const auto& [spec, block] : step.tensors) {
      bound.tensors.push_back(spec);
      bound.pointers.push_back(blocks[block]);
    }
    sequence.bound.push_back(std::move(bound));
  }
  for (int i = 0; i < 2; ++i) {
    for (const auto& [name, at] : plan.loads) {
      to_storage(first(name).data(), at.spec, blocks[at.block], nullptr);
    }
    std::fill(shared.begin(), shared.end(), static_cast<unsigned char>(0xff));
    sequence.enqueue(0, nullptr);
  }
  std::map<std::string, Dense> found;
  for (const auto& [name, at] : plan.tensors) found[name] = read(at.spec, blocks[at.block]);
  return found;
}

ChainPlan planned(World& world, Layouts layouts, std::vector<Link> links = training(),
                  const std::set<std::string>& kept = kKept) {
  Choices choices;
  return plan_chain(links, kGiven, kept, layouts, world, choices);
}

int reorders(const ChainPlan& plan) {
  return static_cast<int>(std::count_if(plan.steps.begin(), plan.steps.end(),
                                        [](const ChainStep& step) { return !step.plan; }));
}

const ChainStep& step_of(const ChainPlan& plan, const std::string& name) {
  const auto found = std::find_if(plan.steps.begin(), plan.steps.end(),
                                  [&](const ChainStep& step) { return step.name == name; });
  if (found == plan.steps.end()) throw std::invalid_argument("no step " + name);
  return *found;
}

template <typename Error>
std::string refusal(World& world, const std::vector<Link>& links,
                    const std::set<std::string>& kept) {
  try {
    planned(world, Layouts::channels_last, links, kept);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

bool says(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

constexpr Layouts kWays[] = {Layouts::channels_last, Layouts::channels_first, Layouts::chosen};

}  // namespace

TEST(every_link_finds_what_the_list_says_whatever_is_chosen) {
  for (const auto layouts : kWays) {
    for (const auto* slow : {"own", "library", "none"}) {
      for (const auto* refused : {"nhwc", "nchw", "nothing"}) {
        World world;
        world.times = {{slow, 2.0}};
        // Of convolutions: all others are asked for both.
        auto links = training();
        Choices choices;
        for (const auto& one : links) {
          if (is_convolution(one)) choices.offered[one.problem + " " + refused] = {{}, "no"};
        }
        const auto plan = plan_chain(links, kGiven, kKept, layouts, world, choices);
        const auto wanted = expected(links, plan);
        for (const auto& [name, values] : run(plan)) {
          CHECK_EQ(values, wanted.at(name));
        }
      }
    }
  }
}

TEST(updates_go_over_weights_and_gradients_that_lie_alike) {
  for (const auto layouts : kWays) {
    World world;
    const auto plan = planned(world, layouts);
    for (const auto* name : {"fc update", "conv update"}) {
      const auto& tensors = step_of(plan, name).tensors;
      CHECK(tensors[0].spec.strides == tensors[1].spec.strides);
      CHECK(tensors[0].spec.dims == tensors[1].spec.dims);
    }
    CHECK_EQ(plan.tensors.at("conv").block, step_of(plan, "conv update").tensors[1].block);
  }
}

TEST(images_stay_channels_last_until_rows_are_wanted) {
  World world;
  const auto plan = planned(world, Layouts::channels_last);
  for (const auto* name : {"conv", "relu", "pool", "pool data", "conv weights"}) {
    CHECK_EQ(step_of(plan, name).plan->facts().variant, std::string("nhwc"));
  }
  // The pooling's result as the rows of a matrix, and the gradient back from there.
  CHECK_EQ(reorders(plan), 2);
  World other;
  CHECK_EQ(reorders(planned(other, Layouts::channels_first)), 0);
}

TEST(tensors_that_no_link_writes_are_loaded_as_each_reader_wants_them) {
  World world;
  auto links = training();
  links.erase(links.begin() + 4, links.end());
  world.times = {{"plain", 2.0}};
  const auto plan = planned(world, Layouts::channels_last, links, {"d"});
  // A constant matrix may lie transposed: no step has to do it.
  CHECK_EQ(step_of(plan, "fc").plan->facts().variant, std::string("transposed"));
  CHECK_EQ(plan.loads.size(), std::size_t{3});
  // Of one that the step changes, the rows stay as they are.
  World again;
  again.times = world.times;
  CHECK_EQ(step_of(planned(again, Layouts::channels_last), "fc").plan->facts().variant,
           std::string("plain"));
}

TEST(a_gradient_takes_from_its_forward_pass_what_that_has_left) {
  World world;
  world.times = {{"own", 2.0}};
  const auto library = planned(world, Layouts::channels_last);
  CHECK_EQ(step_of(library, "pool").plan->facts().algorithm, std::string("library"));
  CHECK_EQ(step_of(library, "pool data").plan->facts().algorithm, std::string("library"));
  // The forward pass's result, not a copy of it.
  CHECK_EQ(step_of(library, "pool data").tensors[1].block,
           step_of(library, "pool").tensors[1].block);
  World other;
  other.times = {{"library", 2.0}};
  const auto own = planned(other, Layouts::channels_last);
  CHECK_EQ(step_of(own, "pool data").tensors[1].block, step_of(own, "pool").tensors[2].block);
}

TEST(a_problem_is_tried_once_and_a_choice_without_trial) {
  World world;
  auto links = training();
  Choices choices;
  plan_chain(links, kGiven, kKept, Layouts::channels_last, world, choices);
  const auto asked = world.asked, timed = world.timed;
  CHECK(timed > 0);
  plan_chain(links, kGiven, kKept, Layouts::channels_last, world, choices);
  CHECK_EQ(world.asked, asked);
  CHECK_EQ(world.timed, timed);

  World chosen;
  chosen.times = {{"library", 9.0}};
  links[2].choice = "library nchw";
  CHECK_EQ(step_of(planned(chosen, Layouts::chosen, links), "pool").plan->facts().layout,
           std::string("nchw"));
}

TEST(what_cannot_be_planned_is_refused_by_name) {
  World world;
  auto links = training();
  links.erase(links.begin() + 1, links.end());
  links[0].reads["src"] = "nobody";
  CHECK(says(refusal<std::invalid_argument>(world, links, {"a"}), "nobody"));
  links[0].reads.erase("src");
  CHECK(says(refusal<std::invalid_argument>(world, links, {"a"}), "role src"));
  links[0].reads["src"] = "fc";  // as many elements as images, by chance
  CHECK_EQ(refusal<std::invalid_argument>(world, links, {"a"}), std::string());
  links[0].reads["src"] = "conv";
  CHECK(says(refusal<std::invalid_argument>(world, links, {"a"}), "number of elements"));
  CHECK(says(refusal<std::invalid_argument>(world, training(), {"lost"}), "lost"));

  World nothing;
  nothing.refused = {"nhwc", "nchw", "any"};
  CHECK(says(refusal<Unsupported>(nothing, training(), kKept), "conv: nothing in any"));
  World slow;
  slow.times = {{"own", std::numeric_limits<double>::infinity()},
                {"library", std::numeric_limits<double>::infinity()}};
  CHECK(says(refusal<Unsupported>(slow, training(), kKept), "pool: none of"));
}

TEST(memory_is_shared_where_no_step_uses_both) {
  std::vector<Block> blocks{{100, false}, {50, false}, {60, false}, {7, true}, {64, false}};
  const std::pair<std::size_t, std::size_t> lives[] = {{0, 1}, {1, 2}, {2, 3}, {0, 9}, {4, 4}};
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    blocks[i].use(lives[i].first);
    blocks[i].use(lives[i].second);
  }
  const auto placed = place(blocks, 32);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].kept) continue;
    CHECK_EQ(placed.offsets[i] % 32, std::size_t{0});
    CHECK(placed.offsets[i] + blocks[i].bytes <= placed.bytes);
    for (std::size_t j = 0; j < i; ++j) {
      const bool together = blocks[i].first <= blocks[j].last && blocks[j].first <= blocks[i].last;
      const bool apart = placed.offsets[i] + blocks[i].bytes <= placed.offsets[j] ||
                         placed.offsets[j] + blocks[j].bytes <= placed.offsets[i];
      CHECK(blocks[j].kept || !together || apart);
    }
  }
  // The first two at the same time, rounded to the grain; all others find room in there.
  CHECK_EQ(placed.bytes, std::size_t{128 + 64});
}
