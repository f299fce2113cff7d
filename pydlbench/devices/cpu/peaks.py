"""Theoretical compute peaks of CPUs: FMA pipes x width x clock."""

import dataclasses
import re
from collections.abc import Collection

from pydlbench.devices.cpu.facts import CpuFacts
from pydlbench.devices.findings import FlopRate, TheoreticalPeak
from pydlbench.units import format_hz
from pydlbench.words import CPU_PEAKS

# -----------------------------------------------------------------------------
# FLOP per cycle and core, from the number and the width of each core's FMA pipes.
#
# Sources: the vendors' optimisation guides (AMD 56305 "Zen 2", 56665 "Zen 3", 57647 "Zen 4", 58455
# "Zen 5"; Intel 248966), uops.info for throughputs, WikiChip for model numbers. The table holds
# what the pipes can do; it is never fitted to measurements, which are checked against it.


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Microarchitecture:
    """A core design.

    Attributes:
        name: name of the design.
        pipes: number of FMA instructions of width ``bits`` that start per cycle.
        bits: width of a pipe in bits.
        note: remark on the entry.
    """

    name: str
    pipes: int
    bits: int
    note: str = ""


_Entry = tuple[Collection[int], Microarchitecture]

_ZEN = Microarchitecture(name="Zen / Zen+", pipes=2, bits=128)


def _avx2(name: str, note: str = "") -> Microarchitecture:
    return Microarchitecture(name=name, pipes=2, bits=256, note=note)


def _avx512(name: str) -> Microarchitecture:
    return Microarchitecture(name=name, pipes=2, bits=512)


_SPLIT = "512-bit instructions take a pipe for two cycles"
_FUSED = "ports 0 and 1 join to one 512-bit pipe"
_HYBRID = "performance cores; efficiency cores do half"

# Display family -> entries; the first whose models contain the CPU's counts.
_AMD: dict[int, tuple[_Entry, ...]] = {
    0x17: (
        (range(0x30), _ZEN),
        (range(0x30, 0x100), _avx2("Zen 2")),
    ),
    0x19: (
        (
            (*range(0x10, 0x20), *range(0x60, 0xB0)),
            _avx2("Zen 4", _SPLIT),
        ),
        (range(0x60), _avx2("Zen 3")),
    ),
    0x1A: (
        (
            (*range(0x20, 0x30), *range(0x60, 0x70)),
            _avx2("Zen 5 (mobile)", _SPLIT),
        ),
        (
            (*range(0x20), *range(0x40, 0x50), *range(0x70, 0x80)),
            _avx512("Zen 5"),
        ),
    ),
}
_INTEL: dict[int, tuple[_Entry, ...]] = {
    6: (
        ((0x3C, 0x3F, 0x45, 0x46), _avx2("Haswell")),
        ((0x3D, 0x47, 0x4F, 0x56), _avx2("Broadwell")),
        (
            (0x4E, 0x5E, 0x8E, 0x9E, 0xA5, 0xA6),
            _avx2("Skylake (client) to Comet Lake"),
        ),
        ((0x55,), _avx512("Skylake-SP to Cooper Lake")),
        (
            (0x7D, 0x7E, 0x8C, 0x8D, 0xA7),
            Microarchitecture(
                name="Ice Lake to Rocket Lake (client)", pipes=1, bits=512, note=_FUSED
            ),
        ),
        ((0x6A, 0x6C), _avx512("Ice Lake-SP")),
        ((0x8F, 0xCF), _avx512("Sapphire / Emerald Rapids")),
        ((0xAD, 0xAE), _avx512("Granite Rapids")),
        (
            (0x97, 0x9A, 0xB7, 0xBA, 0xBF, 0xAA, 0xAC),
            _avx2("Alder Lake to Meteor Lake", _HYBRID),
        ),
        (
            (0xB5, 0xC5, 0xC6, 0xBD),
            _avx2("Arrow / Lunar Lake", "efficiency cores: 4 x 128-bit, as much"),
        ),
        ((0xAF, 0xBE), Microarchitecture(name="Gracemont / Crestmont", pipes=2, bits=128)),
    ),
}
_TABLE: dict[str, dict[int, tuple[_Entry, ...]]] = {
    "AuthenticAMD": _AMD,
    "HygonGenuine": {0x18: ((range(0x100), _ZEN),)},
    "GenuineIntel": _INTEL,
}

# Skylake and Cascade Lake servers with one 512-bit pipe according to Intel's product pages: ports 0
# and 1 joined, without the second unit at port 5.
_ONE_PIPE = re.compile(r"\b(Bronze|Silver|Gold 5(?![12]22\b)[0-9]{3}|D-2[0-9]{3})")


# Cores of clients, and instruction sets that none of them has. A hypervisor that reports both hides
# the real model number.
_CLIENTS = ("Skylake (client) to Comet Lake", "Ice Lake to Rocket Lake (client)")
_SERVER_SETS = {"amx_tile", "amx_bf16", "amx_int8", "avx512_bf16", "avx512_fp16"}
# Instructions on vectors, by precision.
_VECTOR_SETS = {
    "bf16": ("avx512_bf16",),
    "fp16": ("avx512_fp16",),
    "int8": ("avx512_vnni", "avx_vnni"),
}


def find_microarchitecture(facts: CpuFacts) -> Microarchitecture | None:
    """Return the table's entry for this CPU, or None if it is not in the table."""
    families = _TABLE.get(facts.vendor or "", {})
    for models, entry in families.get(facts.family or 0, ()):
        if facts.model not in models:
            continue
        if entry.name in _CLIENTS and set(facts.isa) & _SERVER_SETS:
            note = f"the model number {facts.model} is that of {entry.name}, which has no AMX, "
            note += "AVX512-BF16 or AVX512-FP16: the instruction sets count"
            return dataclasses.replace(_avx512("server core, by its instruction sets"), note=note)
        one_pipe = facts.model == 0x55 and facts.vendor == "GenuineIntel" and facts.brand
        if one_pipe and _ONE_PIPE.search(facts.brand or ""):
            return dataclasses.replace(entry, pipes=1, note=_FUSED)
        return entry
    return None


def flop_rate(facts: CpuFacts, precision: str) -> FlopRate | None:
    """Return the FLOP per cycle and core for ``precision``, or None if the CPU cannot do it.

    Args:
        facts: facts of the CPU.
        precision: ``fp32``, ``bf16``, ``fp16`` or ``int8``, whose operations on integers count as
            FLOPs; the result is None for any other.
    """
    isa = set(facts.isa)
    if "sse2" not in isa or precision not in CPU_PEAKS:
        return None
    if precision != "fp32":
        tiles = f"amx_{precision}"
        if tiles in isa and "amx_tile" in isa:
            depth = 64 if precision == "int8" else 32
            return FlopRate(
                flop_per_clock=32 * depth,
                derivation=f"AMX: one tile product of 16x16x{depth} in 16 cycles, 2 FLOP each",
            )
        if not isa & set(_VECTOR_SETS[precision]):
            return None
    known = find_microarchitecture(facts)
    core = known or Microarchitecture(
        name="not in the table",
        pipes=2,
        bits=_widest(isa),
        note="two pipes of the widest instructions assumed",
    )
    # A hypervisor may hide the wider instructions of a known core. Narrower ones use two pipes on
    # every such core (a single 512-bit pipe is two joined 256-bit pipes), each partly idle.
    widest = _widest(isa)
    if precision == "int8" and "avx512_vnni" not in isa:
        widest = min(widest, 256)
    bits = min(core.bits, widest)
    pipes = core.pipes if bits == core.bits else 2
    lanes = bits // 32
    per_lane = {"fp32": 2, "int8": 8}.get(precision, 4)
    flops = pipes * lanes * per_lane
    what = {
        "fp32": "2 FLOP (FMA)" if "fma" in isa else "2 FLOP (separate multiplication and addition)",
        "bf16": "2 products of pairs, 4 FLOP (vdpbf16ps)",
        "fp16": "2 halves x 2 FLOP (FMA)",
        "int8": "4 products of bytes, 8 operations (vpdpbusd)",
    }[precision]
    text = f"{core.name}: {pipes} x {bits}-bit pipes, {lanes} lanes of 32 bits x {what}"
    if core.note and pipes == core.pipes:
        text += f"; {core.note}"
    return FlopRate(flop_per_clock=flops, derivation=text, assumed=known is None)


def _widest(isa: Collection[str]) -> int:
    return 512 if "avx512f" in isa else 256 if "avx2" in isa and "fma" in isa else 128


# -----------------------------------------------------------------------------
# Theoretical compute peaks of CPUs.


def theoretical_peak(
    facts: CpuFacts, precision: str, cores: int, hz: float
) -> TheoreticalPeak | None:
    """Return the peak of ``cores`` cores at a clock, or None if the CPU lacks the precision.

    Args:
        facts: facts of the CPU.
        precision: ``fp32``, ``bf16``, ``fp16`` or ``int8``.
        cores: number of physical cores; second threads of a core add nothing.
        hz: core clock in Hz.
    """
    rate = flop_rate(facts, precision)
    if rate is None:
        return None
    count = f"{cores} core{'s' if cores != 1 else ''}"
    return TheoreticalPeak(
        flops_per_s=rate.flop_per_clock * cores * hz,
        flop_per_clock=rate.flop_per_clock,
        units=cores,
        hz=hz,
        derivation=f"{rate.flop_per_clock} FLOP/cycle x {count} x {format_hz(hz)} "
        f"({rate.derivation})",
        assumed=rate.assumed,
    )
