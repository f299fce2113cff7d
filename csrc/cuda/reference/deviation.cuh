// Judging one element, and finding the worst one of a block, always in the same order.
#pragma once

#include <cmath>
#include <cstdint>

#include "cuda/element.cuh"
#include "cuda/reference/comparison.hpp"

namespace pydlbench::cuda::reference {

inline constexpr unsigned kCheckThreads = 256;

__device__ inline Deviation nothing_compared() { return {0.0, 0.0, 0.0, -1, 0, 0}; }

__device__ inline Deviation judge(double got, double expected, double scale, std::int64_t index) {
  Deviation found{0.0, got, expected, index, 0, 0};
  if (got != got) {
    found.unwritten = 1;
    found.error = got;
  } else if (got != expected) {
    found.infinite = got - got != 0.0;
    found.error = fabs(got - expected) / scale;
  }
  return found;
}

// Adds what the threads of a block found to the block's record. All threads have to come here.
__device__ inline void record(const Deviation& mine, Deviation* records) {
  __shared__ Deviation found[kCheckThreads];
  found[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned half = kCheckThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half)
      found[threadIdx.x] = both(found[threadIdx.x], found[threadIdx.x + half]);
    __syncthreads();
  }
  if (threadIdx.x == 0) records[blockIdx.x] = both(records[blockIdx.x], found[0]);
}

// A reference value and the sum of the squares of its terms.
struct Sum {
  double value, squares;

  __device__ __forceinline__ void add(double term) {
    value += term;
    squares += term * term;
  }
};

// After bias and ReLU the error is still measured against the sum before the ReLU: where that is
// about zero, a correct kernel may be on either side of the kink.
__device__ inline Deviation judge(const View& output, std::int64_t index, const Sum& sum,
                                  bool relu) {
  const double expected = relu && sum.value < 0.0 ? 0.0 : sum.value;
  const double scale = fabs(sum.value) + sqrt(sum.squares);
  return judge(load(output.data, output.type, offset(output, index)), expected, scale, index);
}

// The sum over the block, in the same order each time; valid in thread 0.
__device__ inline Sum block_sum(const Sum& mine) {
  __shared__ Sum sums[kCheckThreads];
  __syncthreads();  // the last turn's sums are no longer read
  sums[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned half = kCheckThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) {
      sums[threadIdx.x].value += sums[threadIdx.x + half].value;
      sums[threadIdx.x].squares += sums[threadIdx.x + half].squares;
    }
    __syncthreads();
  }
  return sums[0];
}

__global__ void clear_records_kernel(Deviation* records) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < kRecords) records[i] = nothing_compared();
}

inline void clear_records(Deviation* records, cudaStream_t stream) {
  launch(clear_records_kernel, dim3((kRecords + kCheckThreads - 1) / kCheckThreads),
         dim3(kCheckThreads), 0, stream, records);
}

// Calls start(first, last, blocks) for ranges of `units` that make at most about `terms_per_launch`
// terms each; a block takes `units_per_block` of them at a time.
template <typename Start>
void in_launches(std::int64_t units, std::int64_t terms_per_unit, std::int64_t units_per_block,
                 std::int64_t terms_per_launch, Start start) {
  auto step = terms_per_launch / (terms_per_unit > 0 ? terms_per_unit : 1);
  if (step < units_per_block) step = units_per_block;
  for (std::int64_t first = 0; first < units; first += step) {
    const auto last = first + step < units ? first + step : units;
    auto blocks = (last - first + units_per_block - 1) / units_per_block;
    if (blocks > kRecords) blocks = kRecords;
    start(first, last, dim3(static_cast<unsigned>(blocks)));
  }
}

}  // namespace pydlbench::cuda::reference
