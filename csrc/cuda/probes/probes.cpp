#include "cuda/probes/probes.hpp"

#include <cuda_fp16.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "core/error.hpp"
#include "cuda/probes/kernels.hpp"
#include "cuda/runtime/check.hpp"
#include "cuda/sampling/real_calls.hpp"

namespace pydlbench::cuda {

namespace {

FmaKind kind_of(const Device& device, const std::string& precision) {
  if (precision == "fp32") return FmaKind::fp32;
  if (precision != "fp16") {
    throw Unsupported("no FMA probe for " + precision + "; there is: fp32, fp16");
  }
  if (device.facts().capability() < 53) {
    throw Unsupported(device.facts().name + " has no float16 arithmetic");
  }
  return FmaKind::fp16;
}

// Angles between 0.1 and 0.2 radians, then starting values between 0.25 and 0.75.
std::vector<std::uint32_t> seeds_of(FmaKind kind) {
  std::vector<std::uint32_t> seeds(kFmaSeeds);
  for (unsigned i = 0; i < kFmaSeeds; ++i) {
    const float part = static_cast<float>(i % (kFmaSeeds / 2)) / (kFmaSeeds / 2);
    const float value = i < kFmaSeeds / 2 ? 0.1f + 0.1f * part : 0.25f + 0.5f * part;
    if (kind == FmaKind::fp32) {
      std::memcpy(&seeds[i], &value, sizeof value);
    } else {
      const __half2 pair = __floats2half2_rn(value, -value);
      std::memcpy(&seeds[i], &pair, sizeof pair);
    }
  }
  return seeds;
}

}  // namespace

ProbeResult fma_peak(const Device& device, const std::string& precision, double seconds) {
  const FmaKind kind = kind_of(device, precision);
  device.make_current();
  const auto blocks = static_cast<unsigned>(device.facts().multiprocessors);
  const auto seeds = seeds_of(kind);
  const DeviceMemory input(device, seeds.size() * kFmaRegisterBytes, "the FMA probe's seeds");
  const DeviceMemory output(device, std::size_t{blocks} * kFmaThreads * kFmaRegisterBytes,
                            "the FMA probe's results");
  const auto calls = shared_calls(device);
  CUstream_st* const stream = calls->stream();
  PYDLBENCH_CUDA_CHECK(
      cudaMemcpyAsync(input.data(), seeds.data(), input.bytes(), cudaMemcpyHostToDevice, stream));
  const auto launch = [&](std::uint32_t iterations) {
    launch_fma(kind, blocks, kFmaThreads, input.data(), output.data(), iterations, stream);
  };
  constexpr std::uint32_t kMaxIterations = 1u << 24;
  auto found =
      run_rounds(*calls, seconds, fma_flops(kind, blocks, kFmaThreads, 1), kMaxIterations, launch);
  found.kernel = kind == FmaKind::fp32 ? "FFMA on float" : "HFMA2 on half2";
  return found;
}

namespace {

constexpr unsigned kInFlight[] = {1, 2, 4, 8};
// Share of the probe's time for trying all shapes.
constexpr double kTrialShare = 0.5;
constexpr std::uint32_t kMaxItems = kBlockPerItem;

StreamKind kind_of(const std::string& name) {
  if (name == "read") return StreamKind::read;
  if (name == "write") return StreamKind::write;
  if (name == "copy") return StreamKind::copy;
  throw Unsupported("no bandwidth probe " + name + "; there is: read, write, copy");
}

// Shapes with all resident blocks, which have more loads in flight, and with half of them, which
// have fewer open rows of memory; and a block for each chunk, unless threads write sums.
std::vector<StreamShape> shapes(const Device& device, StreamKind kind) {
  std::vector<StreamShape> found;
  const auto multiprocessors = static_cast<unsigned>(device.facts().multiprocessors);
  for (const unsigned in_flight : kInFlight) {
    const unsigned most = std::max(1u, resident_stream_blocks(kind, in_flight));
    for (const unsigned blocks : std::set<unsigned>{most, std::max(1u, most / 2)}) {
      found.push_back({in_flight, blocks * multiprocessors});
    }
    if (kind != StreamKind::read) found.push_back({in_flight, kBlockPerItem});
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
    run({kMaxInFlight, static_cast<unsigned>(device.facts().multiprocessors)}, StreamKind::write,
        source_.data(), 1);
  }

  ProbeResult rounds(const Device& device, StreamShape shape, double seconds) {
    if (kind_ == StreamKind::read) {
      const auto needed = std::size_t{shape.blocks} * kStreamThreads * sizeof(std::uint32_t);
      if (sums_.bytes() < needed)
        sums_ = DeviceMemory(device, needed, "the bandwidth probe's sums");
    }
    void* const target = kind_ == StreamKind::copy ? destination_.data() : source_.data();
    const auto launch = [&](std::uint32_t passes) { run(shape, kind_, target, passes); };
    const double moved = static_cast<double>(area_) * (kind_ == StreamKind::copy ? 2 : 1);
    return run_rounds(*calls_, seconds, moved, kMaxItems / chunks(shape), launch);
  }

 private:
  static constexpr std::size_t kGranularity = stream_chunk(kMaxInFlight);

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
  const auto blocks = best.blocks == kBlockPerItem ? std::string("a block per chunk,")
                                                   : std::to_string(best.blocks);
  found.kernel = kind + ", " + std::to_string(best.in_flight) + " x 16 bytes per thread, " +
                 blocks + " blocks of " + std::to_string(kStreamThreads);
  return found;
}

namespace {

struct EmptyWork final : Work {
  void enqueue(std::size_t, CUstream_st* stream) override { launch_empty(stream); }
  std::size_t sets() const override { return 1; }
};

constexpr int kRepetitions = 50;
// The clock of an idle GPU is a fraction of that under load. This probe may be the first to run,
// and its result is stored.
constexpr double kWarmUpSeconds = 0.2;

}  // namespace

LaunchTimes launch_seconds(const Device& device) {
  device.make_current();
  const auto calls = shared_calls(device);
  fma_peak(device, "fp32", kWarmUpSeconds);
  EmptyWork work;
  return Sampler(*calls, work, CacheState::hot, Timing::events, {}).launch_times(kRepetitions);
}

}  // namespace pydlbench::cuda
