#include "cuda/pointwise/plan_builder.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "cuda/plan.hpp"

namespace pydlbench::cuda::pointwise {

namespace {

class KernelPlan final : public Plan {
 public:
  KernelPlan(PlanFacts facts, std::vector<TensorSpec> tensors, std::size_t workspace_bytes,
             Enqueue enqueue)
      : facts_(std::move(facts)),
        tensors_(std::move(tensors)),
        workspace_bytes_(workspace_bytes),
        enqueue_(std::move(enqueue)) {}

  const PlanFacts& facts() const override { return facts_; }
  const std::vector<TensorSpec>& tensors() const override { return tensors_; }
  std::size_t workspace_bytes() const override { return workspace_bytes_; }
  void build() override {}  // compiled with the module
  void enqueue(const Pointers& pointers, void* workspace, CUstream_st* stream) override {
    enqueue_(pointers, workspace, stream);
  }

 private:
  PlanFacts facts_;
  std::vector<TensorSpec> tensors_;
  std::size_t workspace_bytes_;
  Enqueue enqueue_;
};

// "src nhwc, dst nhwc"; a role that is read and written is listed once.
std::string layout_of(const std::vector<TensorSpec>& tensors, bool channels_last) {
  std::vector<std::string> roles;
  for (const auto& tensor : tensors) {
    const bool seen = std::find(roles.begin(), roles.end(), tensor.role) != roles.end();
    if (tensor.dims.size() == 4 && !seen) roles.push_back(tensor.role);
  }
  std::string text;
  for (const auto& role : roles) {
    text += (text.empty() ? "" : ", ") + role + (channels_last ? " nhwc" : " nchw");
  }
  return text.empty() ? "plain" : text;
}

}  // namespace

double Parameters::take(const std::string& name) {
  const auto found = numbers_.find(name);
  PYDLBENCH_CHECK(found != numbers_.end(), "the parameter " + name + " is missing");
  const double value = found->second;
  numbers_.erase(found);
  return value;
}

void Parameters::check_all_taken(const std::string& op) const {
  PYDLBENCH_CHECK(numbers_.empty(), op + " has no parameter " + numbers_.begin()->first);
}

TensorSpec PlanBuilder::map(const std::string& role, Use use, std::int64_t channels) const {
  const std::vector<std::int64_t> dims{problem.batch, channels > 0 ? channels : problem.channels,
                                       problem.height, problem.width};
  return {role, type, dims, channels_last ? channels_last_strides(dims) : plain_strides(dims), use};
}

TensorSpec PlanBuilder::vector(const std::string& role, Use use, std::int64_t elements,
                               DataType element) const {
  return {role, element, {elements}, {1}, use};
}

void PlanBuilder::add(const std::string& kernel, std::vector<TensorSpec> tensors,
                      std::size_t workspace_bytes, Enqueue enqueue) {
  PlanFacts facts;
  facts.primitive = problem.op + " " + name_of(pass);
  facts.algorithm = "pydlbench " + problem.op + " " + kernel;
  facts.library = kOwnLibrary;
  facts.variant = variant;
  facts.layout = layout_of(tensors, channels_last);
  facts.tensor_cores = false;
  plans.push_back(std::make_shared<KernelPlan>(std::move(facts), std::move(tensors),
                                               workspace_bytes, std::move(enqueue)));
}

namespace {

// Elements of one vector per thread of a block.
std::int64_t elements_at_once(const PlanBuilder& builder) {
  return std::int64_t{kThreads} * static_cast<std::int64_t>(16 / bytes_of(builder.type));
}

}  // namespace

NamedTiling one_tiling(const PlanBuilder& builder, int inputs) {
  if (builder.count() <= elements_at_once(builder)) {
    return {{false, kMaxBlocks}, "1 vector per thread"};
  }
  return {{true, kMaxBlocks}, std::to_string(unrolled_vectors(inputs)) + " vectors per thread"};
}

std::vector<NamedTiling> tilings(const PlanBuilder& builder, int inputs) {
  std::vector<NamedTiling> result{{{false, kMaxBlocks}, "1 vector per thread"}};
  const auto several = one_tiling(builder, inputs);
  if (!several.tiling.unrolled) return result;
  result.push_back(several);
  const std::int64_t resident = std::int64_t{builder.target.multiprocessors} *
                                (builder.target.threads_per_multiprocessor / kThreads);
  if (builder.count() > elements_at_once(builder) * unrolled_vectors(inputs) * resident) {
    result.push_back({{true, resident}, several.name + ", resident blocks"});
  }
  return result;
}

std::int64_t channel_splits(const PlanBuilder& builder) {
  const Image image = builder.image();
  const std::int64_t lanes = 16 / static_cast<std::int64_t>(bytes_of(builder.type));
  const std::int64_t rows = image.batch * image.pixels();
  std::int64_t blocks = image.channels, most = rows / (lanes * kThreads);
  if (image.channels_last) {
    const std::int64_t columns =
        image.channels % lanes == 0 ? image.channels / lanes : image.channels;
    const std::int64_t across = std::min<std::int64_t>(columns, 32);
    blocks = (columns + across - 1) / across;
    most = rows * across / kThreads;
  }
  // A multiprocessor can run eight blocks of 256 threads at a time.
  const std::int64_t wanted = (8 * builder.target.multiprocessors + blocks - 1) / blocks;
  return std::min(wanted, std::clamp<std::int64_t>(most, 1, 65535));
}

std::string splits_name(std::int64_t splits) {
  return splits == 1 ? "block per channel" : std::to_string(splits) + " blocks per channel";
}

}  // namespace pydlbench::cuda::pointwise
