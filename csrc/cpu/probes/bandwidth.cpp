#include <algorithm>
#include <cstddef>
#include <string>

#include "core/error.hpp"
#include "cpu/probes/isa.hpp"
#include "cpu/probes/probes.hpp"

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace pydlbench::cpu {

namespace {

inline constexpr std::size_t kStreamBlock = 256;  // bytes of each array per loop

// One sweep over `blocks` blocks of up to three arrays that are aligned to 64 bytes.
using StreamSweep = void (*)(double* a, const double* b, const double* c, std::size_t blocks);

struct StreamKernel {
  std::string name;  // "triad zmm, non-temporal stores"
  int arrays;        // arrays of a sweep: read and write 1, copy 2, triad 3
  StreamSweep sweep;
};

#if defined(__x86_64__)
constexpr double kScale = 0.5;  // keeps a triad of ones at 1.5: normal numbers, no denormals

// A sweep: `body` processes one block at the offset register; vectors 4 to 7 hold the scale.
#define PYDLBENCH_SWEEP(function, setup, body, finish)                             \
  void function(double* a, const double* b, const double* c, std::size_t blocks) { \
    std::size_t offset = 0;                                                        \
    __asm__ volatile(setup                                                         \
                     ".p2align 6\n"                                                \
                     "1:\n" body                                                   \
                     "add $256, %[offset]\n"                                       \
                     "dec %[blocks]\n"                                             \
                     "jnz 1b\n" finish                                             \
                     : [offset] "+r"(offset), [blocks] "+r"(blocks)                \
                     : [a] "r"(a), [b] "r"(b), [c] "r"(c), [scale] "r"(&kScale)    \
                     : "cc", "memory", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4");    \
  }

// Repeats an instruction on the vectors of a block: 4 of 64 bytes, 8 of 32 or 16 of 16.
#define PYDLBENCH_EACH_64(text) ".irp at,0,64,128,192\n" text ".endr\n"
#define PYDLBENCH_EACH_32(text) ".irp at,0,32,64,96,128,160,192,224\n" text ".endr\n"
#define PYDLBENCH_EACH_16(text) \
  ".irp at,0,16,32,48,64,80,96,112,128,144,160,176,192,208,224,240\n" text ".endr\n"

#define PYDLBENCH_AT(array) "\\at(%[" array "],%[offset])"

// Because of register renaming, all vectors of a block can use one register.
#define PYDLBENCH_VECTOR_SWEEPS(suffix, each, reg, nt, plain, broadcast)                         \
  PYDLBENCH_SWEEP(read_##suffix, "", each("vmovups " PYDLBENCH_AT("a") ", %%" reg "0\n"),        \
                  "vzeroupper\n")                                                                \
  PYDLBENCH_SWEEP(write_nt_##suffix, broadcast, each(nt " %%" reg "4, " PYDLBENCH_AT("a") "\n"), \
                  "sfence\nvzeroupper\n")                                                        \
  PYDLBENCH_SWEEP(write_##suffix, broadcast, each(plain " %%" reg "4, " PYDLBENCH_AT("a") "\n"), \
                  "vzeroupper\n")                                                                \
  PYDLBENCH_SWEEP(copy_nt_##suffix, "",                                                          \
                  each("vmovups " PYDLBENCH_AT("b") ", %%" reg "0\n" nt " %%" reg                \
                                                    "0, " PYDLBENCH_AT("a") "\n"),               \
                  "sfence\nvzeroupper\n")                                                        \
  PYDLBENCH_SWEEP(copy_##suffix, "",                                                             \
                  each("vmovups " PYDLBENCH_AT("b") ", %%" reg "0\n" plain " %%" reg             \
                                                    "0, " PYDLBENCH_AT("a") "\n"),               \
                  "vzeroupper\n")                                                                \
  PYDLBENCH_SWEEP(                                                                               \
      triad_nt_##suffix, broadcast,                                                              \
      each("vmovups " PYDLBENCH_AT("b") ", %%" reg "0\n"                                         \
                                        "vfmadd231pd " PYDLBENCH_AT(                             \
                                            "c") ", %%" reg "4, %%" reg "0\n" nt " %%" reg       \
                                                 "0, " PYDLBENCH_AT("a") "\n"),                  \
      "sfence\nvzeroupper\n")                                                                    \
  PYDLBENCH_SWEEP(                                                                               \
      triad_##suffix, broadcast,                                                                 \
      each("vmovups " PYDLBENCH_AT("b") ", %%" reg "0\n"                                         \
                                        "vfmadd231pd " PYDLBENCH_AT(                             \
                                            "c") ", %%" reg "4, %%" reg "0\n" plain " %%" reg    \
                                                 "0, " PYDLBENCH_AT("a") "\n"),                  \
      "vzeroupper\n")

PYDLBENCH_VECTOR_SWEEPS(zmm, PYDLBENCH_EACH_64, "zmm", "vmovntpd", "vmovapd",
                        "vbroadcastsd (%[scale]), %%zmm4\n")
PYDLBENCH_VECTOR_SWEEPS(ymm, PYDLBENCH_EACH_32, "ymm", "vmovntpd", "vmovapd",
                        "vbroadcastsd (%[scale]), %%ymm4\n")

#define PYDLBENCH_XMM_SCALE "movsd (%[scale]), %%xmm4\nunpcklpd %%xmm4, %%xmm4\n"
#define PYDLBENCH_XMM_TRIAD(store)          \
  PYDLBENCH_EACH_16("movapd " PYDLBENCH_AT( \
      "c") ", %%xmm0\n"                     \
           "mulpd %%xmm4, %%xmm0\n"         \
           "addpd " PYDLBENCH_AT("b") ", %%xmm0\n" store " %%xmm0, " PYDLBENCH_AT("a") "\n")
#define PYDLBENCH_XMM_COPY(store)                                  \
  PYDLBENCH_EACH_16("movapd " PYDLBENCH_AT("b") ", %%xmm0\n" store \
                                                " %%xmm0, " PYDLBENCH_AT("a") "\n")
#define PYDLBENCH_XMM_WRITE(store) PYDLBENCH_EACH_16(store " %%xmm4, " PYDLBENCH_AT("a") "\n")

PYDLBENCH_SWEEP(read_xmm, "", PYDLBENCH_EACH_16("movapd " PYDLBENCH_AT("a") ", %%xmm0\n"), "")
PYDLBENCH_SWEEP(write_nt_xmm, PYDLBENCH_XMM_SCALE, PYDLBENCH_XMM_WRITE("movntpd"), "sfence\n")
PYDLBENCH_SWEEP(write_xmm, PYDLBENCH_XMM_SCALE, PYDLBENCH_XMM_WRITE("movapd"), "")
PYDLBENCH_SWEEP(copy_nt_xmm, "", PYDLBENCH_XMM_COPY("movntpd"), "sfence\n")
PYDLBENCH_SWEEP(copy_xmm, "", PYDLBENCH_XMM_COPY("movapd"), "")
PYDLBENCH_SWEEP(triad_nt_xmm, PYDLBENCH_XMM_SCALE, PYDLBENCH_XMM_TRIAD("movntpd"), "sfence\n")
PYDLBENCH_SWEEP(triad_xmm, PYDLBENCH_XMM_SCALE, PYDLBENCH_XMM_TRIAD("movapd"), "")

struct Row {
  const char* kind;
  int arrays;
  bool stores;
  StreamSweep streaming[3];  // xmm, ymm, zmm
  StreamSweep caching[3];
};

constexpr Row kRows[] = {
    {"read", 1, false, {read_xmm, read_ymm, read_zmm}, {read_xmm, read_ymm, read_zmm}},
    {"write",
     1,
     true,
     {write_nt_xmm, write_nt_ymm, write_nt_zmm},
     {write_xmm, write_ymm, write_zmm}},
    {"copy", 2, true, {copy_nt_xmm, copy_nt_ymm, copy_nt_zmm}, {copy_xmm, copy_ymm, copy_zmm}},
    {"triad",
     3,
     true,
     {triad_nt_xmm, triad_nt_ymm, triad_nt_zmm},
     {triad_xmm, triad_ymm, triad_zmm}},
};

// The loop for `kind`: "read" (a), "write" (a = s), "copy" (a = b) or "triad" (a = b + s c), in the
// widest vectors of this CPU. `streaming` stores bypass the caches, which avoids reading the line
// before it is written. Throws std::invalid_argument for another kind and Unsupported on other
// architectures.
StreamKernel choose_stream_kernel(const std::string& kind, bool streaming) {
  const int width = isa().avx512f ? 2 : (isa().avx2_fma ? 1 : 0);
  const char* const names[] = {" xmm", " ymm", " zmm"};
  for (const Row& row : kRows) {
    if (kind != row.kind) continue;
    std::string name = kind + names[width];
    if (row.stores) name += streaming ? ", non-temporal stores" : ", plain stores";
    return {name, row.arrays, (streaming ? row.streaming : row.caching)[width]};
  }
  PYDLBENCH_CHECK(false, "bandwidth " + kind + ": not one of read, write, copy, triad");
}
#else
StreamKernel choose_stream_kernel(const std::string&, bool) {
  throw Unsupported("bandwidth: the probe is written for x86-64 only");
}
#endif

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

  // Maps `size` bytes and fills them with ones; pages that are only read share one zero page.
  double* fill(std::size_t size) {
#if defined(__linux__)
    void* mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) {
      throw OutOfMemory("bandwidth: cannot map " + std::to_string(size) + " bytes");
    }
    data_ = mapped;
    size_ = size;
#if defined(MADV_HUGEPAGE)
    madvise(data_, size_,
            MADV_HUGEPAGE);  // only advice: without huge pages there are more page-table walks
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

// A thread's arrays and the start of its next chunk, on separate cache lines.
struct alignas(128) Part {
  Mapping mapping;
  double* arrays[3] = {};
  std::size_t position = 0;
};

}  // namespace

ProbeResult bandwidth(const std::string& kind, std::size_t bytes, const std::vector<int>& cpus,
                      double seconds, bool streaming) {
  constexpr std::size_t kPage = 4096;
  // If arrays start at the same offset of a page, a store seems to alias the next load (4K
  // aliasing); a few cache lines between them avoid that.
  constexpr std::size_t kStagger = 5 * 64;
  constexpr std::size_t kChunk = 256 << 10;  // of each array
  const StreamKernel kernel = choose_stream_kernel(kind, streaming);
  const auto count = static_cast<std::size_t>(kernel.arrays);
  const std::size_t threads = std::max<std::size_t>(1, cpus.size());
  std::size_t blocks = bytes / threads / count / kStreamBlock;
  PYDLBENCH_CHECK(blocks * kStreamBlock >= kPage,
                  "bandwidth: a working set of " + std::to_string(bytes) +
                      " bytes is less than a page for each array and thread");
  // Rounds are shorter than a pass over the working set: each round continues with the chunk after
  // the last one, so that all other data is accessed before a chunk is accessed again.
  constexpr std::size_t kChunkBlocks = kChunk / kStreamBlock;
  const std::size_t chunks = std::max<std::size_t>(1, (blocks + kChunkBlocks - 1) / kChunkBlocks);
  const std::size_t chunk = blocks / chunks;
  blocks = chunk * chunks;
  const std::size_t step = blocks * kStreamBlock + kStagger;

  std::vector<Part> parts(cpus.size());
  const auto prepare = [&](int index) {
    Part& part = parts[static_cast<std::size_t>(index)];
    double* start = part.mapping.fill(step * count);
    // Unused arrays of a pattern are set to the first one.
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
