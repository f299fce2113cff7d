#include "cpu/probes/rounds.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <exception>
#include <limits>
#include <set>
#include <thread>
#include <utility>

#include "core/error.hpp"
#include "cpu/counters.hpp"
#include "cpu/probes/probes.hpp"

#if defined(__linux__)
#include <pthread.h>
#include <sched.h>
#endif

namespace pydlbench::cpu {
namespace {

// A round is much longer than the barrier (a microsecond, more with many threads) and shorter than
// the scheduler's time slices, so that on a busy machine some rounds are not interrupted.
constexpr double kRound = 1e-3;
constexpr double kRoundPerThread = kRound / 32;
constexpr int kWantedRounds = 10;
constexpr int kMinRounds = 5;
constexpr int kWarmupRounds = 2;
constexpr int kTries = 3;  // windows per step of the calibration, in case one is disturbed

// A spinning barrier: with a sleeping one, the clock drops and threads start microseconds apart.
class Barrier {
 public:
  explicit Barrier(int count) : count_(count) {}

  // Returns false if the run was aborted.
  bool wait() {
    const int generation = generation_.load(std::memory_order_acquire);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == count_) {
      arrived_.store(0, std::memory_order_relaxed);
      generation_.fetch_add(1, std::memory_order_release);
    } else {
      int spins = 0;
      while (generation_.load(std::memory_order_acquire) == generation && !given_up_.load()) {
        if (++spins > 4096) std::this_thread::yield();  // another process holds a CPU
      }
    }
    return !given_up_.load();
  }

  void give_up() { given_up_.store(true); }

 private:
  const int count_;
  std::atomic<int> arrived_{0};
  std::atomic<int> generation_{0};
  std::atomic<bool> given_up_{false};
};

int pin_to(int cpu) {
#if defined(__linux__)
  // As many bits as needed: machines with more than 1024 CPUs exist.
  cpu_set_t* set = CPU_ALLOC(static_cast<size_t>(cpu) + 1);
  if (set == nullptr) return ENOMEM;
  const size_t size = CPU_ALLOC_SIZE(static_cast<size_t>(cpu) + 1);
  CPU_ZERO_S(size, set);
  CPU_SET_S(static_cast<size_t>(cpu), size, set);
  const int error = pthread_setaffinity_np(pthread_self(), size, set);
  CPU_FREE(set);
  return error;
#else
  (void)cpu;
  return -1;
#endif
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 != 0 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// Decisions of thread 0, which all threads read after the next barrier.
struct Plan {
  long scale = 1;
  bool finished = false;
};

// Shared by the threads of one run; each thread writes only its own element.
struct Shared {
  explicit Shared(size_t threads)
      : barrier(static_cast<int>(threads)),
        starts(threads),
        ends(threads),
        clocks(threads),
        failures(threads) {}

  Barrier barrier;
  Plan plan;
  std::vector<double> starts, ends, clocks;
  std::vector<std::exception_ptr> failures;
};

// Control by thread 0: calibration, warm-up, then rounds until the time is over.
class Director {
 public:
  Director(double seconds, size_t threads)
      : seconds_(seconds),
        target_(std::min(seconds / (kWantedRounds + kWarmupRounds),
                         kRound + kRoundPerThread * static_cast<double>(threads))) {}

  Plan after_round(const Shared& shared, long scale) {
    const double window = *std::max_element(shared.ends.begin(), shared.ends.end()) -
                          *std::min_element(shared.starts.begin(), shared.starts.end());
    if (!calibrated_) return calibrate(window, scale);
    if (warmups_ < kWarmupRounds) {
      ++warmups_;
      return {scale, false};
    }
    windows_.push_back(window);
    clocks_.push_back(median(shared.clocks));
    all_clocks_.insert(all_clocks_.end(), shared.clocks.begin(), shared.clocks.end());
    spent_ += window;
    return {scale, static_cast<int>(windows_.size()) >= kMinRounds && spent_ >= seconds_};
  }

  ProbeResult result(double work_per_round) const {
    const auto best = std::min_element(windows_.begin(), windows_.end());
    ProbeResult found;
    found.per_second = work_per_round / *best;
    found.median_per_second = work_per_round / median(windows_);
    found.clock_hz = clocks_[static_cast<size_t>(best - windows_.begin())];
    found.median_clock_hz = median(all_clocks_);
    found.seconds = spent_;
    found.rounds = static_cast<int>(windows_.size());
    return found;
  }

 private:
  static constexpr long kMaxScale = 1L << 40;

  // Enlarges the work until a round lasts long enough.
  Plan calibrate(double window, long scale) {
    shortest_ = std::min(shortest_, window);
    if (++tries_ < kTries) return {scale, false};
    tries_ = 0;
    const double found = std::exchange(shortest_, std::numeric_limits<double>::infinity());
    calibrated_ = found >= 0.5 * target_ || scale >= kMaxScale;
    if (calibrated_) return {scale, false};
    // A short window is mostly overhead, so limit the factor to eight.
    const double factor = std::min(8.0, 1.05 * target_ / std::max(found, 1e-9));
    const long larger = std::lround(static_cast<double>(scale) * factor);
    return {std::min(kMaxScale, std::max(scale + 1, larger)), false};
  }

  const double seconds_;
  const double target_;
  bool calibrated_ = false;
  int tries_ = 0;
  int warmups_ = 0;
  double shortest_ = std::numeric_limits<double>::infinity();
  double spent_ = 0;
  std::vector<double> windows_, clocks_, all_clocks_;
};

// Runs `prepare`, then `body` on a thread pinned to each CPU; rethrows an exception after all
// threads have ended.
void run_threads(const std::vector<int>& cpus, Shared& shared, const std::function<void(int)>& body,
                 const std::function<void(int)>& prepare) {
  const auto main = [&](int index, int cpu) {
    try {
      const int error = pin_to(cpu);
      PYDLBENCH_CHECK(error == 0, "CPU " + std::to_string(cpu) +
                                      ": cannot pin a thread to it: " + std::strerror(error));
      prepare(index);
    } catch (...) {
      shared.failures[static_cast<size_t>(index)] = std::current_exception();
      shared.barrier.give_up();
      return;
    }
    body(index);
  };
  std::vector<std::thread> threads;
  threads.reserve(cpus.size());
  std::exception_ptr failure;
  try {
    for (size_t i = 0; i < cpus.size(); ++i) {
      threads.emplace_back([&, i] { main(static_cast<int>(i), cpus[i]); });
    }
  } catch (...) {  // no more threads available: release the waiting ones
    failure = std::current_exception();
    shared.barrier.give_up();
  }
  for (auto& thread : threads) thread.join();
  for (const auto& thrown : shared.failures) {
    if (thrown) failure = thrown;
  }
  if (failure) std::rethrow_exception(failure);
}

void check_cpus(const std::vector<int>& cpus) {
  PYDLBENCH_CHECK(!cpus.empty(), "probe: no CPU given");
  std::set<int> seen;
  for (const int cpu : cpus) {
    PYDLBENCH_CHECK(cpu >= 0, "CPU " + std::to_string(cpu) + ": not a CPU number");
    PYDLBENCH_CHECK(seen.insert(cpu).second, "CPU " + std::to_string(cpu) + ": given twice");
  }
#if !defined(__linux__)
  throw Unsupported("probe: threads can be pinned on Linux only");
#endif
}

}  // namespace

ProbeResult run_rounds(const std::vector<int>& cpus, double seconds, double work_per_scale,
                       const std::function<void(int index)>& prepare, const Work& work) {
  check_cpus(cpus);
  PYDLBENCH_CHECK(std::isfinite(seconds) && seconds > 0, "probe: seconds must be positive");
  Shared shared(cpus.size());
  Director director(seconds, cpus.size());
  run_threads(
      cpus, shared,
      [&](int index) {
        while (shared.barrier.wait()) {
          if (shared.plan.finished) return;
          const auto self = static_cast<size_t>(index);
          const long scale = shared.plan.scale;
          shared.starts[self] = now();
          work(index, scale);
          shared.ends[self] = now();
          shared.clocks[self] = core_clock_hz();
          if (!shared.barrier.wait()) return;
          if (index == 0) shared.plan = director.after_round(shared, scale);
        }
      },
      prepare);
  return director.result(work_per_scale * static_cast<double>(shared.plan.scale));
}

void run_once(const std::vector<int>& cpus, const std::function<void(int index)>& work) {
  check_cpus(cpus);
  Shared shared(cpus.size());
  run_threads(
      cpus, shared,
      [&](int index) {
        if (shared.barrier.wait()) work(index);
      },
      [](int) {});
}

}  // namespace pydlbench::cpu
