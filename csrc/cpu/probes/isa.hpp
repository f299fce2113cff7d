// The instruction sets of this CPU and operating system, by CPUID and XGETBV.
#pragma once

#include <string>
#include <vector>

namespace pydlbench::cpu {

struct Isa {
  bool sse2 = false;
  bool avx2_fma = false;       // AVX2 and FMA, 256-bit state enabled by the system
  bool avx512f = false;        // AVX-512 Foundation, 512-bit state enabled
  bool avx512_vector = false;  // Foundation with BW, DQ and VL, as all but Xeon Phi have
  bool avx_vnni = false;       // vpdpbusd on 256 bits
  bool avx512_vnni = false;    // vpdpbusd on 512 bits
  bool avx512_bf16 = false;    // vdpbf16ps
  bool avx512_fp16 = false;    // vfmadd..ph
  bool amx_tile = false;       // tiles, their state enabled (a process must still ask for it)
  bool amx_int8 = false;       // tdpbusd
  bool amx_bf16 = false;       // tdpbf16ps
  bool amx_fp16 = false;       // tdpfp16ps
  bool hypervisor = false;     // running as a guest
};

// The features of the calling CPU; detected once. All false on other architectures than x86-64.
const Isa& isa();

// Names of these features, if possible as in /proc/cpuinfo: "avx2", "avx512f", "amx_bf16".
std::vector<std::string> isa_names();

// Asks the kernel for the AMX tile state (Linux >= 5.16), once for the process; false if refused.
bool request_amx();

}  // namespace pydlbench::cpu
