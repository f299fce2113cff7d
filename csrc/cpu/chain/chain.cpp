#include "cpu/chain/chain.hpp"

#include <utility>

#include "core/error.hpp"
#include "cpu/counters.hpp"
#include "cpu/plans.hpp"

namespace pydlbench::cpu {

namespace {
constexpr std::size_t kPage = 4096;  // no two tensors share one
}

Chain::Chain(const std::vector<Link>& links, std::map<std::string, HostTensor> given,
             const std::set<std::string>& kept, Precision precision, Layouts layouts,
             Choices& choices, std::vector<int> cpus)
    : given_(std::move(given)), cpus_(std::move(cpus)), stream_(cpu_engine()) {
  try {
    plan_ = plan_chain(links, sizes(given_), kept, precision, layouts, choices);
    const auto placed = place(plan_.blocks, kPage);
    const auto allocate = [this](std::size_t bytes) {
      buffers_.push_back(std::make_unique<Buffer>(bytes));
      // First touch, and a tensor that is read before it is written shows.
      buffers_.back()->poison();
      return static_cast<char*>(buffers_.back()->data());
    };
    memory_.shared = placed.bytes;
    memory_.scratch = plan_.scratch_bytes;
    auto* shared = allocate(placed.bytes);
    auto* scratch = allocate(plan_.scratch_bytes);
    for (std::size_t i = 0; i < plan_.blocks.size(); ++i) {
      const auto& block = plan_.blocks[i];
      (block.kept ? memory_.kept : memory_.unshared) += block.bytes;
      blocks_.push_back(block.kept ? allocate(block.bytes) : shared + placed.offsets[i]);
    }
    for (const auto& step : plan_.steps) {
      std::vector<void*> tensors;
      for (const auto& view : step.views) tensors.push_back(at(view.block));
      if (step.is_reorder) {
        bound_.emplace_back(step.views[0].desc, tensors[0], step.views[1].desc, tensors[1],
                            scratch);
      } else {
        bound_.emplace_back(step.candidate, tensors,
                            step.has_workspace ? at(step.workspace) : nullptr, scratch);
      }
    }
    load();
  } catch (const dnnl::error& error) {
    throw PrimitiveFailure("oneDNN chain", describe(error));
  }
}

void Chain::load() {
  for (const auto& [name, view, plain] : plan_.loads) {
    const auto* data = given_.at(name).data;
    // oneDNN takes no pointer to const; a reorder only reads its source.
    dnnl::memory source(view.plain, cpu_engine(), const_cast<float*>(data));
    dnnl::memory target(view.desc, cpu_engine(), at(view.block));
    dnnl::reorder(source, target).execute(stream_, source, target);
  }
  stream_.wait();
}

void Chain::run() {
  for (auto& one : bound_) one.run(stream_);
  stream_.wait();
}

Chunk Chain::sample(const SampleRequest& request) {
  const auto execute = [this](int executions) {
    for (int i = 0; i < executions; ++i) run();
  };
  return take_chunk(request, cpus_, execute, {});
}

std::vector<double> Chain::step_seconds() {
  std::vector<double> seconds;
  seconds.reserve(bound_.size());
  double before = now();
  for (auto& one : bound_) {
    one.run(stream_);
    stream_.wait();
    const double behind = now();
    seconds.push_back(behind - before);
    before = behind;
  }
  return seconds;
}

Tensor Chain::tensor(const std::string& name) const {
  const auto found = plan_.tensors.find(name);
  PYDLBENCH_CHECK(found != plan_.tensors.end(), "no tensor of this name is kept: " + name);
  const auto& view = found->second;
  auto plain = Arena::scratch(view.plain);
  dnnl::memory source(view.desc, cpu_engine(), at(view.block));
  dnnl::stream stream(cpu_engine());
  dnnl::reorder(source, plain.memory).execute(stream, source, plain.memory);
  stream.wait();
  return plain;
}

}  // namespace pydlbench::cpu
