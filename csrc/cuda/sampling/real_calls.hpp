// The sampler's calls on a real device.
#pragma once

#include <memory>
#include <vector>

#include "cuda/runtime/device.hpp"
#include "cuda/runtime/graph_kernels.hpp"
#include "cuda/sampling/calls.hpp"

namespace pydlbench::cuda {

// How long a closed gate holds what is behind it. The host needs some milliseconds to enqueue all
// that a gate may hold back, and where a GPU also drives a display, the driver kills a kernel that
// runs for some seconds, and the context with it.
inline constexpr double kGateTimeoutSeconds = 1.0;

// Owns the gate's flags, the events, the stamps and the buffer that flushes the L2 cache (the
// latter from the first flush on). All its kernels are loaded when it is made: a kernel that were
// loaded behind a closed gate would wait for it.
class RealCalls final : public Calls {
 public:
  // `device` must outlive it. Throws Unsupported where launches wait for the device. Where the
  // environment has PYDLBENCH_GATE=0 there is no gate: under a profiler that runs kernels one by
  // one, or a driver whose launches wait, times then include the host's.
  explicit RealCalls(const Device& device, double gate_timeout_seconds = kGateTimeoutSeconds);
  ~RealCalls() override;

  CUstream_st* stream() override;
  double host_seconds() override;
  void flush_l2() override;
  void prefetch(const Prefetch& prefetch) override;
  bool has_gate() const noexcept override;
  void close_gate() override;
  void open_gate() noexcept override;
  bool gate_timed_out() override;
  void stamp(Mark mark) override;
  void record(Mark mark) override;
  double elapsed_seconds() override;
  std::optional<ClockInterval> clock_interval() override;
  void wait() override;
  void drain() noexcept override;
  void begin_capture() override;
  std::unique_ptr<Captured> end_capture() override;
  void abandon_capture() noexcept override;
  std::unique_ptr<Executable> instantiate(Captured& captured) override;
  void upload(Executable& executable) override;
  void launch(Executable& executable) override;

  // The kernels of what was captured; none where the driver is too old to tell.
  static std::vector<GraphKernel> kernels(const Captured& captured);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// One for all kernels of a device, so that they share the buffer that flushes its cache; it goes
// with the last of them. `device` must outlive it.
std::shared_ptr<RealCalls> shared_calls(const Device& device);

}  // namespace pydlbench::cuda
