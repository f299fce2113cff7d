// Exceptions of the native code. The bindings turn each into its Python counterpart.
#pragma once

#include <stdexcept>
#include <string>

namespace pydlbench {

// The library or the hardware cannot do this; the caller reports a skipped row.
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A library primitive failed; the message names the primitive and the library's reason.
class PrimitiveFailure : public std::runtime_error {
 public:
  PrimitiveFailure(const std::string& primitive, const std::string& reason)
      : std::runtime_error(primitive + ": " + reason) {}
};

// A buffer could not be allocated.
class OutOfMemory : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {
[[noreturn]] inline void check_failed(const char* file, int line, const std::string& what) {
  throw std::invalid_argument(std::string(file) + ":" + std::to_string(line) + ": " + what);
}
}  // namespace detail

}  // namespace pydlbench

// Throws std::invalid_argument with file and line if the condition does not hold.
#define PYDLBENCH_CHECK(condition, what)                             \
  do {                                                               \
    if (!(condition)) {                                              \
      ::pydlbench::detail::check_failed(__FILE__, __LINE__, (what)); \
    }                                                                \
  } while (false)
