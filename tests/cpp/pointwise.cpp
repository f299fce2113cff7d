// The pointwise plans, with their kernels compiled for the CPU: for the tests in pointwise/.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <exception>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cuda/pointwise/plans.hpp"
#include "cuda/pointwise/vector.cuh"

using namespace pydlbench;
using namespace pydlbench::cuda;

namespace {

std::vector<std::shared_ptr<Plan>> found;
std::string text;

std::string listed(const std::vector<std::int64_t>& numbers) {
  std::string result = "[";
  for (const auto number : numbers) {
    result += (result.size() > 1 ? "," : "") + std::to_string(number);
  }
  return result + "]";
}

std::string quoted(const std::string& value) { return '"' + value + '"'; }

const char* use_name(Use use) {
  return use == Use::input ? "input" : use == Use::output ? "output" : "in-out";
}

std::string described(const Plan& plan) {
  const auto& facts = plan.facts();
  std::string result =
      "{\"primitive\":" + quoted(facts.primitive) + ",\"algorithm\":" + quoted(facts.algorithm) +
      ",\"library\":" + quoted(facts.library) + ",\"variant\":" + quoted(facts.variant) +
      ",\"layout\":" + quoted(facts.layout) + ",\"accumulate\":" + quoted(facts.accumulate) +
      ",\"tensor_cores\":" +
      (!facts.tensor_cores   ? "null"
       : *facts.tensor_cores ? "true"
                             : "false") +
      ",\"workspace_bytes\":" + std::to_string(plan.workspace_bytes()) + ",\"tensors\":[";
  bool first = true;
  for (const auto& t : plan.tensors()) {
    result += std::string(first ? "" : ",") + "{\"role\":" + quoted(t.role) +
              ",\"type\":" + std::to_string(static_cast<int>(t.type)) +
              ",\"dims\":" + listed(t.dims) + ",\"strides\":" + listed(t.strides) +
              ",\"use\":" + quoted(use_name(t.use)) + "}";
    first = false;
  }
  return result + "]}";
}

}  // namespace

extern "C" {

// A JSON list of plans, or "!" and why there are none. Parameters: name, value, name, value, ...
const char* pointwise_plans_of(const char* op, const char* pass, const char* mode,
                               const char* layout, const char* const* passes, int pass_count,
                               const std::int64_t* sizes, const char* const* names,
                               const double* values, int parameters, const std::int64_t* sources,
                               int source_count, int capability) {
  PointwiseProblem problem{
      op, sizes[0], sizes[1], sizes[2], sizes[3], {passes, passes + pass_count}, false, {}, {}};
  for (int i = 0; i < parameters; ++i) problem.numbers[names[i]] = values[i];
  problem.sources.assign(sources, sources + source_count);
  try {
    found = pointwise_plans(problem, pass_of(pass), mode_of(mode), layout, {capability, 1, 512});
  } catch (const std::exception& error) {
    text = std::string("!") + error.what();
    return text.c_str();
  }
  text = "[";
  for (std::size_t i = 0; i < found.size(); ++i) text += (i ? "," : "") + described(*found[i]);
  text += "]";
  return text.c_str();
}

// Empty, or what went wrong.
const char* run_pointwise_plan(int index, void* const* pointers, int count, void* workspace) {
  try {
    auto& plan = *found.at(static_cast<std::size_t>(index));
    plan.prepare();
    plan.enqueue({pointers, pointers + count}, workspace, nullptr);
  } catch (const std::exception& error) {
    text = error.what();
    return text.c_str();
  }
  return "";
}

// Memory whose last byte is the last one of a page, before one that may not be touched.
void* guarded(std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t whole = (bytes + page - 1) / page * page;
  void* base =
      mmap(nullptr, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  mprotect(static_cast<char*>(base) + whole, page, PROT_NONE);
  return static_cast<char*>(base) + (whole - bytes);
}

void unguarded(void* memory, std::size_t bytes) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t whole = (bytes + page - 1) / page * page;
  munmap(static_cast<char*>(memory) - (whole - bytes), whole + page);
}

// divisor x quotient + remainder, by pointwise::Divider.
void divide(std::int64_t divisor, std::int64_t limit, std::int64_t dividend, std::int64_t* both) {
  const pointwise::Divider divider(divisor, limit);
  both[0] = divider.quotient(dividend);
  both[1] = divider.remainder(dividend);
}
}
