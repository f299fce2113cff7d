// Rounds of the CPU's probes: their threads start together, and each waits for all.
#include <sched.h>

#include <atomic>
#include <stdexcept>
#include <vector>

#include "check.hpp"
#include "cpu/probes/rounds.hpp"

using namespace pydlbench::cpu;

namespace {

// The CPUs that this process may use, at most three.
std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  sched_getaffinity(0, sizeof set, &set);
  std::vector<int> cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE && cpus.size() < 3; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

}  // namespace

TEST(threads_do_the_work_of_each_round_and_hand_their_results_over) {
  const auto cpus = allowed_cpus();
  // Plain memory: only the rounds' barriers order its uses.
  std::vector<long> prepared(cpus.size()), done(cpus.size());
  long rounds = 0;
  const auto found = run_rounds(
      cpus, 0.02, 1e3, [&](int index) { prepared[static_cast<size_t>(index)] = 1; },
      [&](int index, long scale) {
        if (index == 0) ++rounds;
        done[static_cast<size_t>(index)] += scale;
      });
  CHECK_EQ(prepared, std::vector<long>(cpus.size(), 1));
  CHECK(found.rounds >= 5 && rounds > found.rounds);
  for (const long each : done) CHECK_EQ(each, done[0]);  // all have the same scales
  CHECK(found.per_second >= found.median_per_second && found.median_per_second > 0);
}

TEST(a_thread_that_fails_to_prepare_releases_the_others) {
  const auto cpus = allowed_cpus();
  std::atomic<int> worked{0};
  bool thrown = false;
  try {
    run_rounds(
        cpus, 0.02, 1,
        [](int index) {
          if (index == 0) throw std::runtime_error("invented");
        },
        [&](int, long) { ++worked; });
  } catch (const std::runtime_error&) {
    thrown = true;
  }
  CHECK(thrown);
  CHECK_EQ(worked.load(), 0);
}

TEST(work_on_several_cpus_is_done_once_on_each) {
  const auto cpus = allowed_cpus();
  std::vector<int> done(cpus.size());
  run_once(cpus, [&](int index) { ++done[static_cast<size_t>(index)]; });
  CHECK_EQ(done, std::vector<int>(cpus.size(), 1));
}
