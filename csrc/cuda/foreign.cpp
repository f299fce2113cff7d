#include "cuda/foreign.hpp"

#include <utility>

#include "core/error.hpp"
#include "cuda/runtime/check.hpp"

namespace pydlbench::cuda {

namespace {

// A gate can hold fewer nodes of graphs than single launches: a node counts as several.
constexpr std::size_t kLaunchesOfNode = kMaxGatedLaunches / kMaxGraphLaunches;

}  // namespace

ForeignKernel::ForeignKernel(std::shared_ptr<Device> device, Enqueue enqueue, std::size_t launches,
                             CacheState cache)
    : device_(std::move(device)) {
  PYDLBENCH_CHECK(launches >= 1, "an execution is one launch or more");
  PYDLBENCH_CHECK(cache != CacheState::weights_cold, "a framework's weights are not known here");
  work_.launch = std::move(enqueue);
  work_.launches = launches;
  make_sampler(cache);
}

ForeignKernel::ForeignKernel(std::shared_ptr<Device> device, cudaGraph_t graph,
                             std::size_t executions)
    : device_(std::move(device)), executions_(executions) {
  PYDLBENCH_CHECK(executions >= 1, "a graph is of one execution or more");
  device_->make_current();
  std::size_t nodes = 0;
  PYDLBENCH_CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &nodes));
  if (nodes == 0) throw PrimitiveFailure("CUDA graph", "the framework captured nothing");
  try {
    if (const auto* driver = graph_driver()) kernels_ = graph_kernels(*driver, graph);
  } catch (const PrimitiveFailure&) {
    kernels_.clear();  // not fatal: it can still be timed
  }
  cudaGraphExec_t exec = nullptr;
  PYDLBENCH_CUDA_CHECK(cudaGraphInstantiate(&exec, graph, 0));
  graph_ = GraphExec(exec);
  work_.launch = [exec](CUstream_st* stream) {
    PYDLBENCH_CUDA_CHECK(cudaGraphLaunch(exec, stream));
  };
  work_.launches = kLaunchesOfNode * nodes;
  make_sampler(CacheState::hot);
}

void ForeignKernel::make_sampler(CacheState cache) {
  device_->make_current();
  calls_ = shared_calls(*device_);
  sampler_ =
      std::make_unique<Sampler>(*calls_, work_, cache, Timing::events, std::vector<Prefetch>{});
}

SampleResult ForeignKernel::sample(const SampleRequest& request) {
  device_->make_current();
  const auto each = static_cast<int>(executions_);
  const int graphs = (request.inner + each - 1) / each;
  auto result = sampler_->sample({request.samples, graphs, (request.untimed + each - 1) / each});
  for (auto& one : result.seconds) one /= each;
  for (auto& one : result.enqueue_seconds) one /= each;
  return result;
}

LaunchTimes ForeignKernel::launch_times(int repetitions) {
  device_->make_current();
  return sampler_->launch_times(repetitions);
}

Load ForeignKernel::run_for(double seconds) {
  device_->make_current();
  auto load = cuda::run_for(*calls_, work_, seconds);
  load.executions *= executions_;
  return load;
}

}  // namespace pydlbench::cuda
