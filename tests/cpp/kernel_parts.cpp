// What a kernel does without CUDA: rotating sets, keeping the device busy, building plans once.
// test_kernel_parts.py judges.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "cuda/plan.hpp"
#include "cuda/sampling/rotation.hpp"
#include "cuda/sampling/sustained.hpp"

namespace {

using namespace pydlbench::cuda;

struct Outcome {
  std::int64_t executions;  // as run_for() says; -1: it threw
  double seconds;
  std::int64_t executed;  // by the fake device, but for those before the graph
  double most_ahead;      // seconds of work that were enqueued and not done
  double idle;            // seconds that the device waited for the host, from the first graph on
  std::int64_t objects, pending, capturing;  // left behind
  std::int64_t out_of_turn;                  // executions of another set than the next one
};

// A device that executes in `each` seconds, and a host that needs 10 us to wait for it.
class Fake final : public Calls, public Work {
 public:
  Fake(std::size_t sets, double each, int fail_at) : sets_(sets), each_(each), fail_at_(fail_at) {}

  struct Count {
    explicit Count(std::int64_t& alive) : alive_(alive) { ++alive_; }
    ~Count() { --alive_; }
    std::int64_t& alive_;
  };
  struct FakeCaptured final : Captured {
    explicit FakeCaptured(Fake& fake) : count(fake.outcome.objects) {}
    Count count;
  };
  struct FakeExecutable final : Executable {
    FakeExecutable(Fake& fake, std::int64_t length) : count(fake.outcome.objects), size(length) {}
    Count count;
    std::int64_t size;
  };

  void enqueue(std::size_t set, CUstream_st*) override {
    step();
    if (capturing_) {
      if (set != static_cast<std::size_t>(captured_) % sets_) ++outcome.out_of_turn;
      ++captured_;
    } else {
      work(1);
    }
  }
  std::size_t sets() const override { return sets_; }

  CUstream_st* stream() override { return nullptr; }
  double host_seconds() override { return now_; }
  void wait() override {
    step();
    now_ = std::max(now_, free_at_) + 10e-6;
    outcome.pending = 0;
  }
  void drain() noexcept override { outcome.pending = 0; }
  void begin_capture() override { step(), capturing_ = true, captured_ = 0; }
  std::unique_ptr<Captured> end_capture() override {
    step();
    capturing_ = false;
    return std::make_unique<FakeCaptured>(*this);
  }
  void abandon_capture() noexcept override { capturing_ = false; }
  std::unique_ptr<Executable> instantiate(Captured&) override {
    step();
    return std::make_unique<FakeExecutable>(*this, captured_);
  }
  void upload(Executable&) override { step(); }
  void launch(Executable& executable) override {
    step();
    if (outcome.executed > 0) outcome.idle += std::max(0.0, now_ - free_at_);
    const auto count = static_cast<FakeExecutable&>(executable).size;
    work(static_cast<double>(count));
    outcome.executed += count;
    outcome.most_ahead = std::max(outcome.most_ahead, free_at_ - now_);
  }

  void flush_l2() override { throw std::logic_error("not asked for"); }
  void prefetch(const Prefetch&) override { flush_l2(); }
  void close_gate() override { flush_l2(); }
  void open_gate() noexcept override {}
  bool gate_timed_out() override { return false; }
  void stamp(Mark) override { flush_l2(); }
  void record(Mark) override { flush_l2(); }
  double elapsed_seconds() override { return 0; }
  std::optional<ClockInterval> clock_interval() override { return std::nullopt; }

  bool capturing() const { return capturing_; }
  Outcome outcome{};

 private:
  void step() {
    if (++steps_ == fail_at_) throw std::runtime_error("injected");
    now_ += 2e-6;
  }
  void work(double executions) {
    free_at_ = std::max(free_at_, now_) + executions * each_;
    ++outcome.pending;
  }

  std::size_t sets_;
  double each_, now_ = 0, free_at_ = 0;
  int fail_at_, steps_ = 0;
  bool capturing_ = false;
  std::int64_t captured_ = 0;
};

class CountingPlan final : public Plan {
 public:
  explicit CountingPlan(int* builds, bool fails) : builds_(builds), fails_(fails) {}
  const PlanFacts& facts() const override { return facts_; }
  const std::vector<TensorSpec>& tensors() const override { return tensors_; }
  std::size_t workspace_bytes() const override { return 0; }
  void build() override {
    ++*builds_;
    if (fails_) throw std::runtime_error("injected");
  }
  void enqueue(const std::vector<void*>&, void*, CUstream_st*) override {}

 private:
  PlanFacts facts_;
  std::vector<TensorSpec> tensors_;
  int* builds_;
  bool fails_;
};

std::vector<TensorSpec> tensors_of(std::int64_t weights, std::int64_t others) {
  std::vector<TensorSpec> tensors;
  for (const auto& [role, bytes] : {std::pair{"src", others}, std::pair{"weights", weights}}) {
    if (bytes > 0) tensors.push_back({role, DataType::int8, {bytes}, {1}, Use::input});
  }
  return tensors;
}

}  // namespace

// The number of sets; -1 where there are no weights, or too many sets are needed.
extern "C" std::int64_t sets_for(int cache, int timing, std::int64_t weights, std::int64_t others,
                                 std::int64_t cold_bytes) {
  try {
    return static_cast<std::int64_t>(
        set_count(tensors_of(weights, others), static_cast<CacheState>(cache),
                  static_cast<Timing>(timing), static_cast<std::size_t>(cold_bytes)));
  } catch (const pydlbench::Unsupported&) {
    return -1;
  }
}

extern "C" std::int64_t bytes_of_set(int cache, std::int64_t weights, std::int64_t others) {
  return static_cast<std::int64_t>(
      cold_set_bytes(tensors_of(weights, others), static_cast<CacheState>(cache)));
}

extern "C" void keep_busy(int sets, double each, double seconds, int fail_at, Outcome* outcome) {
  Fake fake(static_cast<std::size_t>(sets), each, fail_at);
  Load load{0, 0};
  bool failed = false;
  try {
    load = run_for(fake, fake, seconds);
  } catch (const std::runtime_error&) {
    failed = true;
  }
  *outcome = fake.outcome;
  outcome->executions = failed ? -1 : static_cast<std::int64_t>(load.executions);
  outcome->seconds = load.seconds;
  outcome->capturing = fake.capturing();
}

// How often the plans of a list are built when each is asked for twice; every second one fails.
extern "C" void build_plans(int plans, int* builds) {
  for (int i = 0; i < plans; ++i) {
    // One after another at about the same address.
    const auto plan = std::make_shared<CountingPlan>(&builds[i], i % 2 == 1);
    for (int j = 0; j < 2; ++j) {
      try {
        plan->prepare();
      } catch (const std::runtime_error&) {
      }
    }
  }
}
