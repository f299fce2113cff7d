#include "cuda/chain/chain.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "cuda/runtime/check.hpp"
#include "cuda/runtime/handles.hpp"
#include "cuda/sampling/guards.hpp"
#include "cuda/sampling/rotation.hpp"

namespace pydlbench::cuda {

namespace {

// In every float format, that is NaN: a tensor that is read before it is written shows.
constexpr unsigned char kPoison = 0xff;

// Steps behind one gate, at first: each is followed by an event, which is in the launch queue too.
constexpr std::size_t kPiece = kMostGatedLaunches / (kLaunchesOfKernel + 1);

}  // namespace

Chain::Chain(DeviceOffers& offers, const std::vector<Link>& links,
             const std::map<std::string, HostTensor>& given, const std::set<std::string>& kept,
             Layouts layouts)
    : device_(offers.device()),
      given_(device_, given),
      plan_(plan_chain(links, sizes(given), kept, layouts, offers, offers.choices())),
      calls_(shared_calls(*device_)) {
  device_->make_current();
  allocate();
  for (const auto& step : plan_.steps) {
    Bound bound{step.plan, {}, {}};
    for (const auto& [spec, block] : step.tensors) {
      bound.tensors.push_back(spec);
      bound.pointers.push_back(blocks_[block]);
    }
    sequence_.bound.push_back(std::move(bound));
  }
  sequence_.workspace = workspace_.data();
  load();
  stream_ = std::make_unique<Sampler>(*calls_, sequence_, CacheState::hot, Timing::events,
                                      std::vector<Prefetch>{});
  graph_ = std::make_unique<Sampler>(*calls_, sequence_, CacheState::hot, Timing::graph,
                                     std::vector<Prefetch>{});
}

void Chain::allocate() {
  const auto taken = [this](std::size_t bytes, const std::string& purpose) {
    DeviceMemory memory(*device_, bytes, purpose);
    memory.fill(kPoison, device_->stream());
    return memory;
  };
  const auto placed = place(plan_.blocks, kAlignment);
  memory_.shared = placed.bytes;
  memory_.scratch = plan_.workspace_bytes;
  shared_ = taken(placed.bytes, "what a chain's kernels leave each other");
  workspace_ = taken(plan_.workspace_bytes, "a chain's workspace");
  for (std::size_t i = 0; i < plan_.blocks.size(); ++i) {
    const auto& block = plan_.blocks[i];
    (block.kept ? memory_.kept : memory_.unshared) += block.bytes;
    if (block.kept) kept_.push_back(taken(block.bytes, "a chain's weights, gradients and output"));
    blocks_.push_back(block.kept ? kept_.back().data()
                                 : static_cast<char*>(shared_.data()) + placed.offsets[i]);
  }
}

void Chain::load() {
  device_->make_current();
  for (const auto& [name, placed] : plan_.loads) {
    auto spec = placed.spec;
    spec.role = name;
    const auto source = given_.get(spec);
    PYDLBENCH_CUDA_CHECK(cudaMemcpyAsync(blocks_[placed.block], source->memory.data(), spec.bytes(),
                                         cudaMemcpyDeviceToDevice, device_->stream()));
  }
  device_->synchronize();
  given_.clear();
}

void Chain::run() {
  device_->make_current();
  Draining stream(*calls_);
  sequence_.enqueue(0, device_->stream());
  stream.wait();
}

SampleResult Chain::sample(const SampleRequest& request, Timing timing) {
  device_->make_current();
  return (timing == Timing::graph ? graph_ : stream_)->sample(request);
}

bool Chain::is_gated() {
  device_->make_current();
  return stream_->is_gated();
}

std::vector<double> Chain::step_seconds() {
  run();  // behind a closed gate no kernel can be loaded
  std::vector<double> seconds;
  std::size_t most = kPiece;
  while (seconds.size() < sequence_.bound.size()) {
    const auto first = seconds.size();
    const auto now = std::min(most, sequence_.bound.size() - first);
    if (piece_seconds(first, first + now, seconds)) continue;
    // Most likely the launches filled the queue, and the host waited for the gate.
    if (now == 1) {
      throw PrimitiveFailure("launch gate", "timed out: enqueueing a step waits for the device");
    }
    most = now / 2;
  }
  return seconds;
}

bool Chain::piece_seconds(std::size_t first, std::size_t last, std::vector<double>& seconds) {
  std::vector<Event> events;
  for (auto i = first; i <= last; ++i) events.push_back(Event::create());
  auto* const stream = device_->stream();
  ClosedGate gate(*calls_);
  gate.close();
  PYDLBENCH_CUDA_CHECK(cudaEventRecord(events[0].get(), stream));
  for (auto i = first; i < last; ++i) {
    sequence_.bound[i].enqueue(sequence_.workspace, stream);
    PYDLBENCH_CUDA_CHECK(cudaEventRecord(events[i - first + 1].get(), stream));
  }
  gate.open_and_wait();
  if (gate.timed_out()) return false;
  for (auto i = first; i < last; ++i) {
    float milliseconds = 0;
    PYDLBENCH_CUDA_CHECK(
        cudaEventElapsedTime(&milliseconds, events[i - first].get(), events[i - first + 1].get()));
    seconds.push_back(1e-3 * static_cast<double>(milliseconds));
  }
  return true;
}

std::vector<float> Chain::tensor(const std::string& name) const {
  const auto found = plan_.tensors.find(name);
  PYDLBENCH_CHECK(found != plan_.tensors.end(), "no tensor of this name is kept: " + name);
  const auto& [spec, block] = found->second;
  std::vector<float> dense(static_cast<std::size_t>(spec.elements()));
  download(*device_, spec, blocks_[block], dense.data());
  return dense;
}

}  // namespace pydlbench::cuda
