// A loop of nothing but fused multiply-adds on registers, and how many it is.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace pydlbench::cuda {

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

}  // namespace pydlbench::cuda
