#include "cuda/sampling/kernels.hpp"

#include "cuda/sampling/gate.cuh"
#include "cuda/sampling/read.cuh"

namespace pydlbench::cuda {

namespace {

__device__ std::uint64_t global_nanoseconds() {
  std::uint64_t value;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(value));
  return value;
}

struct PollHost {
  const volatile std::uint32_t* where;
  __device__ std::uint32_t operator()() const { return *where; }
};

struct GlobalTimer {
  __device__ std::uint64_t operator()() const { return global_nanoseconds(); }
};

__global__ void gate_kernel(GateFlags* flags, std::uint32_t ticket, std::uint64_t timeout_ns) {
  if (wait_at_gate(PollHost{&flags->opened}, GlobalTimer{}, ticket, timeout_ns)) return;
  *static_cast<volatile std::uint32_t*>(&flags->timed_out) = ticket;
  __threadfence_system();
}

// If two blocks run on the same multiprocessor, the pair is still valid: it is one store.
__global__ void stamp_kernel(ClockStamp* stamps) {
  unsigned multiprocessor;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
  const auto cycles = static_cast<std::uint64_t>(clock64());
  const auto nanoseconds = global_nanoseconds();
  if (multiprocessor < kStampSlots) {
    *reinterpret_cast<ulonglong2*>(stamps + multiprocessor) = make_ulonglong2(cycles, nanoseconds);
  }
}

}  // namespace

void launch_gate(GateFlags* flags, std::uint32_t ticket, std::uint64_t timeout_ns,
                 CUstream_st* stream) {
  launch(gate_kernel, dim3(1), dim3(1), 0, stream, flags, ticket, timeout_ns);
}

void launch_stamp(ClockStamp* stamps, int multiprocessors, CUstream_st* stream) {
  launch(stamp_kernel, dim3(static_cast<unsigned>(multiprocessors)), dim3(1), 0, stream, stamps);
}

void launch_read(const void* data, std::size_t bytes, int multiprocessors, std::uint32_t* sum,
                 CUstream_st* stream) {
  read_all(data, bytes, multiprocessors, sum, stream);
}

}  // namespace pydlbench::cuda
