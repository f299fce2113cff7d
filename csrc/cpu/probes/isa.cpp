#include "cpu/probes/isa.hpp"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace pydlbench::cpu {
namespace {

#if defined(__x86_64__)
bool bit(unsigned word, int index) { return ((word >> index) & 1U) != 0; }

// XCR0: the register states that the operating system saves. Only valid with OSXSAVE.
unsigned enabled_states() {
  unsigned low = 0;
  unsigned high = 0;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}
#endif

Isa detect() {
  Isa found;
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  found.sse2 = true;  // part of the architecture
  if (!__get_cpuid(1, &a, &b, &c, &d)) return found;
  found.hypervisor = bit(c, 31);
  const bool fma = bit(c, 12);
  const bool osxsave = bit(c, 27);
  const unsigned states = osxsave ? enabled_states() : 0;
  const bool ymm = (states & 0x6U) == 0x6U;            // SSE and AVX
  const bool zmm = ymm && (states & 0xe0U) == 0xe0U;   // opmask, upper halves, zmm16..31
  const bool tiles = (states & 0x60000U) == 0x60000U;  // XTILECFG and XTILEDATA
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
    const unsigned subleaves = a;
    found.avx2_fma = ymm && fma && bit(b, 5);
    found.avx512f = zmm && bit(b, 16);
    found.avx512_vector = found.avx512f && bit(b, 17) && bit(b, 30) && bit(b, 31);
    found.avx512_vnni = found.avx512f && bit(c, 11);
    found.avx512_fp16 = found.avx512f && bit(d, 23);
    found.amx_tile = tiles && bit(d, 24);
    found.amx_bf16 = found.amx_tile && bit(d, 22);
    found.amx_int8 = found.amx_tile && bit(d, 25);
    if (subleaves >= 1 && __get_cpuid_count(7, 1, &a, &b, &c, &d)) {
      found.avx_vnni = found.avx2_fma && bit(a, 4);
      found.avx512_bf16 = found.avx512f && bit(a, 5);
      found.amx_fp16 = found.amx_tile && bit(a, 21);
    }
  }
#endif
  return found;
}

}  // namespace

const Isa& isa() {
  static const Isa found = detect();
  return found;
}

std::vector<std::string> isa_names() {
  const Isa& has = isa();
  std::vector<std::string> names;
  const auto add = [&names](bool present, const char* name) {
    if (present) names.emplace_back(name);
  };
  add(has.sse2, "sse2");
  add(has.avx2_fma, "avx2");
  add(has.avx2_fma, "fma");
  add(has.avx512f, "avx512f");
  add(has.avx_vnni, "avx_vnni");
  add(has.avx512_vnni, "avx512_vnni");
  add(has.avx512_bf16, "avx512_bf16");
  add(has.avx512_fp16, "avx512_fp16");
  add(has.amx_tile, "amx_tile");
  add(has.amx_int8, "amx_int8");
  add(has.amx_bf16, "amx_bf16");
  add(has.amx_fp16, "amx_fp16");
  add(has.hypervisor, "hypervisor");
  return names;
}

bool request_amx() {
#if defined(__x86_64__) && defined(__linux__)
  static const bool granted = [] {
    constexpr long kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM
    constexpr long kTileData = 18;               // XFEATURE_XTILEDATA
    return isa().amx_tile && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  }();
  return granted;
#else
  return false;
#endif
}

}  // namespace pydlbench::cpu
