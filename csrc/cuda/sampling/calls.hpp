// The sampler's calls of the CUDA runtime: an abstract class, so that tests without a GPU can check
// the order of calls and the clean-up by a fake that records them.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "cuda/sampling/clock.hpp"

struct CUstream_st;  // cudaStream_t, without CUDA's headers

namespace pydlbench::cuda {

// Device memory to load into the L2 cache between a flush and a timed execution.
struct Prefetch {
  const void* data;
  std::size_t bytes;
};

enum class Mark { first, last };  // of the two events, and of the two clock stamps

// All calls are asynchronous on stream(), except wait(), drain() and elapsed_seconds(). Functions
// that are not noexcept may throw, and the sampler must handle that.
class Calls {
 public:
  // A captured sequence of launches, and an executable of it.
  struct Captured {
    virtual ~Captured() = default;
    virtual std::size_t launches() const = 0;  // number of kernels, copies and fills
  };
  struct Executable {
    virtual ~Executable() = default;
  };

  virtual ~Calls() = default;
  virtual CUstream_st* stream() = 0;
  virtual double host_seconds() = 0;  // a monotonic clock

  virtual void flush_l2() = 0;  // evicts all tensors from the L2 cache
  virtual void prefetch(const Prefetch&) = 0;

  // The gate: work that is enqueued after close_gate() starts after open_gate(), or after the
  // gate's time-out. Opening an open gate has no effect. Without a gate, nothing is held back.
  virtual bool has_gate() const noexcept = 0;
  virtual void close_gate() = 0;
  virtual void open_gate() noexcept = 0;
  virtual bool gate_timed_out() = 0;  // whether the last gate timed out; after wait()

  virtual void stamp(Mark) = 0;          // cycles and nanoseconds of the multiprocessors
  virtual void record(Mark) = 0;         // an event
  virtual double elapsed_seconds() = 0;  // between the events; after wait()
  // The clock between the stamps, or nothing if no multiprocessor wrote a valid pair; after wait().
  virtual std::optional<ClockInterval> clock_interval() = 0;

  virtual void wait() = 0;  // waits for all enqueued work; throws its errors
  // As wait(), but after an error: never throws, returns at once if the device is lost.
  virtual void drain() noexcept = 0;

  virtual void begin_capture() = 0;
  virtual std::unique_ptr<Captured> end_capture() = 0;
  virtual void abandon_capture() noexcept = 0;  // no effect if none is open
  virtual std::unique_ptr<Executable> instantiate(Captured&) = 0;
  virtual void upload(Executable&) = 0;  // avoids a copy at the first launch
  virtual void launch(Executable&) = 0;
};

}  // namespace pydlbench::cuda
