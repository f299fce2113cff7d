// The sampler's calls of the CUDA runtime. Abstract, so that its order of calls and its clean-up
// are tested without a GPU against a fake that records them.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>

#include "cuda/sampling/clock.hpp"

struct CUstream_st;  // cudaStream_t, without CUDA's headers

namespace pydlbench::cuda {

// Device memory that is brought into the L2 cache between a flush and a timed execution.
struct Prefetch {
  const void* data;
  std::size_t bytes;
};

enum class Mark { first, last };  // of the two events, and of the two clock stamps

// Everything happens in stream order on stream() and returns before it is done, but for wait(),
// drain() and elapsed_seconds(). What is not noexcept may throw: a sampler must survive that.
class Calls {
 public:
  // A captured sequence of launches, and what can be launched of it. Destroyed with their owners.
  struct Captured {
    virtual ~Captured() = default;
    virtual std::size_t launches() const = 0;  // kernels, copies and fills that are in it
  };
  struct Executable {
    virtual ~Executable() = default;
  };

  virtual ~Calls() = default;
  virtual CUstream_st* stream() = 0;
  virtual double host_seconds() = 0;  // a monotonic clock

  virtual void flush_l2() = 0;  // no line of anybody's tensors stays in the L2 cache
  virtual void prefetch(const Prefetch&) = 0;

  // The gate: what is enqueued after close_gate() starts when open_gate() was called, or when the
  // gate's time-out is over. Opening an open gate does nothing. Without one, nothing is held back.
  virtual bool has_gate() const noexcept = 0;
  virtual void close_gate() = 0;
  virtual void open_gate() noexcept = 0;
  virtual bool gate_timed_out() = 0;  // the last one that was closed; after wait()

  virtual void stamp(Mark) = 0;          // cycles and nanoseconds as the multiprocessors count them
  virtual void record(Mark) = 0;         // an event
  virtual double elapsed_seconds() = 0;  // between the events; after wait()
  // Between the stamps, or nothing where no multiprocessor wrote a sensible pair; after wait().
  virtual std::optional<ClockInterval> clock_interval() = 0;

  virtual void wait() = 0;  // for all that was enqueued; throws what it did wrong
  // The same on the way out of an error: never throws, returns at once where the device is lost.
  virtual void drain() noexcept = 0;

  virtual void begin_capture() = 0;
  virtual std::unique_ptr<Captured> end_capture() = 0;
  virtual void abandon_capture() noexcept = 0;  // does nothing where none is open
  virtual std::unique_ptr<Executable> instantiate(Captured&) = 0;
  virtual void upload(Executable&) = 0;  // so that the first launch has nothing left to copy
  virtual void launch(Executable&) = 0;
};

}  // namespace pydlbench::cuda
