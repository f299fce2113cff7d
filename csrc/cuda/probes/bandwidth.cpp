#include "cuda/probes/bandwidth.hpp"

#include <algorithm>
#include <set>
#include <vector>

#include "core/error.hpp"
#include "cuda/probes/stream_kernels.hpp"
#include "cuda/sampling/real_calls.hpp"

namespace pydlbench::cuda {
namespace {

constexpr unsigned kInFlight[] = {2, 4, 8};
// Of the probe's time, for all the shapes together.
constexpr double kTrialShare = 0.5;
constexpr std::uint32_t kMostItems = 1u << 31;

StreamKind kind_of(const std::string& name) {
  if (name == "read") return StreamKind::read;
  if (name == "write") return StreamKind::write;
  if (name == "copy") return StreamKind::copy;
  throw Unsupported("no bandwidth probe " + name + "; there is: read, write, copy");
}

// All blocks that the GPU holds at a time, and half of them: more loads in flight, or fewer rows of
// the memory open at once.
std::vector<StreamShape> shapes(const Device& device, StreamKind kind) {
  std::vector<StreamShape> found;
  const auto multiprocessors = static_cast<unsigned>(device.facts().multiprocessors);
  for (const unsigned in_flight : kInFlight) {
    const unsigned most = std::max(1u, resident_stream_blocks(kind, in_flight));
    for (const unsigned blocks : std::set<unsigned>{most, std::max(1u, most / 2)}) {
      found.push_back({in_flight, blocks * multiprocessors});
    }
  }
  return found;
}

class Bench {
 public:
  Bench(const Device& device, StreamKind kind, std::size_t bytes)
      : kind_(kind),
        calls_(shared_calls(device)),
        area_(bytes / (kind == StreamKind::copy ? 2 : 1) / kGranularity * kGranularity) {
    PYDLBENCH_CHECK(area_ > 0, "bandwidth: a working set of " + std::to_string(bytes) +
                                   " bytes is less than " + std::to_string(kGranularity) +
                                   " bytes for each array");
    source_ = DeviceMemory(device, area_, "the bandwidth probe's array");
    if (kind == StreamKind::copy) {
      destination_ = DeviceMemory(device, area_, "the bandwidth probe's second array");
    }
    run({kMostInFlight, static_cast<unsigned>(device.facts().multiprocessors)}, StreamKind::write,
        source_.data(), 1);
  }

  ProbeResult rounds(const Device& device, StreamShape shape, double seconds) {
    const std::size_t needed = std::size_t{shape.blocks} * kStreamThreads * sizeof(std::uint32_t);
    if (sums_.bytes() < needed) sums_ = DeviceMemory(device, needed, "the bandwidth probe's sums");
    void* const target = kind_ == StreamKind::copy ? destination_.data() : source_.data();
    const auto launch = [&](std::uint32_t passes) { run(shape, kind_, target, passes); };
    const double moved = static_cast<double>(area_) * (kind_ == StreamKind::copy ? 2 : 1);
    return run_rounds(*calls_, seconds, moved, kMostItems / chunks(shape), launch);
  }

 private:
  static constexpr std::size_t kGranularity = stream_chunk(kMostInFlight);

  std::uint32_t chunks(StreamShape shape) const {
    return static_cast<std::uint32_t>(area_ / stream_chunk(shape.in_flight));
  }

  void run(StreamShape shape, StreamKind kind, void* target, std::uint32_t passes) {
    const StreamJob job{source_.data(), target, static_cast<std::uint32_t*>(sums_.data()),
                        chunks(shape), chunks(shape) * passes};
    launch_stream(kind, shape, job, calls_->stream());
  }

  StreamKind kind_;
  std::shared_ptr<RealCalls> calls_;
  std::size_t area_;  // of each array
  DeviceMemory source_, destination_, sums_;
};

}  // namespace

ProbeResult bandwidth(const Device& device, const std::string& kind, std::size_t bytes,
                      double seconds) {
  const StreamKind pattern = kind_of(kind);
  PYDLBENCH_CHECK(seconds > 0, "a probe of " + std::to_string(seconds) + " seconds");
  device.make_current();
  Bench bench(device, pattern, bytes);
  const auto candidates = shapes(device, pattern);
  StreamShape best = candidates.front();
  double fastest = 0;
  for (const auto& shape : candidates) {
    const double trial = kTrialShare * seconds / static_cast<double>(candidates.size());
    const double rate = bench.rounds(device, shape, trial).median_per_second;
    if (rate > fastest) {
      fastest = rate;
      best = shape;
    }
  }
  auto found = bench.rounds(device, best, seconds);
  found.kernel = kind + ", " + std::to_string(best.in_flight) + " x 16 bytes per thread, " +
                 std::to_string(best.blocks) + " blocks of " + std::to_string(kStreamThreads);
  return found;
}

}  // namespace pydlbench::cuda
