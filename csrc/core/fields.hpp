// A problem as Python hands it over: a value for each field of its layer, by name. Every size is
// given by its name, and none is left out.
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/problem.hpp"

namespace pydlbench {

// The fields of one problem. Each is taken once; what is left at the end is unknown. All errors are
// std::invalid_argument and name the kind of layer and the field.
class Fields {
 public:
  using Value = std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>>;

  Fields(std::string kind, std::map<std::string, Value> values)
      : kind_(std::move(kind)), left_(std::move(values)) {}

  const std::string& kind() const { return kind_; }

  bool has(const std::string& name) const { return left_.count(name) == 1; }

  void set(const std::string& name, Value value) { left_[name] = std::move(value); }

  template <typename T>
  T take(const std::string& name) {
    const auto found = left_.find(name);
    if (found == left_.end()) fail("the field " + name + " is missing");
    if (!std::holds_alternative<T>(found->second)) {
      fail("the field " + name + " is of another type");
    }
    T value = std::get<T>(std::move(found->second));
    left_.erase(found);
    return value;
  }

  // All that is left: the parameters of an operation, which are numbers.
  std::map<std::string, double> take_numbers() {
    std::map<std::string, double> numbers;
    for (const auto& [name, value] : std::exchange(left_, {})) {
      if (const auto* whole = std::get_if<std::int64_t>(&value)) {
        numbers[name] = static_cast<double>(*whole);
      } else if (const auto* real = std::get_if<double>(&value)) {
        numbers[name] = *real;
      } else {
        fail("the field " + name + " is no number");
      }
    }
    return numbers;
  }

  void check_all_taken() const {
    if (!left_.empty()) fail("no such field: " + left_.begin()->first);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw std::invalid_argument(kind_ + ": " + what);
  }

  std::string kind_;
  std::map<std::string, Value> left_;
};

// Takes the fields that are no sizes: most kinds have none.
template <typename Problem>
void take_others(Fields&, Problem&) {}

inline void take_others(Fields& fields, Pool2dProblem& problem) {
  const auto mode = fields.take<std::string>("mode");
  const auto whole = fields.take<bool>("count_include_pad");
  if (mode != "max" && mode != "avg") {
    throw std::invalid_argument("pool2d: no such mode: " + mode + "; there is: max, avg");
  }
  problem.mode = mode == "max" ? PoolMode::max
                 : whole       ? PoolMode::avg_include_padding
                               : PoolMode::avg_exclude_padding;
}

// The operation's own parameters are checked where it is known.
inline void take_others(Fields& fields, PointwiseProblem& problem) {
  problem.op = fields.take<std::string>("op");
  if (fields.has("sources")) {
    problem.sources = fields.take<std::vector<std::int64_t>>("sources");
  }
  problem.numbers = fields.take_numbers();
}

template <typename Problem>
Problem problem_of(Fields fields) {
  Problem problem{};
  for (const auto& field : Problem::fields) {
    problem.*field.size = fields.template take<std::int64_t>(field.name);
  }
  take_others(fields, problem);
  fields.check_all_taken();
  return problem;
}

}  // namespace pydlbench
