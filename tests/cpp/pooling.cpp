// Our pooling kernels on the CPU, their plans, and what cuDNN's pooling can express: for
// test_pooling.py and test_pooling_plans.py.
#include <cstdint>
#include <exception>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "cuda/pooling/cudnn_plans.hpp"
#include "cuda/pooling/kernels.hpp"
#include "cuda/pooling/own_plans.hpp"
#include "problem_from.hpp"

using namespace pydlbench;
using namespace pydlbench::cuda;

namespace {

std::string message, answer;
std::shared_ptr<Plan> made;

// `sizes` in the order of the problem's fields.
PoolProblem problem_of(const std::int64_t* sizes, int mode) {
  auto problem = problem_from<PoolProblem>(sizes);
  problem.mode = static_cast<PoolMode>(mode);
  return problem;
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

const char* pool_forward(int type, int channels_last, const std::int64_t* sizes, int mode,
                         const void* src, void* dst, std::uint8_t* argmax) {
  return guarded([&] {
    pooling::run_forward(problem_of(sizes, mode), static_cast<DataType>(type), channels_last != 0,
                         src, dst, argmax, nullptr);
  });
}

const char* pool_backward(int type, int channels_last, const std::int64_t* sizes, int mode,
                          const void* dst, const std::uint8_t* argmax, void* src) {
  return guarded([&] {
    pooling::run_backward(problem_of(sizes, mode), static_cast<DataType>(type), channels_last != 0,
                          dst, argmax, src, nullptr);
  });
}

const char* why_not_cudnn(const std::int64_t* sizes) {
  const char* reason = pooling::beyond_cudnn(problem_of(sizes, 0));
  return reason == nullptr ? "" : reason;
}

// Our plan in a line: algorithm, variant, layout, accumulator, notes, and each tensor with its
// role, use, type and strides. Empty where we have none; what is unsupported begins with "!".
const char* pooling_plan(const char* pass, int type, int mode, int channels_last, int by_cudnn,
                         const std::int64_t* sizes) {
  std::ostringstream line;
  try {
    made = pooling::own_plan(problem_of(sizes, mode), pass_of(pass), static_cast<DataType>(type),
                             channels_last != 0, by_cudnn != 0);
    if (made == nullptr) return "";
    const auto& facts = made->facts();
    line << facts.algorithm << "|" << facts.variant << "|" << facts.layout << "|"
         << facts.accumulate << "|" << facts.tensor_cores.value() << "|";
    for (const auto& note : facts.notes) line << note << ";";
    line << "|";
    for (const auto& tensor : made->tensors()) {
      line << tensor.role << " " << static_cast<int>(tensor.use) << " "
           << static_cast<int>(tensor.type);
      for (const auto stride : tensor.strides) line << " " << stride;
      line << ",";
    }
  } catch (const Unsupported& error) {
    line << "!" << error.what();
  }
  answer = line.str();
  return answer.c_str();
}

void run_pooling_plan(void** pointers, int count) {
  const std::vector<void*> all(pointers, pointers + count);
  made->prepare();
  made->derive(all, nullptr, nullptr);
  made->enqueue(all, nullptr, nullptr);
}

}  // extern "C"
