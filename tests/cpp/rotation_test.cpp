// Rotating sets, keeping a device busy for a while, and building plans once: what a kernel does
// without CUDA.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <utility>
#include <vector>

#include "check.hpp"
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
    FakeCaptured(Fake& fake, std::int64_t length) : count(fake.outcome.objects), size(length) {}
    std::size_t launches() const override { return static_cast<std::size_t>(size); }
    Count count;
    std::int64_t size;
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
    return std::make_unique<FakeCaptured>(*this, captured_);
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
  bool has_gate() const noexcept override { return true; }
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

constexpr std::int64_t kMegabyte = 1 << 20;

// The number of sets; -1 where there are no weights, or too many sets are needed.
std::int64_t sets_for(CacheState cache, Timing timing, std::int64_t weights, std::int64_t others,
                      std::int64_t cold_bytes) {
  try {
    return static_cast<std::int64_t>(set_count(tensors_of(weights, others), cache, timing,
                                               static_cast<std::size_t>(cold_bytes)));
  } catch (const pydlbench::Unsupported&) {
    return -1;
  }
}

std::size_t bytes_of_set(CacheState cache, std::int64_t weights, std::int64_t others) {
  return cold_set_bytes(tensors_of(weights, others), cache);
}

Outcome keep_busy(std::size_t sets, double each, double seconds, int fail_at = 0) {
  Fake fake(sets, each, fail_at);
  Load load{0, 0};
  bool failed = false;
  try {
    load = run_for(fake, fake, seconds);
  } catch (const std::runtime_error&) {
    failed = true;
  }
  auto outcome = fake.outcome;
  outcome.executions = failed ? -1 : static_cast<std::int64_t>(load.executions);
  outcome.seconds = load.seconds;
  outcome.capturing = fake.capturing();
  return outcome;
}

void check_nothing_is_left(const Outcome& outcome) {
  CHECK_EQ(outcome.objects, 0);
  CHECK_EQ(outcome.pending, 0);
  CHECK_EQ(outcome.capturing, 0);
}

}  // namespace

TEST(the_other_sets_push_each_set_out_of_the_cache) {
  for (const auto cache : {CacheState::weights_cold, CacheState::all_cold}) {
    const auto one = cache == CacheState::weights_cold ? kMegabyte : 4 * kMegabyte;
    for (const auto cold : {std::int64_t{0}, std::int64_t{1}, 3 * kMegabyte, 4 * kMegabyte,
                            4 * kMegabyte + 1, 100 * kMegabyte}) {
      const auto count = sets_for(cache, Timing::graph, kMegabyte, 3 * kMegabyte, cold);
      CHECK(count >= 2);
      CHECK((count - 1) * one >= cold);
      CHECK(count == 2 || (count - 2) * one < cold);
    }
  }
}

TEST(one_set_does_where_nothing_is_cold_or_the_cache_is_flushed) {
  const auto mb = kMegabyte;
  CHECK_EQ(sets_for(CacheState::hot, Timing::graph, mb, mb, 100 * mb), 1);
  for (const auto cache : {CacheState::hot, CacheState::weights_cold, CacheState::all_cold}) {
    CHECK_EQ(sets_for(cache, Timing::events, mb, mb, 100 * mb), 1);
  }
}

TEST(without_weights_none_can_be_cold) {
  for (const auto timing : {Timing::events, Timing::graph}) {
    CHECK_EQ(sets_for(CacheState::weights_cold, timing, 0, kMegabyte, kMegabyte), -1);
    CHECK(sets_for(CacheState::all_cold, timing, 0, kMegabyte, kMegabyte) >= 1);
  }
}

TEST(tensors_too_small_to_rotate_are_refused) {
  const auto all_cold = CacheState::all_cold;
  CHECK_EQ(sets_for(all_cold, Timing::graph, 256, 0, 1 << 30), -1);
  CHECK_EQ(sets_for(all_cold, Timing::graph, 256, 0, 255 * 256), 256);
  CHECK_EQ(sets_for(all_cold, Timing::graph, 256, 0, 255 * 256 + 1), -1);
}

TEST(copies_are_aligned) {
  CHECK_EQ(bytes_of_set(CacheState::all_cold, 1, 257), std::size_t{256 + 512});
  CHECK_EQ(bytes_of_set(CacheState::weights_cold, 256, 257), std::size_t{256});
  CHECK_EQ(bytes_of_set(CacheState::hot, 256, 257), std::size_t{0});
}

TEST(the_device_is_kept_busy_for_as_long_as_wanted) {
  constexpr double seconds = 0.5;
  for (const double each : {3e-6, 50e-6, 1e-3, 0.3}) {
    for (const std::size_t sets : {1, 3, 2000}) {
      const auto found = keep_busy(sets, each, seconds);
      CHECK_EQ(found.executions, found.executed);
      CHECK_EQ(found.executions % static_cast<std::int64_t>(sets), 0);
      CHECK_EQ(found.out_of_turn, 0);
      // Seconds that the longest graph takes, and more.
      const double graph = std::max(each, 0.02) + 2 * static_cast<double>(sets) * each;
      CHECK(seconds <= found.seconds && found.seconds <= seconds + graph);
      CHECK(found.most_ahead <= graph + 0.02);
      CHECK_NEAR(static_cast<double>(found.executions) * each, found.seconds, 0.01);
      CHECK(found.idle <= 0.01 * found.seconds);
      check_nothing_is_left(found);
    }
  }
}

TEST(nothing_is_left_behind_whichever_call_fails) {
  int fail_at = 1;
  for (; fail_at < 1000; ++fail_at) {
    const auto found = keep_busy(2, 1e-3, 0.1, fail_at);
    check_nothing_is_left(found);
    if (found.executions >= 0) break;
  }
  CHECK(fail_at < 1000);  // it came to its end
  // Two executions with their waits, a graph of twenty, five launches of it with theirs.
  CHECK(fail_at > 2 * 2 + 20 + 5);
}

TEST(a_plan_is_built_once_and_again_only_if_that_failed) {
  for (const bool fails : {false, true, false, true}) {
    int builds = 0;
    // One after another at about the same address.
    const auto plan = std::make_shared<CountingPlan>(&builds, fails);
    for (int i = 0; i < 2; ++i) {
      try {
        plan->prepare();
      } catch (const std::runtime_error&) {
      }
    }
    CHECK_EQ(builds, fails ? 2 : 1);
  }
}
