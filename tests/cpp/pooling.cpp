// Our pooling kernels on the CPU, their plans, and what cuDNN's pooling can express: for
// test_pooling.py and test_pooling_plans.py.
#include <cstdint>
#include <exception>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "cuda/pooling/cudnn_plans.hpp"
#include "cuda/pooling/kernels.hpp"
#include "cuda/pooling/own_plans.hpp"
#include "problem_from.hpp"

using namespace pydlbench;
using namespace pydlbench::cuda;

namespace {

std::string message, answer;
std::vector<std::shared_ptr<Plan>> made;

// `sizes` in the order of the problem's fields.
Pool2dProblem problem_of(const std::int64_t* sizes, int mode) {
  auto problem = problem_from<Pool2dProblem>(sizes);
  problem.mode = static_cast<PoolMode>(mode);
  return problem;
}

pooling::Choice choice_of(int type, int channels_last, int per_warp, int lanes) {
  return {static_cast<DataType>(type), channels_last != 0,
          per_warp != 0 ? pooling::Method::warp : pooling::Method::thread, lanes};
}

template <typename Run>
const char* guarded(Run&& run) {
  try {
    run();
    return "";
  } catch (const std::exception& error) {
    message = error.what();
    return message.c_str();
  }
}

}  // namespace

extern "C" {

int argmax_bytes(const std::int64_t* sizes) {
  return static_cast<int>(bytes_of(pooling::argmax_type(problem_of(sizes, 0))));
}

const char* pool_forward(int type, int channels_last, int per_warp, int lanes,
                         const std::int64_t* sizes, int mode, const void* src, void* dst,
                         void* argmax) {
  return guarded([&] {
    const auto problem = problem_of(sizes, mode);
    const auto choice = choice_of(type, channels_last, per_warp, lanes);
    pooling::run_forward(problem, choice, src, dst, argmax, nullptr);
  });
}

const char* pool_backward(int type, int channels_last, int lanes, const std::int64_t* sizes,
                          int mode, const void* dst, const void* argmax, void* src) {
  return guarded([&] {
    const auto problem = problem_of(sizes, mode);
    const auto choice = choice_of(type, channels_last, 0, lanes);
    pooling::run_backward(problem, choice, dst, argmax, src, nullptr);
  });
}

const char* why_not_cudnn(const std::int64_t* sizes) {
  const char* reason = pooling::beyond_cudnn(problem_of(sizes, 0));
  return reason == nullptr ? "" : reason;
}

// One line for each plan: algorithm, variant, layout, accumulator, notes, and each tensor with its
// role, use, type and strides.
const char* pooling_plans(const char* pass, int type, int mode, int channels_last,
                          const std::int64_t* sizes) {
  made = pooling::own_plans(problem_of(sizes, mode), pass_of(pass), static_cast<DataType>(type),
                            channels_last != 0);
  std::ostringstream lines;
  for (const auto& plan : made) {
    const auto& facts = plan->facts();
    lines << facts.algorithm << "|" << facts.variant << "|" << facts.layout << "|"
          << facts.accumulate << "|" << facts.tensor_cores.value() << "|";
    for (const auto& note : facts.notes) lines << note << ";";
    lines << "|";
    for (const auto& tensor : plan->tensors()) {
      lines << tensor.role << " " << static_cast<int>(tensor.use) << " "
            << static_cast<int>(tensor.type);
      for (const auto stride : tensor.strides) lines << " " << stride;
      lines << ",";
    }
    lines << "\n";
  }
  answer = lines.str();
  return answer.c_str();
}

void run_pooling_plan(int plan, void** pointers, int count) {
  auto& chosen = *made.at(static_cast<std::size_t>(plan));
  const std::vector<void*> all(pointers, pointers + count);
  chosen.prepare();
  chosen.derive(all, nullptr, nullptr);
  chosen.enqueue(all, nullptr, nullptr);
}

}  // extern "C"
