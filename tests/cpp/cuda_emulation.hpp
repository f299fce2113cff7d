// CUDA's execution model on one CPU thread, which csrc/cuda/simt.hpp includes without nvcc: blocks
// run one after another, the threads of a block as fibers that run until a barrier. Deterministic
// and strict: a barrier that only a part of the block reaches is an error, not a hang.
//
// Left out on purpose: time (clock64, globaltimer), memory spaces and races. Shared memory is a
// static variable, because blocks run one after another.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __restrict__
#define __launch_bounds__(...)
#define __shared__ static
#define __constant__ static

struct CUstream_st;
using cudaStream_t = CUstream_st*;

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct uint3 {
  unsigned x, y, z;
};

inline uint3 threadIdx{}, blockIdx{};
inline dim3 blockDim{}, gridDim{};
inline constexpr int warpSize = 32;

namespace pydlbench::cuda::simt {

// The threads of one block.
class Block {
 public:
  static constexpr std::size_t kStack = 128 * 1024;

  void run(unsigned threads, const std::function<void()>& body) {
    body_ = &body;
    fibers_.clear();
    fibers_.resize(threads);
    if (stacks_.size() < threads) stacks_.resize(threads);
    exchange_.assign(threads, 0);
    alive_ = threads;
    current() = this;
    for (unsigned i = 0; i < threads; ++i) {
      if (!stacks_[i]) stacks_[i] = std::make_unique<char[]>(kStack);
      auto& fiber = fibers_[i];
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = stacks_[i].get();
      fiber.context.uc_stack.ss_size = kStack;
      fiber.context.uc_link = &scheduler_;
      makecontext(&fiber.context, &Block::enter, 0);
    }
    while (alive_ > 0) {
      bool moved = false;
      for (unsigned i = 0; i < threads; ++i) {
        if (fibers_[i].done || blocked(i)) continue;
        moved = true;
        active_ = i;
        set_thread(i);
        swapcontext(&scheduler_, &fibers_[i].context);
        if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
      }
      if (!moved) throw std::logic_error("a barrier that part of the block never reaches");
    }
  }

  // Waits until all threads of the group have come as often as this one.
  void barrier(bool warp_only) {
    auto& fiber = fibers_[active_];
    fiber.waits_for_warp = warp_only;
    ++(warp_only ? fiber.warp_arrivals : fiber.block_arrivals);
    fiber.waiting = true;
    swapcontext(&fiber.context, &scheduler_);
    fiber.waiting = false;
  }

  unsigned active() const { return active_; }
  std::uint64_t& slot(unsigned thread) { return exchange_[thread]; }
  unsigned threads() const { return static_cast<unsigned>(fibers_.size()); }
  bool done(unsigned thread) const { return fibers_[thread].done; }

  static Block*& current() {
    static Block* block = nullptr;
    return block;
  }

 private:
  struct Fiber {
    ucontext_t context{};
    bool done = false, waiting = false, waits_for_warp = false;
    unsigned long block_arrivals = 0, warp_arrivals = 0;
  };

  static void enter() {
    auto* block = current();
    try {
      (*block->body_)();
    } catch (...) {
      block->error_ = std::current_exception();
    }
    block->fibers_[block->active_].done = true;
    --block->alive_;
  }

  bool blocked(unsigned thread) const {
    const auto& fiber = fibers_[thread];
    if (!fiber.waiting) return false;
    const unsigned first = fiber.waits_for_warp ? thread / 32 * 32 : 0;
    const unsigned last = fiber.waits_for_warp ? std::min(first + 32, threads()) : threads();
    for (unsigned i = first; i < last; ++i) {
      // Lanes that have returned no longer take part in their warp; a block's barrier wants all.
      if (fibers_[i].done && fiber.waits_for_warp) continue;
      const auto there =
          fiber.waits_for_warp ? fibers_[i].warp_arrivals : fibers_[i].block_arrivals;
      if (there < (fiber.waits_for_warp ? fiber.warp_arrivals : fiber.block_arrivals)) return true;
    }
    return false;
  }

  static void set_thread(unsigned index) {
    threadIdx.x = index % blockDim.x;
    threadIdx.y = index / blockDim.x % blockDim.y;
    threadIdx.z = index / (blockDim.x * blockDim.y);
  }

  const std::function<void()>* body_ = nullptr;
  std::vector<Fiber> fibers_;
  std::vector<std::unique_ptr<char[]>> stacks_;
  std::vector<std::uint64_t> exchange_;
  ucontext_t scheduler_{};
  std::exception_ptr error_;
  unsigned active_ = 0, alive_ = 0;
};

template <typename T>
T exchange(T value, unsigned source) {
  static_assert(sizeof(T) <= sizeof(std::uint64_t));
  auto& block = *Block::current();
  std::memcpy(&block.slot(block.active()), &value, sizeof(T));
  block.barrier(true);
  T other = value;
  const bool valid = source < block.threads() && !block.done(source);
  if (valid) std::memcpy(&other, &block.slot(source), sizeof(T));
  block.barrier(true);
  return other;
}

inline unsigned warp_start() { return Block::current()->active() / 32 * 32; }
inline unsigned lane() { return Block::current()->active() % 32; }

inline void* dynamic_shared_memory(std::size_t bytes = 0) {
  static std::vector<std::uint64_t> memory;
  if (bytes > 0) memory.assign((bytes + 7) / 8, 0xffffffffffffffffULL);
  return memory.data();
}

}  // namespace pydlbench::cuda::simt

inline void __syncthreads() { pydlbench::cuda::simt::Block::current()->barrier(false); }
inline void __syncwarp(unsigned = 0xffffffffu) {
  pydlbench::cuda::simt::Block::current()->barrier(true);
}
template <typename T>
T __shfl_sync(unsigned, T value, int source) {
  using namespace pydlbench::cuda::simt;
  return exchange(value, warp_start() + static_cast<unsigned>(source) % 32);
}
template <typename T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  using namespace pydlbench::cuda::simt;
  return exchange(value, warp_start() + (lane() ^ static_cast<unsigned>(mask)));
}
template <typename T>
T __shfl_down_sync(unsigned, T value, unsigned delta) {
  using namespace pydlbench::cuda::simt;
  const auto source = lane() + delta;
  return exchange(value, warp_start() + (source < 32 ? source : lane()));
}
template <typename T>
T atomicAdd(T* where, T value) {
  const T before = *where;
  *where = before + value;
  return before;
}
template <typename T>
T atomicMax(T* where, T value) {
  const T before = *where;
  if (before < value) *where = value;
  return before;
}
template <typename T>
T atomicCAS(T* where, T expected, T value) {
  const T before = *where;
  if (before == expected) *where = value;
  return before;
}
template <typename T>
T __ldg(const T* where) {
  return *where;
}
inline void __threadfence() {}
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }

namespace pydlbench::cuda {

template <typename... Parameters, typename... Arguments>
inline void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, std::size_t shared_bytes,
                   cudaStream_t, Arguments&&... arguments) {
  static simt::Block runner;
  if (block.x * block.y * block.z > 1024 || grid.y > 65535 || grid.z > 65535) {
    throw std::invalid_argument("a launch that CUDA refuses");
  }
  blockDim = block;
  gridDim = grid;
  const std::function<void()> body = [&] { kernel(static_cast<Parameters>(arguments)...); };
  for (blockIdx.z = 0; blockIdx.z < grid.z; ++blockIdx.z) {
    for (blockIdx.y = 0; blockIdx.y < grid.y; ++blockIdx.y) {
      for (blockIdx.x = 0; blockIdx.x < grid.x; ++blockIdx.x) {
        if (shared_bytes > 0) simt::dynamic_shared_memory(shared_bytes);
        runner.run(block.x * block.y * block.z, body);
      }
    }
  }
}

// Stored number formats: each converts to float and back, rounding to nearest, ties to even.

struct half_t {
  std::uint16_t bits;
};
struct bfloat16_t {
  std::uint16_t bits;
};
struct float8_t {
  std::uint8_t bits;
};

template <typename T>
inline float to_float(T value) {
  return static_cast<float>(value);
}
template <typename T>
inline T from_float(float value) {
  return static_cast<T>(value);
}

namespace simt {
// Round a float to `significand` bits with exponents from `least` (smaller ones are subnormal).
inline float rounded(float value, int significand, int least) {
  if (!std::isfinite(value) || value == 0.0f) return value;
  int exponent = 0;
  std::frexp(value, &exponent);
  const int spacing = (exponent > least ? exponent : least) - significand;
  return std::ldexp(
      static_cast<float>(std::nearbyint(std::ldexp(static_cast<double>(value), -spacing))),
      spacing);
}
inline float power(int exponent) { return std::ldexp(1.0f, exponent); }
// Packs a value that is exact in the format; exponents are biased by `bias`.
inline std::uint32_t packed(float value, int fraction_bits, int bias) {
  const std::uint32_t sign = std::signbit(value) ? 1u : 0u;
  const float size = std::fabs(value);
  if (size == 0.0f) return sign << 31;
  int exponent = std::ilogb(size);
  if (exponent < 1 - bias) {
    return sign << 31 | static_cast<std::uint32_t>(std::ldexp(size, bias - 1 + fraction_bits));
  }
  const auto fraction =
      static_cast<std::uint32_t>(std::ldexp(size / power(exponent) - 1.0f, fraction_bits));
  return sign << 31 | static_cast<std::uint32_t>(exponent + bias) << fraction_bits | fraction;
}
inline float unpacked(std::uint32_t bits, int fraction_bits, int bias) {
  const auto exponent = static_cast<int>(bits >> fraction_bits);
  const auto fraction = static_cast<float>(bits & ((1u << fraction_bits) - 1));
  if (exponent == 0) return std::ldexp(fraction, 1 - bias - fraction_bits);
  return std::ldexp(1.0f + std::ldexp(fraction, -fraction_bits), exponent - bias);
}
}  // namespace simt

template <>
inline float to_float(half_t value) {
  const float sign = value.bits & 0x8000 ? -1.0f : 1.0f;
  const std::uint32_t size = value.bits & 0x7fffu;
  if (size > 0x7c00u) return NAN;
  if (size == 0x7c00u) return sign * INFINITY;
  return sign * simt::unpacked(size, 10, 15);
}
template <>
inline half_t from_float<half_t>(float value) {
  if (std::isnan(value)) return {0x7fff};
  const float near = simt::rounded(value, 11, -13);
  const std::uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (std::fabs(near) > 65504.0f) return {static_cast<std::uint16_t>(sign | 0x7c00)};
  return {static_cast<std::uint16_t>(sign | (simt::packed(std::fabs(near), 10, 15) & 0x7fffu))};
}
template <>
inline float to_float(bfloat16_t value) {
  const std::uint32_t bits = static_cast<std::uint32_t>(value.bits) << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}
template <>
inline bfloat16_t from_float<bfloat16_t>(float value) {
  if (std::isnan(value)) return {0x7fff};
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  bits += 0x7fffu + (bits >> 16 & 1u);
  return {static_cast<std::uint16_t>(bits >> 16)};
}
template <>
inline float to_float(float8_t value) {
  const std::uint32_t size = value.bits & 0x7fu;
  if (size == 0x7fu) return NAN;
  return (value.bits & 0x80 ? -1.0f : 1.0f) * simt::unpacked(size, 3, 7);
}
template <>
inline float8_t from_float<float8_t>(float value) {
  if (std::isnan(value)) return {0x7f};
  float near = simt::rounded(value, 4, -5);
  if (std::fabs(near) > 448.0f) near = std::copysign(448.0f, near);
  const std::uint8_t sign = std::signbit(value) ? 0x80 : 0;
  return {static_cast<std::uint8_t>(sign | (simt::packed(std::fabs(near), 3, 7) & 0x7fu))};
}

}  // namespace pydlbench::cuda
