#include "cpu/pointwise/plan_builder.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "core/error.hpp"

namespace pydlbench::cpu::pointwise {

namespace {

// Smaller tensors stay in the nearest caches, where streaming stores only cost time.
constexpr std::size_t kMinStreamedBytes = std::size_t{1} << 20;

// "src nhwc, dst nhwc"; a role that is read and written is listed once.
std::string layout_of(const std::vector<Argument>& arguments) {
  std::vector<std::string> seen;
  std::string text;
  for (const auto& argument : arguments) {
    const bool again = std::find(seen.begin(), seen.end(), argument.role) != seen.end();
    if (again ||
        argument.role.rfind("src", 0) + argument.role.rfind("dst", 0) == 2 * std::string::npos ||
        argument.desc.get_ndims() != 4)
      continue;
    seen.push_back(argument.role);
    text += (text.empty() ? "" : ", ") + argument.role + " " + format_name(argument.desc, "nchw");
  }
  return text.empty() ? "plain" : text;
}

// Makes the result (the last argument) share the memory of the source (the first argument).
void overwrite_source(Candidate& candidate) {
  auto& arguments = candidate.run.arguments;
  auto& src = arguments.front();
  src.second_index = arguments.back().index;
  src.is_output = src.is_updated = true;
  arguments.pop_back();
  if (!candidate.own) return;
  const auto tensors = arguments.size();
  candidate.own = std::make_shared<OwnWork>(
      OwnWork{candidate.own->workspace_bytes,
              [tensors, run = candidate.own->run](Pointers p, void* workspace) {
                std::array<void*, 4> with_result{};
                std::copy(p, p + tensors, with_result.begin());
                with_result.at(tensors) = p[0];
                run(with_result.data(), workspace);
              }});
}

}  // namespace

double PlanBuilder::number(const std::string& name) const {
  const auto found = problem.numbers.find(name);
  PYDLBENCH_CHECK(found != problem.numbers.end(), "the parameter " + name + " is missing");
  return found->second;
}

memory::dims PlanBuilder::dims(Index channels) const {
  return {problem.batch, channels > 0 ? channels : problem.channels, problem.height, problem.width};
}

Image PlanBuilder::image() const {
  const Index pixels = problem.height * problem.width;
  // With one pixel or one channel, both layouts are the same.
  const bool last = pixels == 1 || (tag == Tag::nhwc && problem.channels > 1);
  return {problem.batch, problem.channels, pixels, last};
}

Argument PlanBuilder::map(const std::string& role, Use use, int index, Index channels) const {
  return {index,
          role,
          memory::desc(dims(channels), type, tag),
          memory::desc(dims(channels), memory::data_type::f32, Tag::nchw),
          use != Use::input,
          use == Use::updated};
}

Argument PlanBuilder::vector(const std::string& role, Use use, memory::dims dims,
                             memory::data_type element, int index) const {
  memory::dims strides(dims.size(), 1);
  for (std::size_t i = dims.size(); --i > 0;) strides[i - 1] = strides[i] * dims[i];
  return {index,
          role,
          memory::desc(dims, element, strides),
          memory::desc(dims, memory::data_type::f32, strides),
          use != Use::input,
          use == Use::updated};
}

Argument PlanBuilder::channel_floats(const std::string& role, Use use, int index) const {
  return vector(role, use, {problem.channels}, memory::data_type::f32, index);
}

void PlanBuilder::add(Candidate candidate) {
  if (in_place) overwrite_source(candidate);
  candidate.primitive = problem.op + " " + name_of(pass);
  candidate.variant = variant;
  candidate.layout = layout_of(candidate.run.arguments);
  candidates.push_back(std::move(candidate));
}

void PlanBuilder::add_primitive(const std::string& name, dnnl::primitive_desc_base primitive,
                                std::vector<Argument> arguments,
                                std::shared_ptr<const OwnWork> behind, const Invocation* before) {
  Candidate candidate{};
  candidate.implementation = name + " " + primitive.impl_info_str();
  candidate.is_reference = candidate.implementation.find("ref") != std::string::npos;
  candidate.run = {std::move(primitive), std::move(arguments)};
  candidate.own = std::move(behind);
  if (before != nullptr) candidate.forward = *before;
  add(std::move(candidate));
}

void PlanBuilder::add_own(
    const std::string& name, const std::vector<Argument>& arguments, std::size_t workspace_bytes,
    const std::function<std::function<void(Pointers, void*)>(const Kernels&)>& work) {
  const auto storage = type == memory::data_type::f32 ? Storage::float32 : Storage::bfloat16;
  for (const auto& isa : isa_kernels()) {
    Candidate candidate{};
    candidate.implementation = "own:" + isa.name + (name.empty() ? "" : " " + name);
    candidate.run.arguments = arguments;
    candidate.own = std::make_shared<OwnWork>(OwnWork{workspace_bytes, work(isa.of(storage))});
    add(std::move(candidate));
    if (!thorough) break;
  }
}

void PlanBuilder::add_streaming(
    const std::string& name, const std::vector<Argument>& arguments, std::size_t workspace_bytes,
    const std::function<std::function<void(Pointers, void*)>(const Kernels&, bool)>& work) {
  std::size_t bytes = 0;
  for (const auto& argument : arguments) bytes += argument.desc.get_size();
  for (const bool streaming : {false, true}) {
    if (streaming && bytes < kMinStreamedBytes && !thorough) continue;
    const auto words = name.empty() || !streaming ? name : name + ", ";
    add_own(words + (streaming ? "non-temporal stores" : ""), arguments, workspace_bytes,
            [&](const Kernels& kernels) { return work(kernels, streaming); });
  }
}

bool take_in_place(std::string& name) {
  constexpr std::string_view end = "-in-place";
  const auto at = name.size() < end.size() ? 0 : name.size() - end.size();
  if (name.compare(at, std::string::npos, end) != 0) return false;
  name.resize(at);
  return true;
}

memory::data_type supported_type(const std::string& kind, Pass pass, Precision precision) {
  if (!is_forward(pass)) throw Unsupported(kind + " has no " + name_of(pass) + " pass");
  if (precision == Precision::fp16) {
    throw Unsupported(kind + " has no fp16 kernels on a CPU; there is: fp32, bf16");
  }
  return data_type(precision);
}

void with_onednn(const std::string& primitive, const std::function<void()>& plan) {
  try {
    plan();
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_unimplemented) return;
    throw PrimitiveFailure("oneDNN " + primitive, describe(error));
  }
}

}  // namespace pydlbench::cpu::pointwise
