"""What the CPU that runs the tests can compute: some libraries have no right kernels without it."""

from pathlib import Path

_INFO = Path("/proc/cpuinfo")
_FLAGS = set(_INFO.read_text().split()) if _INFO.exists() else set()

HAS_BF16 = bool({"avx512_bf16", "amx_bf16"} & _FLAGS)
HAS_AVX512 = "avx512f" in _FLAGS
