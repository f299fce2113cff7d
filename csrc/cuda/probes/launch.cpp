#include "cuda/probes/launch.hpp"

#include "cuda/probes/empty_kernel.hpp"
#include "cuda/sampling/real_calls.hpp"

namespace pydlbench::cuda {
namespace {

struct EmptyWork final : Work {
  void enqueue(std::size_t, CUstream_st* stream) override { launch_empty(stream); }
  std::size_t sets() const override { return 1; }
};

constexpr int kRepetitions = 50;

}  // namespace

LaunchTimes launch_seconds(const Device& device) {
  device.make_current();
  const auto calls = shared_calls(device);
  EmptyWork work;
  return Sampler(*calls, work, CacheState::hot, Timing::events, {}).launch_times(kRepetitions);
}

}  // namespace pydlbench::cuda
