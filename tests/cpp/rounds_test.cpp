// The probes' rounds (calibration, warm-up, medians) against a GPU whose every answer is made up.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "check.hpp"
#include "cuda/probes/rounds.hpp"

using namespace pydlbench;
using namespace pydlbench::cuda;

namespace {

struct Script {
  double overhead_s = 0, per_scale_s = 1e-6;  // of a round
  double clock_hz = 1.5e9;
  int slow_rounds = 0;      // at the start, at half of the clock
  int disturbed_every = 0;  // of these rounds, one takes ten times as long; 0: none
  int unread_every = 0;     // of these rounds, one has no clock; 0: none
  // What is asked for.
  double seconds = 0.2, work = 1e6;
  std::uint32_t max_scale = 1 << 24;
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
  bool has_gate() const noexcept override { return true; }
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

struct Outcome {
  ProbeResult found;
  int all_rounds;
  std::uint32_t scale;
  std::string log, error;
};

Outcome played(const Script& script) {
  Outcome outcome{};
  FakeCalls calls(script);
  try {
    outcome.found = run_rounds(calls, script.seconds, script.work, script.max_scale,
                               [&](std::uint32_t scale) { calls.launched(scale); });
  } catch (const std::exception& error) {
    outcome.error = error.what();
  }
  outcome.all_rounds = calls.rounds;
  outcome.scale = calls.scale;
  outcome.log = calls.log;
  return outcome;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST(the_rate_is_work_over_time) {
  Script script;
  script.work = 3e6;
  const auto [found, all_rounds, scale, log, error] = played(script);
  CHECK_NEAR(found.per_second, 3e12, 1e-6);
  CHECK_NEAR(found.median_per_second, 3e12, 1e-6);
  CHECK_NEAR(found.clock_hz, 1.5e9, 1e-6);
  CHECK_NEAR(found.median_clock_hz, 1.5e9, 1e-6);
  CHECK(found.seconds >= 0.2);
  CHECK_EQ(error, "");
}

TEST(rounds_are_long_against_an_event_and_many) {
  for (const double per_scale_s : {1e-9, 1e-6, 3e-5}) {
    Script script;
    script.per_scale_s = per_scale_s;
    const auto outcome = played(script);
    const double round = outcome.scale * per_scale_s;
    CHECK(0.6 * 5e-3 <= round && round <= 1.4 * 5e-3);
    CHECK(outcome.found.rounds >= 20);
    // A quarter of the time goes by before the first round that counts.
    CHECK(4 * (outcome.all_rounds - outcome.found.rounds) >= outcome.found.rounds);
  }
}

// Ten microseconds of overhead, a thousand times the work of scale 1.
TEST(the_launch_does_not_count_for_the_work) {
  Script script;
  script.per_scale_s = 1e-8, script.overhead_s = 1e-5, script.work = 1;
  CHECK_NEAR(played(script).found.per_second, 1e8, 0.01);
}

TEST(a_kernel_that_is_long_by_itself_still_has_five_rounds) {
  Script script;
  script.per_scale_s = 0.5;
  const auto outcome = played(script);
  CHECK_EQ(outcome.scale, 1U);
  CHECK_EQ(outcome.found.rounds, 5);
}

TEST(the_scale_has_a_bound) {
  Script script;
  script.per_scale_s = 1e-9, script.max_scale = 1000;
  const auto outcome = played(script);
  CHECK_EQ(outcome.scale, 1000U);
  CHECK_NEAR(outcome.found.per_second, 1e15, 1e-6);
}

TEST(a_disturbed_round_moves_neither_best_nor_median) {
  Script script;
  script.disturbed_every = 4;
  const auto outcome = played(script);
  CHECK_NEAR(outcome.found.per_second, 1e12, 1e-6);
  CHECK_NEAR(outcome.found.median_per_second, 1e12, 1e-6);
}

TEST(the_clock_of_the_best_round_is_not_that_of_the_slow_ones) {
  Script script;
  script.slow_rounds = 30;
  const auto found = played(script).found;
  CHECK_NEAR(found.per_second, 1e12, 1e-6);
  CHECK_NEAR(found.clock_hz, 1.5e9, 1e-6);
  CHECK(0.75e9 <= found.median_clock_hz && found.median_clock_hz <= 1.5e9);
}

TEST(rounds_without_a_clock_are_left_out_of_its_median) {
  Script script;
  script.unread_every = 3;
  CHECK_NEAR(played(script).found.median_clock_hz, 1.5e9, 1e-6);
  script.unread_every = 1;
  const auto nothing = played(script).found;
  CHECK_EQ(nothing.clock_hz, 0.0);
  CHECK_EQ(nothing.median_clock_hz, 0.0);
  CHECK_NEAR(nothing.per_second, 1e12, 1e-6);
}

TEST(events_lie_inside_of_the_stamps) { CHECK_EQ(played({}).log.substr(0, 12), "seLESwseLESw"); }

TEST(a_time_that_is_none_is_an_error) {
  for (const double time : {0.0, -1.0, std::nan("")}) {
    Script script;
    script.per_scale_s = time;
    CHECK(contains(played(script).error, "the time between two events reads"));
  }
}

TEST(no_time_to_measure_in_is_an_error) {
  for (const double seconds : {0.0, -1.0, std::nan("")}) {
    Script script;
    script.seconds = seconds;
    const auto outcome = played(script);
    CHECK(contains(outcome.error, "seconds"));
    CHECK_EQ(outcome.all_rounds, 0);
  }
}
