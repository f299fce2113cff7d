// The FMA peak. Inner loops are in assembly: a compiler may merge or drop accumulators.
#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "cpu/counters.hpp"
#include "cpu/probes/isa.hpp"
#include "cpu/probes/probes.hpp"

namespace pydlbench::cpu {

namespace {

struct FmaKernel {
  const char* name;         // the instruction and its width, for the record
  double flops_per_loop;    // counted from the instructions: lanes x 2 x instructions per loop
  void (*run)(long loops);  // executes `loops` times
};

// Tile products of Intel AMX; `run` is null if the compiler did not support the instruction. The
// process must have the tile permission (request_amx) before `run` is called.
#if defined(__x86_64__) && (__GNUC__ >= 11 || (defined(__clang_major__) && __clang_major__ >= 12))
// 16 rows of 64 bytes in each of the 8 tiles; the layout is fixed by the architecture (palette 1).
struct alignas(64) TileConfig {
  std::uint8_t palette = 1;
  std::uint8_t start_row = 0;
  std::uint8_t reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

constexpr int kTileBytes = 16 * 64;
constexpr double kFlops = 2.0 * 16 * 16 * 32;  // C[16,16] += A[16,32] B[32,16]
constexpr int kInstructions = 20;              // per loop: five accumulators, four times

struct alignas(64) Tiles {
  std::uint16_t plus[kTileBytes / 2];
  std::uint16_t minus[kTileBytes / 2];
};

Tiles tiles_of(std::uint16_t value) {
  Tiles tiles{};
  for (int i = 0; i < kTileBytes / 2; ++i) {
    tiles.plus[i] = value;
    tiles.minus[i] = static_cast<std::uint16_t>(value ^ 0x8000U);
  }
  return tiles;
}

// tmm0..4 accumulate (latency 52 over throughput 16 needs four): +a*b, then -a*b, so that the
// values stay bounded. The three operands of an instruction must be different tiles: a is tmm5, b
// is tmm6 and -b is tmm7.
#define PYDLBENCH_TILE_KERNEL(function, value, instruction)                        \
  void function(long loops) {                                                      \
    const TileConfig config;                                                       \
    const Tiles tiles = tiles_of(value);                                           \
    const std::int64_t stride = 64;                                                \
    __asm__ volatile(                                                              \
        "ldtilecfg (%[config])\n"                                                  \
        ".irp acc,0,1,2,3,4\n"                                                     \
        "tilezero %%tmm\\acc\n"                                                    \
        ".endr\n"                                                                  \
        "tileloadd (%[plus],%[stride],1), %%tmm5\n"                                \
        "tileloadd (%[plus],%[stride],1), %%tmm6\n"                                \
        "tileloadd (%[minus],%[stride],1), %%tmm7\n"                               \
        ".p2align 6\n"                                                             \
        "1:\n"                                                                     \
        ".irp factor,6,7,6,7\n"                                                    \
        ".irp acc,0,1,2,3,4\n" instruction                                         \
        " %%tmm\\factor, %%tmm5, %%tmm\\acc\n"                                     \
        ".endr\n"                                                                  \
        ".endr\n"                                                                  \
        "dec %[loops]\n"                                                           \
        "jnz 1b\n"                                                                 \
        "tilerelease\n"                                                            \
        : [loops] "+r"(loops)                                                      \
        : [config] "r"(&config), [plus] "r"(tiles.plus), [minus] "r"(tiles.minus), \
          [stride] "r"(stride)                                                     \
        : "cc", "memory");                                                         \
  }

PYDLBENCH_TILE_KERNEL(tile_bf16, 0x3f36, "tdpbf16ps")
// Bytes 0x36 and 0x3f, and 0x36 and 0xbf: sums of integers wrap around at full speed.
PYDLBENCH_TILE_KERNEL(tile_int8, 0x3f36, "tdpbusd")
#if __GNUC__ >= 13 || (defined(__clang_major__) && __clang_major__ >= 16)
#define PYDLBENCH_HAS_AMX_FP16_ASSEMBLER 1
PYDLBENCH_TILE_KERNEL(tile_fp16, 0x39b0, "tdpfp16ps")
#endif

FmaKernel amx_bf16_kernel() { return {"tdpbf16ps tile", kInstructions * kFlops, tile_bf16}; }
// C[16,16] += A[16,64] B[64,16]
FmaKernel amx_int8_kernel() { return {"tdpbusd tile", kInstructions * kFlops * 2, tile_int8}; }
#else
FmaKernel amx_bf16_kernel() { return {"tdpbf16ps tile", 0, nullptr}; }
FmaKernel amx_int8_kernel() { return {"tdpbusd tile", 0, nullptr}; }
#endif

#if defined(PYDLBENCH_HAS_AMX_FP16_ASSEMBLER)
FmaKernel amx_fp16_kernel() { return {"tdpfp16ps tile", kInstructions * kFlops, tile_fp16}; }
#else
FmaKernel amx_fp16_kernel() { return {"tdpfp16ps tile", 0, nullptr}; }
#endif

#if defined(__x86_64__)
// Every accumulator gets +a*b, then -a*b: the values stay bounded and normal (denormals would be
// slow, zeros would save power), and their bits keep changing. 24 accumulators are twice the number
// that a latency of 6 cycles on two pipes needs; AVX2 has registers for 12, which is sufficient.
struct alignas(64) Operands {
  std::uint32_t plus[16];
  std::uint32_t minus[16];
  std::uint32_t factor[16];
};

constexpr Operands filled(std::uint32_t plus, std::uint32_t minus, std::uint32_t factor) {
  Operands operands{};
  for (int i = 0; i < 16; ++i) {
    operands.plus[i] = plus;
    operands.minus[i] = minus;
    operands.factor[i] = factor;
  }
  return operands;
}

// 0.7109375 and 1.3828125: many significand bits, but exact in all three formats.
constexpr Operands kFloat = filled(0x3f360000, 0xbf360000, 0x3fb10000);
constexpr Operands kBfloat = filled(0x3f363f36, 0xbf36bf36, 0x3fb13fb1);
[[maybe_unused]] constexpr Operands kHalf = filled(0x39b039b0, 0xb9b0b9b0, 0x3d883d88);
// Unsigned bytes of the first two times signed ones of the last.
constexpr Operands kBytes = filled(0x3f36b15d, 0xc0c94ea2, 0x3fb113c5);

// Only a build for AVX-512 can name zmm16..31 as clobbered, and needs to.
#if defined(__AVX512F__)
#define PYDLBENCH_HIGH_REGISTERS                                                              \
  , "xmm16", "xmm17", "xmm18", "xmm19", "xmm20", "xmm21", "xmm22", "xmm23", "xmm24", "xmm25", \
      "xmm26", "xmm27", "xmm28", "xmm29", "xmm30", "xmm31"
#else
#define PYDLBENCH_HIGH_REGISTERS
#endif
#define PYDLBENCH_LOW_REGISTERS                                                            \
  "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
      "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"

// One instruction of three registers on each of zmm0..23: 48 per loop.
#define PYDLBENCH_ZMM_KERNEL(function, operands, instruction)                                  \
  void function(long loops) {                                                                  \
    __asm__ volatile(                                                                          \
        "vmovups (%[data]), %%zmm28\n"                                                         \
        "vmovups 64(%[data]), %%zmm29\n"                                                       \
        "vmovups 128(%[data]), %%zmm30\n"                                                      \
        ".irp acc,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23\n"             \
        "vmovaps %%zmm30, %%zmm\\acc\n"                                                        \
        ".endr\n"                                                                              \
        ".p2align 6\n"                                                                         \
        "1:\n"                                                                                 \
        ".irp acc,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23\n" instruction \
        " %%zmm30, %%zmm28, %%zmm\\acc\n"                                                      \
        ".endr\n"                                                                              \
        ".irp acc,0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23\n" instruction \
        " %%zmm30, %%zmm29, %%zmm\\acc\n"                                                      \
        ".endr\n"                                                                              \
        "dec %[loops]\n"                                                                       \
        "jnz 1b\n"                                                                             \
        "vzeroupper\n"                                                                         \
        : [loops] "+r"(loops)                                                                  \
        : [data] "r"(&operands)                                                                \
        : "cc", "memory", PYDLBENCH_LOW_REGISTERS PYDLBENCH_HIGH_REGISTERS);                   \
  }

PYDLBENCH_ZMM_KERNEL(fp32_zmm, kFloat, "vfmadd231ps")
PYDLBENCH_ZMM_KERNEL(bf16_zmm, kBfloat, "vdpbf16ps")
PYDLBENCH_ZMM_KERNEL(int8_zmm, kBytes, "vpdpbusd")

// The assemblers of older compilers do not support the instruction.
#if __GNUC__ >= 12 || (defined(__clang_major__) && __clang_major__ >= 14)
#define PYDLBENCH_HAS_FP16_ASSEMBLER 1
PYDLBENCH_ZMM_KERNEL(fp16_zmm, kHalf, "vfmadd231ph")
#endif

// One instruction of three registers on each of ymm0..11: 48 per loop.
#define PYDLBENCH_YMM_KERNEL(function, operands, instruction) \
  void function(long loops) {                                 \
    __asm__ volatile(                                         \
        "vmovups (%[data]), %%ymm13\n"                        \
        "vmovups 64(%[data]), %%ymm14\n"                      \
        "vmovups 128(%[data]), %%ymm15\n"                     \
        ".irp acc,0,1,2,3,4,5,6,7,8,9,10,11\n"                \
        "vmovaps %%ymm15, %%ymm\\acc\n"                       \
        ".endr\n"                                             \
        ".p2align 6\n"                                        \
        "1:\n"                                                \
        ".irp factor,13,14,13,14\n"                           \
        ".irp acc,0,1,2,3,4,5,6,7,8,9,10,11\n" instruction    \
        " %%ymm15, %%ymm\\factor, %%ymm\\acc\n"               \
        ".endr\n"                                             \
        ".endr\n"                                             \
        "dec %[loops]\n"                                      \
        "jnz 1b\n"                                            \
        "vzeroupper\n"                                        \
        : [loops] "+r"(loops)                                 \
        : [data] "r"(&operands)                               \
        : "cc", "memory", PYDLBENCH_LOW_REGISTERS);           \
  }

PYDLBENCH_YMM_KERNEL(fp32_ymm, kFloat, "vfmadd231ps")
// The encoding of AVX-VNNI, which CPUs without AVX-512 have.
PYDLBENCH_YMM_KERNEL(int8_ymm, kBytes, "%{vex%} vpdpbusd")

// Without FMA: six chains of multiplications and six of additions in parallel. The factors are -1,
// so that the values stay bounded.
void fp32_xmm(long loops) {
  static constexpr Operands kOne = filled(0x3f360000, 0xbf360000, 0xbf800000);
  __asm__ volatile(
      "movups (%[data]), %%xmm13\n"
      "movups 64(%[data]), %%xmm14\n"
      "movups 128(%[data]), %%xmm15\n"
      ".irp acc,0,1,2,3,4,5,6,7,8,9,10,11\n"
      "movaps %%xmm13, %%xmm\\acc\n"
      ".endr\n"
      ".p2align 6\n"
      "1:\n"
      ".irp term,13,14,13,14\n"
      ".irp acc,0,1,2,3,4,5\n"
      "mulps %%xmm15, %%xmm\\acc\n"
      ".endr\n"
      ".irp acc,6,7,8,9,10,11\n"
      "addps %%xmm\\term, %%xmm\\acc\n"
      ".endr\n"
      ".endr\n"
      "dec %[loops]\n"
      "jnz 1b\n"
      : [loops] "+r"(loops)
      : [data] "r"(&kOne)
      : "cc", "memory", PYDLBENCH_LOW_REGISTERS);
}

FmaKernel choose_fp32() {
  if (isa().avx512f) return {"vfmadd231ps zmm", 48 * 16 * 2.0, fp32_zmm};
  if (isa().avx2_fma) return {"vfmadd231ps ymm", 48 * 8 * 2.0, fp32_ymm};
  return {"mulps and addps xmm", 48 * 4 * 1.0, fp32_xmm};
}

FmaKernel choose_bf16() {
  if (isa().amx_bf16 && request_amx() && amx_bf16_kernel().run) return amx_bf16_kernel();
  if (isa().avx512_bf16) return {"vdpbf16ps zmm", 48 * 32 * 2.0, bf16_zmm};
  throw Unsupported("bf16: this CPU has neither AVX512_BF16 nor AMX-BF16");
}

FmaKernel choose_fp16() {
  if (isa().amx_fp16 && request_amx() && amx_fp16_kernel().run) return amx_fp16_kernel();
#if defined(PYDLBENCH_HAS_FP16_ASSEMBLER)
  if (isa().avx512_fp16) return {"vfmadd231ph zmm", 48 * 32 * 2.0, fp16_zmm};
#else
  if (isa().avx512_fp16) throw Unsupported("fp16: built with a compiler older than AVX512-FP16");
#endif
  throw Unsupported("fp16: this CPU has neither AVX512_FP16 nor AMX-FP16");
}

FmaKernel choose_int8() {
  if (isa().amx_int8 && request_amx() && amx_int8_kernel().run) return amx_int8_kernel();
  if (isa().avx512_vnni) return {"vpdpbusd zmm", 48 * 64 * 2.0, int8_zmm};
  if (isa().avx_vnni) return {"vpdpbusd ymm", 48 * 32 * 2.0, int8_ymm};
  throw Unsupported("int8: this CPU has neither AVX512-VNNI nor AVX-VNNI nor AMX-INT8");
}

#endif

// The kernel with the highest rate for "fp32", "bf16", "fp16" or "int8" on this CPU. Throws
// Unsupported if the CPU, the operating system or the compiler does not support the instructions,
// and std::invalid_argument for another precision.
FmaKernel choose_fma_kernel(const std::string& precision) {
  const bool known =
      precision == "fp32" || precision == "bf16" || precision == "fp16" || precision == "int8";
  PYDLBENCH_CHECK(known, "precision " + precision + ": not one of fp32, bf16, fp16, int8");
#if defined(__x86_64__)
  if (precision == "fp32") return choose_fp32();
  if (precision == "int8") return choose_int8();
  return precision == "bf16" ? choose_bf16() : choose_fp16();
#else
  throw Unsupported("FMA peak: the probe is written for x86-64 only");
#endif
}

}  // namespace

ProbeResult fma_peak(const std::string& precision, const std::vector<int>& cpus, double seconds) {
  constexpr long kLoops = 1000;  // some 10 us, the unit that run_rounds scales
  const FmaKernel kernel = choose_fma_kernel(precision);
  const double flops = kernel.flops_per_loop * kLoops * static_cast<double>(cpus.size());
  ProbeResult found = run_rounds(
      cpus, seconds, flops, [](int) {}, [&kernel](int, long scale) { kernel.run(kLoops * scale); });
  found.kernel = kernel.name;
  return found;
}

namespace {

// Seconds of `loops` of the kernel on this thread: the median of five slices. An interrupt
// lengthens one of them; another process on the core lengthens all.
double slice_seconds(const FmaKernel& kernel, long loops) {
  std::array<double, 5> seconds{};
  for (auto& one : seconds) {
    const double start = now();
    kernel.run(loops);
    one = now() - start;
  }
  std::nth_element(seconds.begin(), seconds.begin() + 2, seconds.end());
  return seconds[2];
}

// Number of loops of some 60 us, from the shortest of some short runs. Under interference the
// result is smaller, which does not affect the rate of slices.
long slice_loops(const FmaKernel& kernel) {
  constexpr long kLoops = 100;
  constexpr double kSlice = 60e-6;
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 20; ++i) {
    const double start = now();
    kernel.run(kLoops);
    best = std::min(best, now() - start);
  }
  return std::max(1L, static_cast<long>(kLoops * kSlice / best));
}

}  // namespace

double fma_burst(const std::vector<int>& cpus) {
  static const FmaKernel kernel = choose_fma_kernel("fp32");
  static const long loops = slice_loops(kernel);
  double slowest = 0;
  int threads = 0;
  if (cpus.empty()) {
#ifdef _OPENMP
#pragma omp parallel reduction(max : slowest) reduction(+ : threads)
#endif
    {
      slowest = slice_seconds(kernel, loops);
      threads = 1;
    }
  } else {
    std::vector<double> seconds(cpus.size());
    run_once(cpus, [&](int index) {
      seconds[static_cast<size_t>(index)] = slice_seconds(kernel, loops);
    });
    slowest = *std::max_element(seconds.begin(), seconds.end());
    threads = static_cast<int>(cpus.size());
  }
  return kernel.flops_per_loop * static_cast<double>(loops) * threads / slowest;
}

}  // namespace pydlbench::cpu
