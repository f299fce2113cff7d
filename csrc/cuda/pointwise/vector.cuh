// Vectors of sixteen bytes: memory-bound kernels move vectors and compute in float.
#pragma once

#include <cstdint>
#include <cstring>

#include "cuda/simt.hpp"

namespace pydlbench::cuda::pointwise {

// Division by a number that is constant in a launch: by a multiplication and a shift if the
// dividend is below 2**31, else by a (slow) 64-bit division.
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

#ifdef __CUDACC__
using Bits16 = uint4;
#else
struct alignas(16) Bits16 {
  std::uint32_t x, y, z, w;
};
#endif

// Elements in sixteen bytes.
template <typename T>
inline constexpr int kLanes = 16 / static_cast<int>(sizeof(T));

template <typename T>
__host__ __device__ __forceinline__ bool is_aligned(const T* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % sizeof(Bits16) == 0;
}

// A whole vector, aligned to sixteen bytes.
template <typename T>
__device__ __forceinline__ Bits16 load_whole(const T* from, std::int64_t first) {
  return *reinterpret_cast<const Bits16*>(from + first);
}

// Elements first .. first + kLanes - 1 of `count`; those beyond the end are zero. Reads element by
// element if not aligned to sixteen bytes, and at the end.
template <typename T>
__device__ __forceinline__ Bits16 load_bits(const T* from, std::int64_t first, std::int64_t count,
                                            bool aligned) {
  constexpr int n = kLanes<T>;
  if (aligned && first + n <= count) {
    return load_whole(from, first);
  }
  T lanes[n];
#pragma unroll
  for (int i = 0; i < n; ++i) {
    lanes[i] = first + i < count ? from[first + i] : from_float<T>(0.0f);
  }
  Bits16 bits;
  memcpy(&bits, lanes, sizeof bits);
  return bits;
}

template <typename T>
__device__ __forceinline__ void unpack(const Bits16& bits, float (&lanes)[kLanes<T>]) {
  T stored[kLanes<T>];
  memcpy(stored, &bits, sizeof bits);
#pragma unroll
  for (int i = 0; i < kLanes<T>; ++i) lanes[i] = to_float(stored[i]);
}

template <typename T>
__device__ __forceinline__ void load_lanes(const T* from, std::int64_t first, std::int64_t count,
                                           bool aligned, float (&lanes)[kLanes<T>]) {
  unpack<T>(load_bits(from, first, count, aligned), lanes);
}

template <typename T>
__device__ __forceinline__ void store_lanes(T* to, std::int64_t first, std::int64_t count,
                                            bool aligned, const float (&lanes)[kLanes<T>]) {
  constexpr int n = kLanes<T>;
  T stored[n];
#pragma unroll
  for (int i = 0; i < n; ++i) stored[i] = from_float<T>(lanes[i]);
  if (aligned && first + n <= count) {
    Bits16 bits;
    memcpy(&bits, stored, sizeof bits);
    *reinterpret_cast<Bits16*>(to + first) = bits;
    return;
  }
#pragma unroll
  for (int i = 0; i < n; ++i) {
    if (first + i < count) to[first + i] = stored[i];
  }
}

}  // namespace pydlbench::cuda::pointwise
