// Limits of cuDNN's pooling. Needs neither its header nor a device.
#include <cstdint>

#include "cuda/pooling/cudnn_plans.hpp"

namespace pydlbench::cuda::pooling {

namespace {

// Whether cuDNN, which pads both ends equally and rounds down, has the same number of windows.
// (Padding at the end may differ if no window reaches it.)
bool same_windows(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                  std::int64_t pad) {
  const auto padded = in + 2 * pad;
  return padded >= kernel && (padded - kernel) / stride + 1 == out;
}

}  // namespace

const char* beyond_cudnn(const PoolProblem& p) {
  if (!same_windows(p.in_size[0], p.out_size[0], p.kernel[0], p.stride[0], p.pad_before[0]) ||
      !same_windows(p.in_size[1], p.out_size[1], p.kernel[1], p.stride[1], p.pad_before[1])) {
    return "cuDNN pads both ends alike";
  }
  const auto most = [&](std::int64_t height, std::int64_t width) {
    return p.batch * p.channels * height * width;
  };
  if (most(p.in_size[0], p.in_size[1]) > INT32_MAX ||
      most(p.out_size[0], p.out_size[1]) > INT32_MAX) {
    return "cuDNN's pooling counts elements in 32 bits";
  }
  return nullptr;
}

}  // namespace pydlbench::cuda::pooling
