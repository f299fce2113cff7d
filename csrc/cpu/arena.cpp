#include "cpu/arena.hpp"

#include <utility>

#include "core/error.hpp"
#include "cpu/plans.hpp"

namespace pydlbench::cpu {

Arena::Arena(std::map<std::string, HostTensor> inputs) : inputs_(std::move(inputs)) {}

Arena::Entry* Arena::find(const std::string& key, const Argument& argument) {
  for (auto& entry : entries_) {
    if (entry.key == key && entry.desc == argument.desc && entry.plain == argument.plain)
      return &entry;
  }
  return nullptr;
}

Tensor Arena::scratch(const dnnl::memory::desc& desc) {
  auto buffer = std::make_shared<Buffer>(desc.get_size());
  dnnl::memory memory(desc, cpu_engine(), buffer->data());
  return {std::move(buffer), std::move(memory)};
}

Tensor Arena::input(const Argument& argument) {
  const auto key = "in:" + argument.role;
  if (auto* entry = find(key, argument)) return entry->tensor;

  const auto host = inputs_.find(argument.role);
  PYDLBENCH_CHECK(host != inputs_.end(), "no input named " + argument.role);
  PYDLBENCH_CHECK(host->second.elements * sizeof(float) == argument.plain.get_size(),
                  "input " + argument.role + " has the wrong number of elements");
  auto tensor = scratch(argument.desc);
  // oneDNN takes no pointer to const; a reorder only reads its source.
  dnnl::memory source(argument.plain, cpu_engine(), const_cast<float*>(host->second.data));
  dnnl::stream stream(cpu_engine());
  dnnl::reorder(source, tensor.memory).execute(stream, source, tensor.memory);
  stream.wait();
  entries_.push_back({key, argument.desc, argument.plain, tensor});
  return tensor;
}

Tensor Arena::output(const Argument& argument) {
  const auto key = "out:" + argument.role;
  if (auto* entry = find(key, argument)) return entry->tensor;
  auto tensor = scratch(argument.desc);
  tensor.buffer->poison();
  entries_.push_back({key, argument.desc, argument.plain, tensor});
  return tensor;
}

std::size_t Arena::bytes() const {
  std::size_t total = 0;
  for (const auto& entry : entries_) total += entry.tensor.buffer->size();
  return total;
}

}  // namespace pydlbench::cpu
