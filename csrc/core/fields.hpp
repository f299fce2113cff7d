// The fields of a problem by name, as Python passes them. All sizes must be present.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/problem.hpp"

namespace pydlbench {

// The fields of one problem. Each is taken once; remaining ones at the end are unknown fields.
// Errors are std::invalid_argument with the kind of layer and the field.
class Fields {
 public:
  using Value = std::variant<bool, std::int64_t, double, std::string, std::vector<std::int64_t>,
                             std::vector<std::string>>;

  Fields(std::string kind, std::map<std::string, Value> values)
      : kind_(std::move(kind)), left_(std::move(values)) {}

  const std::string& kind() const { return kind_; }

  // The kind without the number of its sides: "conv" of "conv2d".
  std::string op() const {
    const auto end = kind_.size();
    const bool sided = end > 2 && kind_[end - 1] == 'd' && kind_[end - 2] >= '1' &&
                       kind_[end - 2] <= '0' + kMaxSides;
    return sided ? kind_.substr(0, end - 2) : kind_;
  }

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

  // Takes all remaining fields: the numeric parameters of an operation.
  std::map<std::string, double> take_numbers() {
    std::map<std::string, double> numbers;
    for (const auto& [name, value] : std::exchange(left_, {})) {
      if (const auto* whole = std::get_if<std::int64_t>(&value)) {
        numbers[name] = static_cast<double>(*whole);
      } else if (const auto* real = std::get_if<double>(&value)) {
        numbers[name] = *real;
      } else if (const auto* flag = std::get_if<bool>(&value)) {
        numbers[name] = *flag ? 1.0 : 0.0;
      } else {
        fail("the field " + name + " is no number");
      }
    }
    return numbers;
  }

  void check_all_taken() const {
    if (!left_.empty()) fail("no such field: " + left_.begin()->first);
  }

  [[noreturn]] void fail(const std::string& what) const {
    throw std::invalid_argument(kind_ + ": " + what);
  }

 private:
  std::string kind_;
  std::map<std::string, Value> left_;
};

// Takes the fields with a number for each side.
inline void take_sides(Fields& fields, Windows& windows) {
  for (const auto& field : Windows::side_fields) {
    const auto sizes = fields.take<std::vector<std::int64_t>>(field.name);
    const auto count = static_cast<int>(sizes.size());
    if (count < 1 || count > kMaxSides) {
      fields.fail(std::string("the field ") + field.name + " has " + std::to_string(count) +
                  " sides; there may be 1 to " + std::to_string(kMaxSides));
    }
    if (windows.sides == 0) windows.sides = count;
    if (count != windows.sides || (fields.op() != fields.kind() &&
                                   fields.kind() != fields.op() + std::to_string(count) + "d")) {
      fields.fail(std::string("the field ") + field.name +
                  " has another number of sides: " + std::to_string(count));
    }
    std::copy(sizes.begin(), sizes.end(), windows.*field.sizes);
  }
}

// Takes the fields that are not single sizes; most kinds have none.
template <typename Problem>
void take_special_fields(Fields&, Problem&) {}

inline void take_special_fields(Fields& fields, ConvProblem& problem) {
  take_sides(fields, problem);
}

inline void take_special_fields(Fields& fields, PoolProblem& problem) {
  take_sides(fields, problem);
  const auto mode = fields.take<std::string>("mode");
  const auto whole = fields.take<bool>("count_include_pad");
  if (mode != "max" && mode != "avg") {
    fields.fail("no such mode: " + mode + "; there is: max, avg");
  }
  problem.mode = mode == "max" ? PoolMode::max
                 : whole       ? PoolMode::avg_include_padding
                               : PoolMode::avg_exclude_padding;
}

inline void take_special_fields(Fields& fields, GemmProblem& problem) {
  problem.src_batch = fields.take<std::vector<std::int64_t>>("src_batch");
  problem.weights_batch = fields.take<std::vector<std::int64_t>>("weights_batch");
  problem.weights_tag = fields.take<std::string>("weights_tag");
  const auto &src = problem.src_batch, &weights = problem.weights_batch;
  for (std::size_t i = 1; i <= std::min(src.size(), weights.size()); ++i) {
    const auto left = src[src.size() - i], right = weights[weights.size() - i];
    if (left != right && left != 1 && right != 1) {
      fields.fail("batches of " + std::to_string(left) + " and " + std::to_string(right) +
                  " do not fit together");
    }
  }
  const auto& tag = problem.weights_tag;
  if (tag != "any" && tag != "kn" && tag != "nk") {
    fields.fail("no such weights_tag: " + tag + "; there is: any, kn, nk");
  }
}

inline void take_special_fields(Fields& fields, AttentionProblem& problem) {
  problem.causal = fields.take<bool>("causal");
}

// The parameters of an operation are checked by its implementation.
inline void take_special_fields(Fields& fields, PointwiseProblem& problem) {
  problem.op = fields.take<std::string>("op");
  problem.passes = fields.take<std::vector<std::string>>("passes");
  problem.in_one_order = fields.take<bool>("in_one_order");
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
  take_special_fields(fields, problem);
  fields.check_all_taken();
  return problem;
}

}  // namespace pydlbench
