#include "cpu/counters.hpp"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

namespace pydlbench::cpu {

std::map<long, double> run_queue_delays() {
  // /proc/self/schedstat covers the main thread only, so each task is read. Format: time on the
  // CPU, time waiting for one (both in ns), number of time slices.
  std::map<long, double> delays;
  const std::unique_ptr<DIR, int (*)(DIR*)> tasks(opendir("/proc/self/task"), closedir);
  if (!tasks) return delays;
  while (const dirent* entry = readdir(tasks.get())) {
    if (entry->d_name[0] == '.') continue;
    std::ifstream file("/proc/self/task/" + std::string(entry->d_name) + "/schedstat");
    double running = 0.0, waiting = 0.0;
    if (file >> running >> waiting) delays[std::stol(entry->d_name)] = waiting * 1e-9;
  }
  return delays;
}

double longest_delay_since(const std::map<long, double>& before) {
  double longest = 0.0;
  for (const auto& [thread, delay] : run_queue_delays()) {
    const auto earlier = before.find(thread);
    longest = std::max(longest, delay - (earlier == before.end() ? 0.0 : earlier->second));
  }
  return longest;
}

double stolen_time(const std::vector<int>& cpus) {
  std::ifstream file("/proc/stat");
  const auto hertz = static_cast<double>(sysconf(_SC_CLK_TCK));
  double total = 0.0;
  std::string line;
  while (std::getline(file, line) && line.rfind("cpu", 0) == 0) {
    std::istringstream fields(line);
    std::string name;
    fields >> name;
    if (name == "cpu") continue;  // the sum over all CPUs
    const int index = std::stoi(name.substr(3));
    if (!cpus.empty() && std::find(cpus.begin(), cpus.end(), index) == cpus.end()) continue;
    // user nice system idle iowait irq softirq steal
    double value = 0.0;
    for (int field = 0; field < 8; ++field) fields >> value;
    total += value / hertz;
  }
  return total;
}

double now() {
  using Clock = std::chrono::steady_clock;
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

}  // namespace pydlbench::cpu
