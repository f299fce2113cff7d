// The pooling kernels on the CPU, behind C functions.
#include <cstdint>
#include <exception>
#include <string>

#include "cuda/pooling/backward.cuh"
#include "cuda/pooling/forward.cuh"

using namespace pydlbench;
using namespace pydlbench::cuda;

namespace {

std::string message;

// batch, channels, in height and width, out, kernel, stride, pads (top, left, bottom, right).
Pool2dProblem problem_of(const std::int64_t* n, int mode) {
  return {n[0],  n[1],  n[2],  n[3],  n[4],
          n[5],  n[6],  n[7],  n[8],  n[9],
          n[10], n[11], n[12], n[13], static_cast<PoolMode>(mode)};
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
    if (type == 0) pooling::forward<float>(problem, choice, src, dst, argmax, nullptr);
    if (type == 1) pooling::forward<half_t>(problem, choice, src, dst, argmax, nullptr);
    if (type == 2) pooling::forward<bfloat16_t>(problem, choice, src, dst, argmax, nullptr);
  });
}

const char* pool_backward(int type, int channels_last, int lanes, const std::int64_t* sizes,
                          int mode, const void* dst, const void* argmax, void* src) {
  return guarded([&] {
    const auto problem = problem_of(sizes, mode);
    const auto choice = choice_of(type, channels_last, 0, lanes);
    if (type == 0) pooling::backward<float>(problem, choice, dst, argmax, src, nullptr);
    if (type == 1) pooling::backward<half_t>(problem, choice, dst, argmax, src, nullptr);
    if (type == 2) pooling::backward<bfloat16_t>(problem, choice, dst, argmax, src, nullptr);
  });
}

}  // extern "C"
