// Plans of our own pooling kernels, and which of them are worth trying. No device is needed.
#pragma once

#include <memory>
#include <vector>

#include "core/problem.hpp"
#include "cuda/mode.hpp"
#include "cuda/plan.hpp"

namespace pydlbench::cuda::pooling {

enum class Method { thread, warp };  // one window (or pixel) per thread, or one window per warp

// Where the maximum lies in its window, counted row by row: one byte where that is enough.
inline DataType argmax_type(const Pool2dProblem& p) {
  return p.kernel_height * p.kernel_width <= 256 ? DataType::int8 : DataType::int32;
}

// A kernel of ours and how it is started.
struct Choice {
  DataType type;
  bool channels_last;
  Method method;
  int lanes;  // channels that a thread handles, of one pixel
};

// The kernels worth trying: the widest vectors first, fewer channels (more threads) after them.
inline std::vector<Choice> choices(const Pool2dProblem& p, Pass pass, DataType type,
                                   bool channels_last) {
  std::vector<Choice> result;
  const bool forward = is_forward(pass);
  // A four-byte argmax has a kernel for single channels only.
  const bool wide_argmax = p.mode == PoolMode::max && pass != Pass::forward_inference &&
                           argmax_type(p) != DataType::int8;
  const int full = 16 / static_cast<int>(bytes_of(type));
  for (const int lanes : {full, 2, 1}) {
    if (lanes == 2 && bytes_of(type) != 2) continue;
    if (lanes > 1 && (!channels_last || wide_argmax || p.channels % lanes != 0)) continue;
    result.push_back({type, channels_last, Method::thread, lanes});
  }
  const bool large_window = p.kernel_height * p.kernel_width >= 32;
  if (forward && !channels_last && large_window) {
    result.push_back({type, channels_last, Method::warp, 1});
  }
  return result;
}

// Every kernel of ours for a layout. Throws Unsupported for images of 2**31 elements and more.
std::vector<std::shared_ptr<Plan>> own_plans(const Pool2dProblem& problem, Pass pass, DataType type,
                                             bool channels_last);

}  // namespace pydlbench::cuda::pooling
