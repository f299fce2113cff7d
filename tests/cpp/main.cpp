// Runs the test cases whose names are given, or all.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "check.hpp"

int main(int count, char** arguments) {
  const std::vector<std::string> wanted(arguments + 1, arguments + count);
  int ran = 0, failed = 0;
  for (const auto& test : pydlbench::tests::cases()) {
    const bool is_wanted = std::find(wanted.begin(), wanted.end(), test.name) != wanted.end();
    if (!wanted.empty() && !is_wanted) continue;
    ++ran;
    try {
      test.run();
    } catch (const std::exception& error) {
      ++failed;
      std::printf("%s: %s\n", test.name, error.what());
    }
  }
  std::printf("%d ran, %d failed\n", ran, failed);
  const bool complete = wanted.empty() ? ran > 0 : ran == static_cast<int>(wanted.size());
  return failed == 0 && complete ? 0 : 1;
}
