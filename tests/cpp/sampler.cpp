// The sampler on a fake runtime that records every call, counts open objects, and fails at a given
// call. A scenario gives one line of JSON, which test_sampler.py checks.
#include <algorithm>
#include <cstdint>
#include <optional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "cuda/sampling/clock.hpp"
#include "cuda/sampling/gate.cuh"
#include "cuda/sampling/sampler.hpp"

namespace {

using namespace pydlbench::cuda;

struct Injected : std::runtime_error {
  using std::runtime_error::runtime_error;
};

constexpr double kHostSecondsPerLaunch = 2e-6;
constexpr double kGraphGain = 0.75;  // an execution in a graph takes this part of its time

}  // namespace

extern "C" struct Scenario {
  int cache, timing, sets, prefetches;
  int samples, inner, untimed;
  int launch_times;       // repetitions; 0: sample()
  double seconds;         // that an execution takes on the fake device
  double elapsed;         // time between events, unless 0
  double clock_seconds;   // between the stamps; 0: that of the work; negative: no interval
  int fail_at;            // the call that throws, counted from 1; 0: none
  int fail_after_effect;  // whether it does its work before it throws
  int gate_timeouts;      // number of gates that time out, from the first on
  int queue;              // most launches behind a closed gate, the next one waits for its time-out
  int again;              // sample a second time, without failures, and record that instead
  int uncapturable;       // the work is refused while a stream is captured
  int kernels;            // of an execution; 0: one
  int ungated;            // there is no gate
  int known_launches;     // of an execution, which is never captured then; 0: nobody knows
};

namespace {

class Fake final : public Calls {
 public:
  explicit Fake(const Scenario& scenario) : scenario_(scenario) {}

  struct FakeCaptured final : Captured {
    FakeCaptured(Fake& owner, int count) : fake(owner), executions(count) { ++fake.alive; }
    ~FakeCaptured() override { --fake.alive, fake.say("destroy captured"); }
    std::size_t launches() const override {
      return static_cast<std::size_t>(executions * std::max(1, fake.scenario_.kernels));
    }
    Fake& fake;
    int executions;
  };
  struct FakeExecutable final : Executable {
    FakeExecutable(Fake& owner, int count) : fake(owner), executions(count) { ++fake.alive; }
    ~FakeExecutable() override {
      --fake.alive, fake.say("destroy executable");
      if (fake.pending > 0) fake.wrong("destroyed while it may run");
    }
    Fake& fake;
    int executions;
    bool uploaded = false;
  };

  CUstream_st* stream() override { return nullptr; }
  double host_seconds() override { return now_; }
  void flush_l2() override {
    call("flush", [&] { ++pending; });
  }
  void prefetch(const Prefetch& tensor) override {
    call("prefetch " + std::to_string(tensor.bytes), [&] { ++pending; });
  }
  bool has_gate() const noexcept override { return scenario_.ungated == 0; }
  void close_gate() override {
    call("close", [&] {
      if (capturing) wrong("a gate in a capture");
      closed = true, timed_out_ = false, behind_ = 0;
      ++pending;
      if (gates_++ < scenario_.gate_timeouts) time_out();
    });
  }
  void open_gate() noexcept override { say("open"), closed = false; }
  bool gate_timed_out() override {
    bool result = false;
    call("timed out?", [&] { result = timed_out_; });
    return result;
  }
  void stamp(Mark mark) override {
    call(mark == Mark::first ? "stamp first" : "stamp last", [&] { ++pending; });
  }
  void record(Mark mark) override {
    call(mark == Mark::first ? "event first" : "event last", [&] {
      ++pending;
      if (mark == Mark::first) interval_ = 0;
      (mark == Mark::first ? first_ : last_) = true;
    });
  }
  double elapsed_seconds() override {
    call("elapsed", [&] {
      if (pending > 0 || !first_ || !last_) wrong("events are read before they are done");
      first_ = last_ = false;
    });
    return scenario_.elapsed == 0 ? interval_ : scenario_.elapsed;
  }
  std::optional<ClockInterval> clock_interval() override {
    call("clock", [&] {
      if (pending > 0) wrong("stamps are read before they are written");
    });
    if (scenario_.clock_seconds < 0) return std::nullopt;
    const double seconds = scenario_.clock_seconds == 0 ? interval_ : scenario_.clock_seconds;
    return ClockInterval{2e9 * seconds, seconds};
  }
  void wait() override {
    call("wait", [&] {
      if (closed) wrong("the host waits behind a closed gate");
      now_ += std::exchange(busy_, 0.0);
      pending = 0;
    });
  }
  void drain() noexcept override {
    say("drain");
    if (closed) wrong("the host waits behind a closed gate");
    pending = 0;
  }
  void begin_capture() override {
    call("begin capture", [&] { capturing = true, captured_ = 0; });
  }
  std::unique_ptr<Captured> end_capture() override {
    std::unique_ptr<Captured> result;
    call("end capture", [&] {
      capturing = false;
      result = std::make_unique<FakeCaptured>(*this, captured_);
    });
    return result;
  }
  void abandon_capture() noexcept override { say("abandon capture"), capturing = false; }
  std::unique_ptr<Executable> instantiate(Captured& captured) override {
    std::unique_ptr<Executable> result;
    const int executions = static_cast<FakeCaptured&>(captured).executions;
    call("instantiate " + std::to_string(executions),
         [&] { result = std::make_unique<FakeExecutable>(*this, executions); });
    return result;
  }
  void upload(Executable& executable) override {
    call("upload", [&] { static_cast<FakeExecutable&>(executable).uploaded = true, ++pending; });
  }
  void launch(Executable& executable) override {
    auto& graph = static_cast<FakeExecutable&>(executable);
    call("launch " + std::to_string(graph.executions), [&] {
      if (!graph.uploaded) wrong("launched before it was uploaded");
      run(graph.executions, kGraphGain * scenario_.seconds);
    });
  }

  // One execution of the work.
  void work(std::size_t set) {
    call("work " + std::to_string(set), [&] {
      if (capturing && scenario_.uncapturable) {
        throw pydlbench::PrimitiveFailure("library", "not while a stream is captured");
      }
      now_ += kHostSecondsPerLaunch;
      capturing ? void(++captured_) : run(1, scenario_.seconds);
    });
  }

  void say(const std::string& what) noexcept { trace.push_back(what); }
  void wrong(const std::string& what) noexcept { faults.push_back(what); }
  void heal() { trace.clear(), scenario_.fail_at = 0; }

  std::vector<std::string> trace, faults;
  int alive = 0, pending = 0;
  bool closed = false, capturing = false;

 private:
  template <typename Effect>
  void call(const std::string& name, Effect effect) {
    say(name);
    const bool fails = ++calls_ == scenario_.fail_at;
    if (fails && !scenario_.fail_after_effect) throw Injected("injected into " + name);
    effect();
    if (fails) throw Injected("injected after " + name);
  }
  void run(int executions, double seconds) {
    ++pending;
    interval_ += executions * seconds;
    busy_ += executions * seconds;
    behind_ += executions;
    if (closed && scenario_.queue > 0 && behind_ > scenario_.queue) time_out();
  }
  void time_out() { closed = false, timed_out_ = true; }

  Scenario scenario_;
  int calls_ = 0, gates_ = 0, behind_ = 0, captured_ = 0;
  double now_ = 0, busy_ = 0, interval_ = 0;
  bool timed_out_ = false, first_ = false, last_ = false;
};

class FakeWork final : public Work {
 public:
  FakeWork(Fake& fake, const Scenario& scenario)
      : fake_(fake),
        sets_(scenario.sets),
        kernels_(scenario.kernels),
        known_(scenario.known_launches) {}
  void enqueue(std::size_t set, CUstream_st*) override { fake_.work(set); }
  std::size_t sets() const override { return static_cast<std::size_t>(sets_); }
  std::size_t kernels() const override {
    return kernels_ == 0 ? Work::kernels() : static_cast<std::size_t>(kernels_);
  }
  std::size_t known_launches() const override { return static_cast<std::size_t>(known_); }

 private:
  Fake& fake_;
  int sets_, kernels_, known_;
};

template <typename T>
std::string list(const std::vector<T>& values) {
  std::ostringstream out;
  out.precision(17);
  out << '[';
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0) out << ", ";
    if constexpr (std::is_same_v<T, std::string>) {
      out << '"' << values[i] << '"';
    } else {
      out << values[i];
    }
  }
  out << ']';
  return out.str();
}

std::string play(const Scenario& scenario) {
  Fake fake(scenario);
  FakeWork work(fake, scenario);
  std::ostringstream out;
  out.precision(17);
  out << '{';
  {
    std::vector<Prefetch> prefetches;
    for (int i = 0; i < scenario.prefetches; ++i)
      prefetches.push_back({nullptr, std::size_t(i) + 1});
    std::string error;
    SampleResult result;
    LaunchTimes times{};
    std::optional<Sampler> sampler;
    const auto once = [&] {
      if (scenario.launch_times > 0) {
        times = sampler->launch_times(scenario.launch_times);
      } else {
        result = sampler->sample({scenario.samples, scenario.inner, scenario.untimed});
      }
    };
    try {
      sampler.emplace(fake, work, static_cast<CacheState>(scenario.cache),
                      static_cast<Timing>(scenario.timing), prefetches);
      once();
    } catch (const std::exception& caught) {
      error = caught.what();
    }
    out << "\"closed\": " << fake.closed << ", \"capturing\": " << fake.capturing
        << ", \"pending\": " << fake.pending << ", ";
    if (scenario.again) {
      fake.heal();
      try {
        once();
      } catch (const std::exception& caught) {
        fake.wrong(std::string("not usable afterwards: ") + caught.what());
      }
    }
    out << "\"error\": \"" << error << "\", \"trace\": " << list(fake.trace)
        << ", \"seconds\": " << list(result.seconds)
        << ", \"enqueue_s\": " << list(result.enqueue_seconds)
        << ", \"clock_hz\": " << list(result.clock_hz)
        << ", \"wall_seconds\": " << result.wall_seconds
        << ", \"gate_timeouts\": " << result.gate_timeouts << ", \"times\": "
        << list(std::vector<double>{times.single_s, times.event_s, times.graph_s, times.host_s,
                                    times.wall_s})
        << ", ";
  }
  out << "\"alive\": " << fake.alive << ", \"faults\": " << list(fake.faults) << '}';
  return out.str();
}

}  // namespace

extern "C" {

// The answer is valid until the next call.
const char* play_scenario(const Scenario* scenario) {
  static std::string answer;
  answer = play(*scenario);
  return answer.c_str();
}

// Cycles and seconds into `out`, from stamps as pairs of numbers; whether there is an interval.
int pair_stamps(const std::uint64_t* first, const std::uint64_t* last, int count, double* out) {
  std::vector<ClockStamp> before, after;
  for (int i = 0; i < count; ++i) {
    before.push_back({first[2 * i], first[2 * i + 1]});
    after.push_back({last[2 * i], last[2 * i + 1]});
  }
  const auto interval = clock_interval(before.data(), after.data(), before.size());
  if (!interval) return 0;
  out[0] = interval->cycles, out[1] = interval->seconds;
  return 1;
}

// The readings into `hz`, from pairs of cycles and seconds, where 0 s is none; how many there are.
int read_clocks(const double* intervals, int count, double* hz) {
  std::vector<std::optional<ClockInterval>> samples;
  for (int i = 0; i < count; ++i) {
    samples.emplace_back();
    if (intervals[2 * i + 1] > 0) {
      samples.back() = ClockInterval{intervals[2 * i], intervals[2 * i + 1]};
    }
  }
  const auto readings = clock_readings(samples);
  std::copy(readings.begin(), readings.end(), hz);
  return static_cast<int>(readings.size());
}

// Polls a gate that the host opens before poll number `opens`, by a timer of `step` ns per look,
// and returns the number of polls, negative where the time-out ended it.
int poll_gate(std::uint32_t before, std::uint32_t after, std::uint32_t ticket, int opens,
              std::uint64_t start, std::uint64_t step, std::uint64_t timeout) {
  int polls = 0;
  std::uint64_t time = start - step;
  const auto opened = [&] { return ++polls < opens ? before : after; };
  const auto now = [&] { return time += step; };
  return wait_at_gate(opened, now, ticket, timeout) ? polls : -polls;
}

}  // extern "C"
