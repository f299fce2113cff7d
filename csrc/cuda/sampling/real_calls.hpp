// The sampler's calls on a real device.
#pragma once

#include <memory>
#include <vector>

#include "cuda/runtime/device.hpp"
#include "cuda/runtime/graph_kernels.hpp"
#include "cuda/sampling/calls.hpp"

namespace pydlbench::cuda {

// Time-out of a closed gate. The host needs some milliseconds to enqueue a whole sample; if a GPU
// also drives a display, the driver kills kernels (and the context) after some seconds.
inline constexpr double kGateTimeoutSeconds = 1.0;

// Owns the gate's flags, the events, the stamps and the buffer that flushes the L2 cache (from the
// first flush on). All of its kernels are loaded by the constructor: loading a kernel behind a
// closed gate would wait for the gate.
class RealCalls final : public Calls {
 public:
  // `device` must outlive it. Throws Unsupported if launches are blocking. PYDLBENCH_GATE=0 in the
  // environment disables the gate, for profilers that run kernels one by one and for drivers with
  // blocking launches; without the gate, times include the host's time.
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

  // The captured kernels; empty if the driver is too old.
  static std::vector<GraphKernel> kernels(const Captured& captured);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// The calls that all kernels of a device share, with the buffer that flushes its cache; destroyed
// with the last kernel. `device` must outlive it.
std::shared_ptr<RealCalls> shared_calls(const Device& device);

}  // namespace pydlbench::cuda
