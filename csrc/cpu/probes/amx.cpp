#include "amx.hpp"

#include <cstdint>

namespace pydlbench::cpu {

#if defined(__x86_64__) && (__GNUC__ >= 11 || (defined(__clang_major__) && __clang_major__ >= 12))
namespace {

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
#if __GNUC__ >= 13 || (defined(__clang_major__) && __clang_major__ >= 16)
#define PYDLBENCH_HAS_AMX_FP16_ASSEMBLER 1
PYDLBENCH_TILE_KERNEL(tile_fp16, 0x39b0, "tdpfp16ps")
#endif

}  // namespace

FmaKernel amx_bf16_kernel() { return {"tdpbf16ps tile", kInstructions * kFlops, tile_bf16}; }
#else
FmaKernel amx_bf16_kernel() { return {"tdpbf16ps tile", 0, nullptr}; }
#endif

#if defined(PYDLBENCH_HAS_AMX_FP16_ASSEMBLER)
FmaKernel amx_fp16_kernel() { return {"tdpfp16ps tile", kInstructions * kFlops, tile_fp16}; }
#else
FmaKernel amx_fp16_kernel() { return {"tdpfp16ps tile", 0, nullptr}; }
#endif

}  // namespace pydlbench::cpu
