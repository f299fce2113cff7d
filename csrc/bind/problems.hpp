// From Python's keywords to problems: every size is given by its name, none is left out.
#pragma once

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/problem.hpp"

namespace pydlbench {

// The keywords of one problem. Each is taken once; what is left at the end is unknown.
class ProblemFields {
 public:
  // A copy: the caller's dictionary stays as it is.
  ProblemFields(const char* kind, const pybind11::kwargs& given)
      : kind_(kind), left_(given.attr("copy")()) {}

  bool has(const char* name) const { return left_.contains(name); }

  // Throws TypeError, naming the field, where it is missing or has no such type.
  template <typename T>
  T take(const char* name) {
    namespace py = pybind11;
    if (!has(name))
      throw py::type_error(std::string(kind_) + ": the field " + name + " is missing");
    const py::object value = left_.attr("pop")(name);
    try {
      return value.cast<T>();
    } catch (const py::cast_error&) {
      throw py::type_error(std::string(kind_) + ": the field " + name + " is " +
                           py::repr(value).cast<std::string>());
    }
  }

  template <typename Problem>
  void take_sizes(Problem& problem) {
    for (const auto& field : Problem::fields) {
      problem.*field.size = take<std::int64_t>(field.name);
    }
  }

  // Throws TypeError, naming the first field that nobody took.
  void check_all_taken() const {
    namespace py = pybind11;
    for (const auto& [name, value] : left_) {
      throw py::type_error(std::string(kind_) + ": no such field: " + name.cast<std::string>());
    }
  }

  pybind11::dict take_rest() { return std::exchange(left_, pybind11::dict()); }

 private:
  const char* kind_;
  pybind11::dict left_;
};

// Of a convolution or a matrix product.
template <typename Problem>
Problem problem_of(const pybind11::kwargs& given) {
  ProblemFields fields(Problem::kind, given);
  Problem problem{};
  fields.take_sizes(problem);
  fields.check_all_taken();
  return problem;
}

// Of a pooling, whose kind is not a size.
inline Pool2dProblem problem_of(const pybind11::kwargs& given, PoolMode mode) {
  ProblemFields fields(Pool2dProblem::kind, given);
  Pool2dProblem problem{};
  fields.take_sizes(problem);
  fields.check_all_taken();
  problem.mode = mode;
  return problem;
}

// Behind the sizes follow the operation's own parameters, which are checked where it is known.
inline PointwiseProblem problem_of(const std::string& op, const pybind11::kwargs& given) {
  ProblemFields fields(PointwiseProblem::kind, given);
  PointwiseProblem problem{};
  problem.op = op;
  fields.take_sizes(problem);
  if (fields.has("sources")) {
    problem.sources = fields.take<std::vector<std::int64_t>>("sources");
  }
  for (const auto& [name, value] : fields.take_rest()) {
    problem.numbers[name.cast<std::string>()] = value.cast<double>();
  }
  return problem;
}

}  // namespace pydlbench
