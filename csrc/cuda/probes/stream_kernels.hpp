// Kernels that do nothing but move 16 bytes at a time between device memory or the L2 cache and
// registers.
#pragma once

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace pydlbench::cuda {

enum class StreamKind { read, write, copy };

inline constexpr unsigned kStreamThreads = 256;
inline constexpr std::size_t kStreamWord = 16;
// What a block moves before it goes to the next chunk: every thread `in_flight` words, which it
// asks for together as far as its registers go.
constexpr std::size_t stream_chunk(unsigned in_flight) {
  return kStreamThreads * kStreamWord * in_flight;
}
inline constexpr unsigned kMostInFlight = 8;

// `in_flight` is 2, 4 or 8; `blocks` work on chunks in turn.
struct StreamShape {
  unsigned in_flight, blocks;
};

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

}  // namespace pydlbench::cuda
