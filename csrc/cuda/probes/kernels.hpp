// The probes' kernels as functions, for callers that the host compiler compiles.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace pydlbench::cuda {

// A loop of nothing but fused multiply-adds on registers, and how many it is.
enum class FmaKind { fp32, fp16 };  // fp16: pairs in one register, float16 accumulation

// One block per multiprocessor gives each of its four schedulers eight warps, and each warp sixteen
// independent chains: many times what hides the latency of a multiply-add, and no block is ever
// left to run alone.
inline constexpr unsigned kFmaThreads = 1024;
// Pairs (x, y) of a thread, each turned a little further by every step: x += a y, then y -= a x.
// That stays bounded for ever and changes all bits all the time.
inline constexpr unsigned kFmaPairs = 8;
// Steps per turn of the loop: its three instructions of overhead are half a percent of it.
inline constexpr unsigned kFmaSteps = 32;
// Seeds: kFmaSeeds / 2 angles a, then as many starting values. A thread takes those that its number
// points at, so that no operand is the same for all threads.
inline constexpr unsigned kFmaSeeds = 64;

constexpr double fma_lanes(FmaKind kind) { return kind == FmaKind::fp16 ? 2 : 1; }
// A register of the kind.
inline constexpr std::size_t kFmaRegisterBytes = 4;

// FLOP of one launch; a multiply-add is two.
constexpr double fma_flops(FmaKind kind, unsigned blocks, unsigned threads,
                           std::uint32_t iterations) {
  return 2.0 * fma_lanes(kind) * 2 * kFmaPairs * kFmaSteps * iterations * threads * blocks;
}

// `seeds` holds kFmaSeeds registers of the kind, `results` gets one per thread: the sum of all its
// x and y, so that none of them can be left out.
void launch_fma(FmaKind kind, unsigned blocks, unsigned threads, const void* seeds, void* results,
                std::uint32_t iterations, CUstream_st* stream);

// Kernels that do nothing but move 16 bytes at a time between device memory or the L2 cache and
// registers.
enum class StreamKind { read, write, copy };

inline constexpr unsigned kStreamThreads = 512;
inline constexpr std::size_t kStreamWord = 16;
// What a block moves before it goes to the next chunk: every thread `in_flight` words, which it
// asks for together as far as its registers go.
constexpr std::size_t stream_chunk(unsigned in_flight) {
  return kStreamThreads * kStreamWord * in_flight;
}
inline constexpr unsigned kMostInFlight = 8;

// `in_flight` is 1, 2, 4 or 8; `blocks` work on chunks in turn.
struct StreamShape {
  unsigned in_flight, blocks;
};
// In place of a number of blocks: one for each item. The largest grid has so many, too.
inline constexpr unsigned kBlockPerItem = 0x7fffffff;

// Moves `items` chunks; the working set has `chunks` of them and is gone through again and again.
// Each item is a chunk of `source` read (read, copy) and one of `destination` written (write,
// copy). A read leaves the wrapped sum of its 32-bit words in `sums`, one of each thread.
struct StreamJob {
  const void* source;
  void* destination;
  std::uint32_t* sums;
  std::uint32_t chunks, items;
};

// Blocks that one multiprocessor holds at a time.
unsigned resident_stream_blocks(StreamKind kind, unsigned in_flight);
void launch_stream(StreamKind kind, StreamShape shape, const StreamJob& job, CUstream_st* stream);

// A kernel that does nothing.
void launch_empty(CUstream_st* stream);

}  // namespace pydlbench::cuda
