// Division by a number that is the same for a whole launch: a multiplication and a shift where the
// dividend stays below 2**31, and the division itself beyond (a GPU divides 64-bit integers
// slowly).
#pragma once

#include <cstdint>

#include "cuda/simt/simt.hpp"

namespace pydlbench::cuda::pointwise {

class Divider {
 public:
  Divider() = default;
  // Dividends are 0 .. limit - 1.
  Divider(std::int64_t divisor, std::int64_t limit) : divisor_(divisor) {
    constexpr std::int64_t small = std::int64_t{1} << 31;
    fast_ = divisor < small && limit <= small;
    if (!fast_) return;
    // T. Granlund and P. Montgomery, "Division by invariant integers using multiplication", 1994.
    while ((std::int64_t{1} << shift_) < divisor) ++shift_;
    const auto beyond = static_cast<std::uint64_t>((std::int64_t{1} << shift_) - divisor);
    multiplier_ =
        static_cast<std::uint32_t>((beyond << 32) / static_cast<std::uint64_t>(divisor) + 1);
  }

  __host__ __device__ __forceinline__ std::int64_t divisor() const { return divisor_; }

  __host__ __device__ __forceinline__ std::int64_t quotient(std::int64_t dividend) const {
    if (!fast_) return dividend / divisor_;
    const auto n = static_cast<std::uint32_t>(dividend);
    const auto high = static_cast<std::uint32_t>(std::uint64_t{n} * multiplier_ >> 32);
    return (high + n) >> shift_;
  }

  __host__ __device__ __forceinline__ std::int64_t remainder(std::int64_t dividend) const {
    return dividend - quotient(dividend) * divisor_;
  }

 private:
  std::int64_t divisor_ = 1;
  std::uint32_t multiplier_ = 1;
  int shift_ = 0;
  bool fast_ = false;
};

}  // namespace pydlbench::cuda::pointwise
