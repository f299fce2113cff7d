"""Known cards with their published figures, as data: one TOML file per generation beside this one.

A file holds ``card`` tables. ``driver_names`` are the driver's names without ``NVIDIA``, ``Tesla``
and ``AMD``; ``memory`` has ``gb`` and ``gb_per_s`` (decimal units); ``clock_mhz`` is the clock that
the published figures are given at, ``tensor_clock_mhz`` that of the tensor figures where they imply
another one. ``tflops`` are dense figures with float32 accumulation (``fp16``: on CUDA cores,
float16); ``tflops_float16`` are the tensor cores' with float16 accumulation. What was not
published, or is not certain, is left out.
"""

import dataclasses
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydlbench.devices.gpu.facts import GpuFacts

_FOLDER: Final = Path(__file__).parent
_FILES: Final = (
    "amd",
    "kepler_to_pascal",
    "volta_turing",
    "ampere",
    "ada",
    "hopper_blackwell",
    "tpu",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KnownCard:
    """A product and what was published about it.

    Attributes:
        name: usual name of the card, which the command line takes, too.
        driver_names: names of the card in the driver, without ``NVIDIA`` and ``Tesla``.
        capability: compute capability; empty if peaks are not derived from the multiprocessors.
        multiprocessors: number of multiprocessors.
        memory_gb: capacity in GB as sold.
        memory_type: ``HBM3e``, ``GDDR6X`` and so on.
        bandwidth_gb_per_s: bandwidth of the memory, in GB/s.
        clock_hz: clock at which the figures of the CUDA cores are given, in Hz; 0 if not published.
        tensor_clock_hz: clock that the figures of the tensor cores imply, in Hz.
        tflops: TFLOP/s by precision, dense, float32 accumulation (``fp16``: float16).
        tflops_float16: TFLOP/s by precision on tensor cores with float16 accumulation.
        half_rate: whether the tensor cores accumulate in float32 at half their rate.
        power_w: power of the board in W; the share of one GPU if a board has several.
        year: year in which the card was launched.
        source: document that the figures are from.
        note: remark on the entry for the reader.
    """

    name: str
    driver_names: tuple[str, ...]
    capability: str
    multiprocessors: int
    memory_gb: float
    memory_type: str
    bandwidth_gb_per_s: float
    clock_hz: float
    tensor_clock_hz: float
    tflops: Mapping[str, float]
    tflops_float16: Mapping[str, float]
    half_rate: bool
    power_w: float | None
    year: int
    source: str
    note: str = ""

    @property
    def unconfirmed(self) -> bool:
        """Whether no document of the manufacturer's has a figure of the card."""
        return "unconfirmed" in self.note

    def to_dict(self) -> dict[str, Any]:
        """Return the card for JSON: clocks in Hz, everything else as published."""
        return dataclasses.asdict(self)


@functools.cache
def known_cards() -> tuple[KnownCard, ...]:
    """Return every known card, from the oldest generation to the newest."""
    import tomllib

    cards: list[KnownCard] = []
    for name in _FILES:
        with (_FOLDER / f"{name}.toml").open("rb") as file:
            cards += map(_read, tomllib.load(file)["card"])
    return tuple(cards)


def find_card(facts: GpuFacts) -> KnownCard | None:
    """Return the table's entry for a GPU, or None if it is not in the table.

    Where products of one name differ in their memory, the nearest size decides.
    """
    return _find(facts.name, facts.capability, facts.memory_bytes)


def card_named(name: str) -> KnownCard | None:
    """Return the known card with a name of the driver's, as profiles have it; None without one."""
    short = _without_maker(name)
    return next((card for card in known_cards() if short in card.driver_names), None)


def _without_maker(name: str) -> str:
    # A slice of a card bears the card's name and its own size.
    return re.sub(r"^(?:NVIDIA |Tesla |AMD |Intel )+| MIG .*$", "", name.strip())


@functools.cache
def _find(name: str, capability: str, memory_bytes: int) -> KnownCard | None:
    short = _without_maker(name)
    fitting = [
        card
        for card in known_cards()
        if card.capability == capability and short in card.driver_names
    ]
    return min(fitting, key=lambda card: abs(card.memory_gb * 1e9 - memory_bytes), default=None)


def _read(entry: dict[str, Any]) -> KnownCard:
    """Turn one table of a file into a card. A mistake in a file is a KeyError."""
    clock = entry.get("clock_mhz", 0)
    return KnownCard(
        name=entry["name"],
        driver_names=tuple(entry["driver_names"]),
        capability=entry["capability"],
        multiprocessors=entry["multiprocessors"],
        memory_gb=entry["memory"]["gb"],
        memory_type=entry["memory"]["type"],
        bandwidth_gb_per_s=entry["memory"]["gb_per_s"],
        clock_hz=clock * 1e6,
        tensor_clock_hz=entry.get("tensor_clock_mhz", clock) * 1e6,
        tflops=entry.get("tflops", {}),
        tflops_float16=entry.get("tflops_float16", {}),
        half_rate=entry.get("float32_accumulation", "full") == "half",
        power_w=entry.get("power_w"),
        year=entry["year"],
        source=entry["source"],
        note=entry.get("note", ""),
    )
