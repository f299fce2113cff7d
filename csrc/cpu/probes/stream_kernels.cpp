#include "stream_kernels.hpp"

#include "core/error.hpp"
#include "isa.hpp"

namespace pydlbench::cpu {

#if defined(__x86_64__)
namespace {

constexpr double kScale = 0.5;  // keeps a triad of ones at 1.5: normal numbers, no denormals

// A sweep: `body` handles one block with the offset register; vectors 4 to 7 hold the scale.
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

// Register renaming makes one name enough for the vectors of a block.
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

}  // namespace

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

}  // namespace pydlbench::cpu
