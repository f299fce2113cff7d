"""A machine out of text files: what a test writes is all that the readers find."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from pydlbench.devices.cpu.facts import Cache, CpuFacts, LogicalCpu

Write = Callable[[Mapping[str, str]], Path]


@pytest.fixture
def tree(tmp_path):
    """Write files below a root and return it."""

    def write(files: Mapping[str, str]) -> Path:
        for name, text in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        return tmp_path

    return write


@pytest.fixture
def machine():
    """Invent facts: a Zen 4 with so many cores, each with so many threads, numbered Linux's way."""

    def invent(cores: int = 4, threads: int = 1, **changes: object) -> CpuFacts:
        siblings = {
            core + turn * cores: tuple(core + other * cores for other in range(threads))
            for turn in range(threads)
            for core in range(cores)
        }
        everyone = tuple(sorted(siblings))
        known: dict[str, object] = {
            "vendor": "AuthenticAMD",
            "family": 25,
            "model": 17,
            "brand": "AMD EPYC 9004",
            "machine": "x86_64",
            "isa": ("sse2", "fma", "avx2", "avx512f", "avx512_bf16"),
            "cpus": tuple(LogicalCpu(index=i, socket=0, siblings=siblings[i]) for i in everyone),
            "caches": (
                *(
                    Cache(level=2, type="Unified", size_bytes=1 << 20, shared_cpus=siblings[core])
                    for core in range(cores)
                ),
                Cache(level=3, type="Unified", size_bytes=32 << 20, shared_cpus=everyone),
            ),
            "affinity": everyone,
            "nominal_hz": 2.6e9,
            "nominal_source": "invented",
            "virtualised": False,
        }
        return CpuFacts(**{**known, **changes})  # type: ignore[arg-type]

    return invent
