// Test cases in C++: TEST(name) { CHECK(condition); CHECK_EQ(got, wanted); }. main.cpp runs them.
// CMake and pytest each define a test per line that begins with TEST(.
#pragma once

#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace pydlbench::tests {

struct Case {
  const char* name;
  std::function<void()> run;
};

// In the order of the files.
inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}

struct Registered {
  Registered(const char* name, std::function<void()> run) {
    cases().push_back({name, std::move(run)});
  }
};

// Thrown by a failed check.
struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

template <typename T>
void show(std::ostream& out, const T& value) {
  out << value;
}
template <typename T>
void show(std::ostream& out, const std::vector<T>& values) {
  for (const auto& value : values) {
    out << "\n  ";
    show(out, value);
  }
}

template <typename Got, typename Wanted>
void check_equal(const Got& got, const Wanted& wanted, const char* what, const char* file,
                 int line) {
  if (got == wanted) return;
  std::ostringstream text;
  text << file << ":" << line << ": " << what << " is ";
  show(text, got);
  text << ", not ";
  show(text, wanted);
  throw Failure(text.str());
}

inline bool is_near(double got, double wanted, double relative) {
  const double off = got - wanted;
  return (off < 0 ? -off : off) <= relative * (wanted < 0 ? -wanted : wanted);
}

}  // namespace pydlbench::tests

#define TEST(name)                                                          \
  static void name();                                                       \
  static const pydlbench::tests::Registered registered_##name(#name, name); \
  static void name()

#define CHECK(condition)                                                                       \
  do {                                                                                         \
    if (!(condition)) {                                                                        \
      throw pydlbench::tests::Failure(std::string(__FILE__) + ":" + std::to_string(__LINE__) + \
                                      ": not " + #condition);                                  \
    }                                                                                          \
  } while (false)

#define CHECK_EQ(got, wanted) \
  pydlbench::tests::check_equal((got), (wanted), #got, __FILE__, __LINE__)

#define CHECK_NEAR(got, wanted, relative) \
  CHECK(pydlbench::tests::is_near((got), (wanted), (relative)))
