#include "cuda/sampling/real_calls.hpp"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "core/error.hpp"
#include "cuda/runtime/check.hpp"
#include "cuda/runtime/handles.hpp"
#include "cuda/sampling/kernels.hpp"

namespace pydlbench::cuda {

namespace {

// The L2 cache replaces nearly random lines: after reading n times its size, about exp(-n) of the
// former lines remain.
constexpr std::size_t kFlushFactor = 4;
constexpr std::size_t kMinFlushBytes = std::size_t{16} << 20;

bool gate_is_wanted() {
  const char* wanted = std::getenv("PYDLBENCH_GATE");
  return wanted == nullptr || std::strcmp(wanted, "0") != 0;
}

std::uint64_t nanoseconds(double seconds) { return static_cast<std::uint64_t>(1e9 * seconds); }

struct RealCaptured final : Calls::Captured {
  explicit RealCaptured(cudaGraph_t handle) : graph(handle) {}
  std::size_t launches() const override { return nodes; }
  Graph graph;
  std::size_t nodes = 0;
};

struct RealExecutable final : Calls::Executable {
  GraphExec exec;
};

}  // namespace

struct RealCalls::State {
  const Device& device;
  std::uint64_t timeout_ns;
  Event first, last;
  PinnedMemory gate, stamps;
  DeviceMemory sum, flush;
  std::uint32_t ticket = 0;
  bool capturing = false;
  int persisting_bytes = 0;  // of L2, which a kernel may keep from the flush; known after the first
  bool has_gate = gate_is_wanted();

  GateFlags& flags() const { return *static_cast<GateFlags*>(gate.data()); }
  cudaEvent_t event(Mark mark) const { return (mark == Mark::first ? first : last).get(); }
  static std::size_t offset(Mark mark) { return mark == Mark::first ? 0 : kStampSlots; }
};

RealCalls::RealCalls(const Device& device, double gate_timeout_seconds) {
  device.make_current();
  state_ = std::make_unique<State>(
      State{device, nanoseconds(gate_timeout_seconds), Event::create(), Event::create(),
            PinnedMemory::create(sizeof(GateFlags)),
            PinnedMemory::create(2 * kStampSlots * sizeof(ClockStamp)),
            DeviceMemory(device, sizeof(std::uint32_t), "the sum of what is read into the cache"),
            DeviceMemory()});
  state_->sum.fill(0, stream());
  stamp(Mark::first);
  prefetch({state_->sum.data(), state_->sum.bytes()});
  if (!has_gate()) {
    wait();
    return;
  }
  // With all kernels loaded, a launch behind a closed gate returns at once, unless launches are
  // blocking. Detecting that here costs one time-out instead of one per plan.
  close_gate();
  stamp(Mark::last);
  open_gate();
  wait();
  if (gate_timed_out()) {
    throw Unsupported(
        "starting a kernel waits for the device, so times would include the host's: unset "
        "CUDA_LAUNCH_BLOCKING, or leave the profiler that runs kernels one by one; "
        "PYDLBENCH_GATE=0 "
        "includes the host's");
  }
}

RealCalls::~RealCalls() {
  abandon_capture();
  open_gate();
  drain();
}

CUstream_st* RealCalls::stream() { return state_->device.stream(); }

double RealCalls::host_seconds() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

void RealCalls::flush_l2() {
  auto& state = *state_;
  if (state.flush.data() == nullptr) {
    const auto bytes = std::max(kMinFlushBytes, kFlushFactor * state.device.facts().l2_bytes);
    state.flush = DeviceMemory(state.device, bytes, "flushing the L2 cache");
    state.flush.fill(0x5a, stream());
    PYDLBENCH_CUDA_CHECK(cudaDeviceGetAttribute(
        &state.persisting_bytes, cudaDevAttrMaxPersistingL2CacheSize, state.device.facts().index));
  }
  // Reads of other data do not evict lines that a kernel has marked as persisting.
  if (state.persisting_bytes > 0) PYDLBENCH_CUDA_CHECK(cudaCtxResetPersistingL2Cache());
  prefetch({state.flush.data(), state.flush.bytes()});
}

void RealCalls::prefetch(const Prefetch& prefetch) {
  state_->device.make_current();
  launch_read(prefetch.data, prefetch.bytes, state_->device.facts().multiprocessors,
              static_cast<std::uint32_t*>(state_->sum.data()), stream());
}

bool RealCalls::has_gate() const noexcept { return state_->has_gate; }

void RealCalls::close_gate() {
  state_->device.make_current();
  launch_gate(static_cast<GateFlags*>(state_->gate.device_data()), ++state_->ticket,
              state_->timeout_ns, stream());
}

void RealCalls::open_gate() noexcept {
  __atomic_store_n(&state_->flags().opened, state_->ticket, __ATOMIC_SEQ_CST);
}

bool RealCalls::gate_timed_out() {
  return __atomic_load_n(&state_->flags().timed_out, __ATOMIC_SEQ_CST) == state_->ticket;
}

void RealCalls::stamp(Mark mark) {
  // No kernel is running, so clear the stamps: multiprocessors that do not write are missing.
  if (mark == Mark::first) std::memset(state_->stamps.data(), 0, state_->stamps.bytes());
  auto* stamps = static_cast<ClockStamp*>(state_->stamps.device_data());
  launch_stamp(stamps + State::offset(mark), state_->device.facts().multiprocessors, stream());
}

std::optional<ClockInterval> RealCalls::clock_interval() {
  const auto* stamps = static_cast<const ClockStamp*>(state_->stamps.data());
  return cuda::clock_interval(stamps + State::offset(Mark::first),
                              stamps + State::offset(Mark::last), kStampSlots);
}

void RealCalls::record(Mark mark) {
  PYDLBENCH_CUDA_CHECK(cudaEventRecord(state_->event(mark), stream()));
}

double RealCalls::elapsed_seconds() {
  float milliseconds = 0;
  PYDLBENCH_CUDA_CHECK(
      cudaEventElapsedTime(&milliseconds, state_->first.get(), state_->last.get()));
  return 1e-3 * static_cast<double>(milliseconds);
}

void RealCalls::wait() { PYDLBENCH_CUDA_CHECK(cudaStreamSynchronize(stream())); }

void RealCalls::drain() noexcept {
  static_cast<void>(cudaStreamSynchronize(stream()));
  static_cast<void>(cudaGetLastError());
}

void RealCalls::begin_capture() {
  state_->device.make_current();
  // Thread-local mode: forbidden calls of other threads are no errors.
  PYDLBENCH_CUDA_CHECK(cudaStreamBeginCapture(stream(), cudaStreamCaptureModeThreadLocal));
  state_->capturing = true;
}

std::unique_ptr<Calls::Captured> RealCalls::end_capture() {
  cudaGraph_t graph = nullptr;
  const auto code = cudaStreamEndCapture(stream(), &graph);
  state_->capturing = false;  // ended, even if invalid
  auto captured = std::make_unique<RealCaptured>(graph);
  PYDLBENCH_CUDA_CHECK(code);
  PYDLBENCH_CUDA_CHECK(cudaGraphGetNodes(graph, nullptr, &captured->nodes));
  if (captured->nodes == 0) {
    throw PrimitiveFailure("CUDA graph", "the execution left nothing in the captured stream");
  }
  return captured;
}

void RealCalls::abandon_capture() noexcept {
  if (!state_->capturing) return;
  cudaGraph_t graph = nullptr;
  static_cast<void>(cudaStreamEndCapture(stream(), &graph));
  if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
  static_cast<void>(cudaGetLastError());
  state_->capturing = false;
}

std::unique_ptr<Calls::Executable> RealCalls::instantiate(Captured& captured) {
  auto executable = std::make_unique<RealExecutable>();
  cudaGraphExec_t exec = nullptr;
  auto& graph = static_cast<RealCaptured&>(captured).graph;
  PYDLBENCH_CUDA_CHECK(cudaGraphInstantiate(&exec, graph.get(), 0));
  executable->exec = GraphExec(exec);
  return executable;
}

void RealCalls::upload(Executable& executable) {
  auto& exec = static_cast<RealExecutable&>(executable).exec;
  PYDLBENCH_CUDA_CHECK(cudaGraphUpload(exec.get(), stream()));
}

void RealCalls::launch(Executable& executable) {
  auto& exec = static_cast<RealExecutable&>(executable).exec;
  PYDLBENCH_CUDA_CHECK(cudaGraphLaunch(exec.get(), stream()));
}

std::vector<GraphKernel> RealCalls::kernels(const Captured& captured) {
  const auto* driver = graph_driver();
  if (driver == nullptr) return {};
  return graph_kernels(*driver, static_cast<const RealCaptured&>(captured).graph.get());
}

std::shared_ptr<RealCalls> shared_calls(const Device& device) {
  static std::mutex mutex;
  static std::map<CUstream_st*, std::weak_ptr<RealCalls>> known;
  const std::lock_guard<std::mutex> lock(mutex);
  auto& kept = known[device.stream()];
  auto calls = kept.lock();
  if (!calls) kept = calls = std::make_shared<RealCalls>(device);
  return calls;
}

}  // namespace pydlbench::cuda
