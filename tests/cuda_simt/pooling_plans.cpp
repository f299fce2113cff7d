// The plans of our pooling kernels on the CPU, and what cuDNN's pooling can express.
#include <cstdint>
#include <sstream>
#include <string>

#include "cuda/pooling/bfloat16.cu"
#include "cuda/pooling/cudnn_limits.cpp"
#include "cuda/pooling/float16.cu"
#include "cuda/pooling/float32.cu"
#include "cuda/pooling/kernels.cpp"
#include "cuda/pooling/own_plans.cpp"

using namespace pydlbench;
using namespace pydlbench::cuda;

namespace {

std::string answer;
std::vector<std::shared_ptr<Plan>> made;

// batch, channels, in height and width, out, kernel, stride, pads (top, left, bottom, right).
Pool2dProblem problem_of(const std::int64_t* n, int mode) {
  return {n[0],  n[1],  n[2],  n[3],  n[4],
          n[5],  n[6],  n[7],  n[8],  n[9],
          n[10], n[11], n[12], n[13], static_cast<PoolMode>(mode)};
}

}  // namespace

extern "C" {

const char* why_not_cudnn(const std::int64_t* sizes) {
  const char* reason = pooling::beyond_cudnn(problem_of(sizes, 0));
  return reason == nullptr ? "" : reason;
}

// One line for each plan: algorithm, variant, layout, accumulator, notes, and each tensor with its
// role, use, type and strides.
const char* find_plans(const char* pass, int type, int mode, int channels_last,
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

void run_plan(int plan, void** pointers, int count) {
  auto& chosen = *made.at(static_cast<std::size_t>(plan));
  const std::vector<void*> all(pointers, pointers + count);
  chosen.prepare();
  chosen.derive(all, nullptr, nullptr);
  chosen.enqueue(all, nullptr, nullptr);
}

}  // extern "C"
