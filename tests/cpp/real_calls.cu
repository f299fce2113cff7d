// The sampler on a real GPU, for test_real_calls.py: works whose behaviour is known.
#include <cuda_runtime.h>

#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "cuda/runtime/check.hpp"
#include "cuda/runtime/device.hpp"
#include "cuda/sampling/kernels.hpp"
#include "cuda/sampling/real_calls.hpp"
#include "cuda/sampling/sampler.hpp"

namespace {

using namespace pydlbench::cuda;

__global__ void spin_kernel(long long cycles) {
  const long long begin = clock64();
  while (clock64() - begin < cycles) {
  }
}

// Occupies one multiprocessor for so many cycles.
struct Spin : Work {
  explicit Spin(long long count) : cycles(count) {}
  void enqueue(std::size_t, CUstream_st* stream) override {
    spin_kernel<<<1, 1, 0, stream>>>(cycles);
    PYDLBENCH_CUDA_CHECK(cudaGetLastError());
  }
  std::size_t sets() const override { return 1; }
  long long cycles;
};

// Reads a buffer.
struct Read : Work {
  Read(const Device& device_, std::size_t bytes)
      : device(device_), data(device_, bytes, "test"), sum(device_, 4, "test") {
    data.fill(1, device.stream());
  }
  void enqueue(std::size_t, CUstream_st* stream) override {
    launch_read(data.data(), data.bytes(), device.facts().multiprocessors,
                static_cast<std::uint32_t*>(sum.data()), stream);
  }
  std::size_t sets() const override { return 1; }
  const Device& device;
  DeviceMemory data, sum;
};

// From its second execution on it does what no work may do: wait, or throw.
struct Misbehaving : Spin {
  explicit Misbehaving(bool wait) : Spin(1000), waits(wait) {}
  void enqueue(std::size_t set, CUstream_st* stream) override {
    Spin::enqueue(set, stream);
    if (good || ++executions == 1) return;
    if (!waits) throw std::runtime_error("thrown by the work");
    PYDLBENCH_CUDA_CHECK(cudaStreamSynchronize(stream));
  }
  bool waits, good = false;
  int executions = 0;
};

std::string message;

template <typename Body>
const char* attempt(Body body) {
  message.clear();
  try {
    body();
  } catch (const std::exception& error) {
    message = error.what();
  }
  return message.c_str();
}

}  // namespace

extern "C" {

// out: whether a gate that nobody opens timed out, and one that is opened.
const char* gate_timeout(int* out) {
  return attempt([&] {
    const Device device(0);
    RealCalls calls(device, 0.05);
    calls.close_gate();
    calls.wait();
    out[0] = calls.gate_timed_out();
    calls.close_gate();
    calls.open_gate();
    calls.wait();
    out[1] = calls.gate_timed_out();
  });
}

// out: seconds and clock in Hz of a kernel of `cycles` cycles.
const char* time_spin(int graph, long long cycles, int inner, double* out) {
  return attempt([&] {
    const Device device(0);
    RealCalls calls(device);
    Spin work(cycles);
    Sampler sampler(calls, work, CacheState::hot, graph ? Timing::graph : Timing::events, {});
    const auto result = sampler.sample({5, inner, 5});
    out[0] = result.seconds.back();
    out[1] = result.clock_hz.empty() ? 0 : result.clock_hz.back();
  });
}

// out: seconds to read a quarter of the L2 cache: hot, flushed, flushed and prefetched again, and
// flushed where the reads mark it as persisting.
const char* time_read(double* out) {
  return attempt([&] {
    const Device device(0);
    RealCalls calls(device);
    Read work(device, device.facts().l2_bytes / 4);
    const CacheState states[] = {CacheState::hot, CacheState::all_cold, CacheState::weights_cold,
                                 CacheState::all_cold};
    for (int i = 0; i < 4; ++i) {
      if (i == 3) {
        PYDLBENCH_CUDA_CHECK(cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, work.data.bytes()));
        cudaStreamAttrValue window{};
        window.accessPolicyWindow = {work.data.data(), work.data.bytes(), 1.0F,
                                     cudaAccessPropertyPersisting, cudaAccessPropertyStreaming};
        PYDLBENCH_CUDA_CHECK(cudaStreamSetAttribute(
            device.stream(), cudaStreamAttributeAccessPolicyWindow, &window));
      }
      Sampler sampler(calls, work, states[i], Timing::events,
                      {{work.data.data(), work.data.bytes()}});
      double best = 1;
      for (const double seconds : sampler.sample({50, 1, 5}).seconds) {
        best = seconds < best ? seconds : best;
      }
      out[i] = best;
    }
  });
}

// out: seconds of the same sampler after the work has behaved again. `first` gets its first error.
const char* misbehave(int graph, int wait, char* first, int size, double* out) {
  return attempt([&] {
    const Device device(0);
    RealCalls calls(device, 0.05);
    Misbehaving work(wait != 0);
    Sampler sampler(calls, work, CacheState::hot, graph ? Timing::graph : Timing::events, {});
    try {
      sampler.sample({1, 2, 0});
    } catch (const std::exception& error) {
      std::strncpy(first, error.what(), static_cast<std::size_t>(size) - 1);
    }
    work.good = true;
    out[0] = sampler.sample({1, 2, 0}).seconds.front();
  });
}

// Asks for far too much; out: whether the next allocation and launch succeed.
const char* exhaust(char* first, int size, int* out) {
  return attempt([&] {
    const Device device(0);
    try {
      const DeviceMemory memory(device, std::size_t{1} << 50, "a test");
    } catch (const pydlbench::OutOfMemory& error) {
      std::strncpy(first, error.what(), static_cast<std::size_t>(size) - 1);
    }
    Read work(device, 1 << 20);
    work.enqueue(0, device.stream());
    device.synchronize();
    out[0] = 1;
  });
}

}  // extern "C"
