// The probes' rounds against a GPU whose every answer is made up.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "cuda/probes/rounds.hpp"

using namespace pydlbench;
using namespace pydlbench::cuda;

namespace {

struct Script {
  double overhead_s, per_scale_s;  // of a round
  double clock_hz;
  int slow_rounds;      // at the start, at half of the clock
  int disturbed_every;  // of these rounds, one takes ten times as long; 0: none
  int unread_every;     // of these rounds, one has no clock; 0: none
};

// Every call leaves a letter.
struct FakeCalls final : Calls {
  explicit FakeCalls(const Script& script_) : script(script_) {}
  Script script;
  std::string log;
  std::uint32_t scale = 0;
  int rounds = 0;
  double seconds = 0;

  void launched(std::uint32_t scale_) {
    log += 'L';
    scale = scale_;
  }
  void wait() override {
    log += 'w';
    ++rounds;
    const bool slow = rounds <= script.slow_rounds;
    const bool disturbed = script.disturbed_every > 0 && rounds % script.disturbed_every == 0;
    seconds =
        script.overhead_s + script.per_scale_s * scale * (slow ? 2 : 1) * (disturbed ? 10 : 1);
  }
  void stamp(Mark mark) override { log += mark == Mark::first ? 's' : 'S'; }
  void record(Mark mark) override { log += mark == Mark::first ? 'e' : 'E'; }
  double elapsed_seconds() override { return seconds; }
  std::optional<ClockInterval> clock_interval() override {
    if (script.unread_every > 0 && rounds % script.unread_every == 0) return std::nullopt;
    const double hz = script.clock_hz / (rounds <= script.slow_rounds ? 2 : 1);
    return ClockInterval{hz * seconds, seconds};
  }

  CUstream_st* stream() override { return nullptr; }
  double host_seconds() override { return 0; }
  void flush_l2() override { log += '?'; }
  void prefetch(const Prefetch&) override { log += '?'; }
  void close_gate() override { log += '?'; }
  void open_gate() noexcept override {}
  bool gate_timed_out() override { return false; }
  void drain() noexcept override {}
  void begin_capture() override { log += '?'; }
  std::unique_ptr<Captured> end_capture() override { return nullptr; }
  void abandon_capture() noexcept override {}
  std::unique_ptr<Executable> instantiate(Captured&) override { return nullptr; }
  void upload(Executable&) override { log += '?'; }
  void launch(Executable&) override { log += '?'; }
};

}  // namespace

extern "C" {

struct Outcome {
  double per_second, median_per_second, clock_hz, median_clock_hz, seconds;
  int rounds, all_rounds;
  unsigned scale;
  char log[64];     // how it began
  char error[128];  // empty where there was none
};

void play_rounds(const Script* script, double seconds, double work, unsigned most_scale,
                 Outcome* outcome) {
  *outcome = {};
  FakeCalls calls(*script);
  try {
    const auto found = run_rounds(calls, seconds, work, most_scale,
                                  [&](std::uint32_t scale) { calls.launched(scale); });
    outcome->per_second = found.per_second;
    outcome->median_per_second = found.median_per_second;
    outcome->clock_hz = found.clock_hz;
    outcome->median_clock_hz = found.median_clock_hz;
    outcome->seconds = found.seconds;
    outcome->rounds = found.rounds;
  } catch (const std::exception& error) {
    std::snprintf(outcome->error, sizeof outcome->error, "%s", error.what());
  }
  outcome->all_rounds = calls.rounds;
  outcome->scale = calls.scale;
  std::snprintf(outcome->log, sizeof outcome->log, "%s", calls.log.c_str());
}
}
