#include "cpu/chain/bound.hpp"

#include <utility>

#include "core/error.hpp"
#include "cpu/plans.hpp"

namespace pydlbench::cpu {

using dnnl::memory;

namespace {

dnnl::reorder::primitive_desc conversion(const memory::desc& from, const memory::desc& to) {
  return {cpu_engine(), from, cpu_engine(), to, user_scratchpad()};
}

}  // namespace

Bound::Bound(Candidate candidate, const std::vector<void*>& tensors, void* workspace, void* scratch)
    : name_(candidate.primitive + " " + candidate.implementation),
      own_(std::move(candidate.own)),
      pointers_(tensors),
      scratch_(scratch) {
  const auto& run = candidate.run;
  PYDLBENCH_CHECK(tensors.size() == run.arguments.size(), "memory for every argument");
  if (!run.primitive) return;
  primitive_ = dnnl::primitive(run.primitive.get());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto& argument = run.arguments[i];
    add(argument.index, argument.desc, tensors[i]);
    add(argument.second_index, argument.desc, tensors[i]);
  }
  const auto scratchpad = run.primitive.scratchpad_desc();
  if (scratchpad.get_size() > 0) add(DNNL_ARG_SCRATCHPAD, scratchpad, scratch);
  if (workspace != nullptr) {
    add(DNNL_ARG_WORKSPACE, run.primitive.query_md(dnnl::query::workspace_md), workspace);
  }
}

Bound::Bound(const memory::desc& from, void* source, const memory::desc& to, void* target,
             void* scratch)
    : name_("reorder"), scratch_(scratch) {
  const auto descriptor = conversion(from, to);
  primitive_ = dnnl::reorder(descriptor);
  add(DNNL_ARG_FROM, from, source);
  add(DNNL_ARG_TO, to, target);
  const auto scratchpad = descriptor.scratchpad_desc();
  if (scratchpad.get_size() > 0) add(DNNL_ARG_SCRATCHPAD, scratchpad, scratch);
}

std::size_t Bound::reorder_scratch_bytes(const memory::desc& from, const memory::desc& to) {
  return conversion(from, to).scratchpad_desc().get_size();
}

void Bound::add(int index, const memory::desc& desc, void* data) {
  if (index == kNoArgument) return;
  held_.emplace_back(desc, cpu_engine(), data);
  arguments_.push_back({index, held_.back().get()});
}

void Bound::run(const dnnl::stream& stream) {
  if (primitive_) {
    const auto status = dnnl_primitive_execute(
        primitive_.get(), stream.get(), static_cast<int>(arguments_.size()), arguments_.data());
    if (status != dnnl_success) {
      throw PrimitiveFailure("oneDNN " + name_,
                             describe(dnnl::error(status, "could not execute a primitive")));
    }
  }
  if (own_) own_->run(pointers_.data(), scratch_);
}

bool same_layout(const memory::desc& left, const memory::desc& right) {
  if (left == right) return true;
  const auto blocked = memory::format_kind::blocked;
  if (left.get_dims() != right.get_dims() || left.get_data_type() != right.get_data_type() ||
      left.get_format_kind() != blocked || right.get_format_kind() != blocked ||
      left.get_padded_dims() != right.get_padded_dims() ||
      left.get_inner_blks() != right.get_inner_blks() ||
      left.get_inner_idxs() != right.get_inner_idxs()) {
    return false;
  }
  const auto sizes = left.get_padded_dims();
  const auto ours = left.get_strides(), theirs = right.get_strides();
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] > 1 && ours[i] != theirs[i]) return false;
  }
  return true;
}

memory::desc retyped(const memory::desc& plain, memory::data_type type) {
  return {plain.get_dims(), type, plain.get_strides()};
}

}  // namespace pydlbench::cpu
