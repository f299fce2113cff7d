#include "bandwidth.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "stream_kernels.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace pydlbench::cpu {
namespace {

// Anonymous memory of one thread, unmapped at the end.
class Mapping {
 public:
  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
#if defined(__linux__)
    if (data_ != nullptr) munmap(data_, size_);
#endif
  }

  // Maps `size` bytes and writes ones to all: pages that were only read would share one zero page.
  double* fill(std::size_t size) {
#if defined(__linux__)
    void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
      throw OutOfMemory("bandwidth: cannot map " + std::to_string(size) + " bytes");
    }
    data_ = mapped;
    size_ = size;
#if defined(MADV_HUGEPAGE)
    madvise(data_, size_, MADV_HUGEPAGE);  // a refusal costs page-table walks, nothing else
#endif
    auto* values = static_cast<double*>(data_);
    std::fill(values, values + size / sizeof(double), 1.0);
    return values;
#else
    (void)size;
    throw Unsupported("bandwidth: threads can be pinned on Linux only");
#endif
  }

 private:
  void* data_ = nullptr;
  std::size_t size_ = 0;
};

// A thread's arrays and where its next chunk starts; on cache lines of its own.
struct alignas(128) Part {
  Mapping mapping;
  double* arrays[3] = {};
  std::size_t position = 0;
};

}  // namespace

ProbeResult bandwidth(const std::string& kind, std::size_t bytes, const std::vector<int>& cpus,
                      double seconds, bool streaming) {
  constexpr std::size_t kPage = 4096;
  // Arrays that start at the same offset of a page make a store look like it overwrites what the
  // next load reads; a few lines between them avoid that.
  constexpr std::size_t kStagger = 5 * 64;
  constexpr std::size_t kChunk = 256 << 10;  // of each array
  const StreamKernel kernel = choose_stream_kernel(kind, streaming);
  const auto count = static_cast<std::size_t>(kernel.arrays);
  const std::size_t threads = std::max<std::size_t>(1, cpus.size());
  std::size_t blocks = bytes / threads / count / kStreamBlock;
  PYDLBENCH_CHECK(blocks * kStreamBlock >= kPage,
                  "bandwidth: a working set of " + std::to_string(bytes) +
                      " bytes is less than a page for each array and thread");
  // Rounds are shorter than a pass over the working set: a pass goes chunk by chunk, and the next
  // round goes on where this one ended, so that nothing is met again before all else was.
  constexpr std::size_t kChunkBlocks = kChunk / kStreamBlock;
  const std::size_t chunks = std::max<std::size_t>(1, (blocks + kChunkBlocks - 1) / kChunkBlocks);
  const std::size_t chunk = blocks / chunks;
  blocks = chunk * chunks;
  const std::size_t step = blocks * kStreamBlock + kStagger;

  std::vector<Part> parts(cpus.size());
  const auto prepare = [&](int index) {
    Part& part = parts[static_cast<std::size_t>(index)];
    double* start = part.mapping.fill(step * count);
    // A pattern with fewer arrays is given its first one in place of those that it does not touch.
    for (std::size_t i = 0; i < 3; ++i) {
      part.arrays[i] = start + (i < count ? i * step / sizeof(double) : 0);
    }
  };
  const auto work = [&](int index, long scale) {
    Part& part = parts[static_cast<std::size_t>(index)];
    for (long i = 0; i < scale; ++i) {
      const std::size_t at = part.position * kStreamBlock / sizeof(double);
      kernel.sweep(part.arrays[0] + at, part.arrays[1] + at, part.arrays[2] + at, chunk);
      part.position += chunk;
      if (part.position == blocks) part.position = 0;
    }
  };
  const double moved = static_cast<double>(chunk * kStreamBlock * count * threads);
  ProbeResult found = run_rounds(cpus, seconds, moved, prepare, work);
  found.kernel = kernel.name;
  return found;
}

}  // namespace pydlbench::cpu
