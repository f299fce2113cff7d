// Launchers of the probes' kernels, for code that the host compiler compiles.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace pydlbench::cuda {

// A loop of fused multiply-adds on registers, and their number.
enum class FmaKind { fp32, fp16 };  // fp16: pairs in one register, float16 accumulation

// One block per multiprocessor has eight warps for each of its four schedulers, and each warp has
// sixteen independent chains: much more than required to hide the latency of a multiply-add.
inline constexpr unsigned kFmaThreads = 1024;
// Pairs (x, y) of a thread, each rotated by every step: x += a y, then y -= a x. The values stay
// bounded, and all bits keep changing.
inline constexpr unsigned kFmaPairs = 8;
// Steps per iteration of the loop, so that its three instructions of overhead are half a percent.
inline constexpr unsigned kFmaSteps = 32;
// Number of seeds: kFmaSeeds / 2 angles a, then as many starting values. Threads choose different
// ones by their number.
inline constexpr unsigned kFmaSeeds = 64;

constexpr double fma_lanes(FmaKind kind) { return kind == FmaKind::fp16 ? 2 : 1; }
// Size of a register.
inline constexpr std::size_t kFmaRegisterBytes = 4;

// FLOP of one launch; a multiply-add is two.
constexpr double fma_flops(FmaKind kind, unsigned blocks, unsigned threads,
                           std::uint32_t iterations) {
  return 2.0 * fma_lanes(kind) * 2 * kFmaPairs * kFmaSteps * iterations * threads * blocks;
}

// `seeds` has kFmaSeeds registers; `results` gets one per thread: the sum of all its x and y, so
// that none is optimised away.
void launch_fma(FmaKind kind, unsigned blocks, unsigned threads, const void* seeds, void* results,
                std::uint32_t iterations, CUstream_st* stream);

// Kernels that only move 16 bytes at a time between device memory or the L2 cache and registers.
enum class StreamKind { read, write, copy };

inline constexpr unsigned kStreamThreads = 512;
inline constexpr std::size_t kStreamWord = 16;
// Size of a chunk: `in_flight` words per thread of a block, which are requested together if there
// are enough registers.
constexpr std::size_t stream_chunk(unsigned in_flight) {
  return kStreamThreads * kStreamWord * in_flight;
}
inline constexpr unsigned kMaxInFlight = 8;

// `in_flight` is 1, 2, 4 or 8; `blocks` work on chunks in turn.
struct StreamShape {
  unsigned in_flight, blocks;
};
// A number of blocks that means one for each item; also the size of the largest grid.
inline constexpr unsigned kBlockPerItem = 0x7fffffff;

// Moves `items` chunks, with repeated passes over the `chunks` chunks of the working set. An item
// reads a chunk of `source` (read, copy) and writes one of `destination` (write, copy). A read
// writes the wrapped sum of its 32-bit words to `sums`, one per thread.
struct StreamJob {
  const void* source;
  void* destination;
  std::uint32_t* sums;
  std::uint32_t chunks, items;
};

// Blocks that can be resident on a multiprocessor.
unsigned resident_stream_blocks(StreamKind kind, unsigned in_flight);
void launch_stream(StreamKind kind, StreamShape shape, const StreamJob& job, CUstream_st* stream);

// Launches an empty kernel.
void launch_empty(CUstream_st* stream);

}  // namespace pydlbench::cuda
