// Clean-up of the sampler after exceptions: open gate, empty stream, no capture.
#pragma once

#include <memory>

#include "cuda/sampling/calls.hpp"

namespace pydlbench::cuda {

// Closes the gate during its lifetime. On early exit it opens the gate and drains the stream.
class ClosedGate {
 public:
  explicit ClosedGate(Calls& calls) : calls_(calls) {}
  ~ClosedGate() {
    if (finished_) return;
    calls_.open_gate();
    calls_.drain();
  }
  ClosedGate(const ClosedGate&) = delete;
  ClosedGate& operator=(const ClosedGate&) = delete;

  void close() {
    if (calls_.has_gate()) calls_.close_gate();
  }
  // After open_and_wait().
  bool timed_out() { return calls_.has_gate() && calls_.gate_timed_out(); }
  void open_and_wait() {
    calls_.open_gate();
    calls_.wait();
    finished_ = true;
  }

 private:
  Calls& calls_;
  bool finished_ = false;
};

// Empties the stream after an exception.
class Draining {
 public:
  explicit Draining(Calls& calls) : calls_(calls) {}
  ~Draining() {
    if (!finished_) calls_.drain();
  }
  Draining(const Draining&) = delete;
  Draining& operator=(const Draining&) = delete;
  void wait() {
    calls_.wait();
    finished_ = true;
  }

 private:
  Calls& calls_;
  bool finished_ = false;
};

// Ends the capture after an exception.
class Capture {
 public:
  explicit Capture(Calls& calls) : calls_(calls) {}
  ~Capture() {
    if (!ended_) calls_.abandon_capture();
  }
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;
  void begin() { calls_.begin_capture(); }
  std::unique_ptr<Calls::Captured> end() {
    auto captured = calls_.end_capture();
    ended_ = true;
    return captured;
  }

 private:
  Calls& calls_;
  bool ended_ = false;
};

}  // namespace pydlbench::cuda
