"""GPUs as the driver would tell of them."""

from collections.abc import Callable

import pytest

from pydlbench.devices.gpu.cards import known_cards
from pydlbench.devices.gpu.facts import GpuFacts

Invent = Callable[..., GpuFacts]


@pytest.fixture
def gpu():
    """Invent facts: an H200 unless something else is said."""

    def invent(**changes: object) -> GpuFacts:
        known: dict[str, object] = {
            "index": 0,
            "name": "NVIDIA H200",
            "uuid": "GPU-0",
            "capability": "9.0",
            "multiprocessors": 132,
            "memory_bytes": 150_000_000_000,
            "l2_bytes": 60 << 20,
            "clock_hz": 1.98e9,
            "memory_clock_hz": 3.201e9,
            "memory_bus_bits": 6144,
            "ecc": True,
        }
        return GpuFacts(**{**known, **changes})  # type: ignore[arg-type]

    return invent


@pytest.fixture
def sold():
    """Return the facts that a known card would have, by its name."""

    def find(name: str, **changes: object) -> GpuFacts:
        (card,) = (card for card in known_cards() if card.name == name)
        known: dict[str, object] = {
            "name": f"NVIDIA {card.driver_names[0]}",
            "capability": card.capability,
            "multiprocessors": card.multiprocessors,
            "memory_bytes": int(card.memory_gb * 1e9),
        }
        return GpuFacts(**{**known, **changes})  # type: ignore[arg-type]

    return find
