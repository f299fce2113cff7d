// CUDA's execution model on one CPU thread, for tests: blocks one after another, the threads of a
// block as fibers that run until a barrier. Deterministic, and as strict as the GPU may be: a
// barrier that a part of the block never reaches is an error here, not a hang.
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

}  // namespace pydlbench::cuda
