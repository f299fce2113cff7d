"""The table of known cards, with what a price makes of their figures."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from pydlbench.devices.gpu import GpuFacts, theoretical_peak
from pydlbench.devices.gpu.rates import accumulator
from pydlbench.report.plain_table import plain_table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.devices.gpu import KnownCard

__all__ = ["PricedCard", "price_cards", "render_cards"]

# In this order they stand in the table.
_TITLES = {
    "fp32": "FP32",
    "fp16": "FP16",
    "tf32": "TF32 tc",
    "fp16-tc": "FP16 tc",
    "bf16-tc": "BF16 tc",
    "fp8-tc": "FP8 tc",
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PricedCard:
    """A known card with what was given about it on the command line.

    Attributes:
        card: the known card.
        tflops: TFLOP/s by precision: as published, or else derived.
        derived: the precisions whose figure was not published.
        price_usd: what it costs.
        images_per_s: its throughput in some model.
    """

    card: KnownCard
    tflops: Mapping[str, float]
    derived: frozenset[str]
    price_usd: float | None = None
    images_per_s: float | None = None

    def tflops_per_kusd(self, precision: str) -> float | None:
        """Return TFLOP/s per 1000 USD, or None without a price or a figure."""
        value = self.tflops.get(precision)
        return None if value is None or self.price_usd is None else 1e3 * value / self.price_usd

    @property
    def images_per_s_per_usd(self) -> float | None:
        """Images per second and dollar, or None without a price or a throughput."""
        if self.images_per_s is None or self.price_usd is None:
            return None
        return self.images_per_s / self.price_usd

    def to_dict(self) -> dict[str, Any]:
        """Return the card for JSON: published figures, derived ones, and what a price makes."""
        return {
            **self.card.to_dict(),
            "tflops_derived": {name: self.tflops[name] for name in sorted(self.derived)},
            "price_usd": self.price_usd,
            "images_per_s": self.images_per_s,
            "tflops_per_kusd": {
                name: value for name in _TITLES if (value := self.tflops_per_kusd(name))
            },
            "images_per_s_per_usd": self.images_per_s_per_usd,
        }


def price_cards(
    cards: Sequence[KnownCard], prices: Mapping[str, float], images_per_s: Mapping[str, float]
) -> tuple[PricedCard, ...]:
    """Return the cards with all that can be said about them.

    Args:
        cards: known cards.
        prices: USD by card name.
        images_per_s: throughput by card name.
    """
    found = []
    for card in cards:
        derived = _derived(card)
        found.append(
            PricedCard(
                card=card,
                tflops={**derived, **card.tflops},
                derived=frozenset(derived),
                price_usd=prices.get(card.name),
                images_per_s=images_per_s.get(card.name),
            )
        )
    return tuple(found)


def render_cards(cards: Sequence[PricedCard]) -> str:
    """Return the table and its legend; columns of prices only where there are any."""
    titles = ["card", "year", "cc", "SMs", "memory", "GB/s"]
    titles += [*_TITLES.values(), "W"]
    priced = any(card.price_usd is not None for card in cards)
    imaged = any(card.images_per_s is not None for card in cards)
    if priced:
        titles += ["USD", "FP32/kUSD", "FP16 tc/kUSD"]
    if imaged:
        titles += ["images/s", "images/s/USD"]
    rows = []
    for item in cards:
        row = _row(item)
        if priced:
            row += [
                _number(item.price_usd),
                _number(item.tflops_per_kusd("fp32")),
                _number(item.tflops_per_kusd("fp16-tc")),
            ]
        if imaged:
            row += [_number(item.images_per_s), _number(item.images_per_s_per_usd)]
        rows.append(row)
    right = [title not in ("card", "memory") for title in titles]
    legend = (
        "TFLOP/s as published: dense, float32 accumulation (FP16 on CUDA cores: float16), tc:\n"
        "tensor cores; *: not published, SMs x FLOP per clock x clock; -: the card lacks it."
    )
    if priced:
        legend += "\n/kUSD: TFLOP/s per 1000 USD at the prices given with --price."
    if imaged:
        legend += "\nimages/s: as given with --throughput; images/s/USD: that over the price."
    return f"{legend}\n\n{plain_table(titles, rows, right)}"


def _row(item: PricedCard) -> list[str]:
    card = item.card
    figures = [
        f"{_number(item.tflops[name], 3)}*"
        if name in item.derived
        else _number(item.tflops.get(name))
        for name in _TITLES
    ]
    memory = f"{card.memory_gb:g} GB {card.memory_type}"
    place = [card.name, str(card.year), card.capability, str(card.multiprocessors), memory]
    return [*place, f"{card.bandwidth_gb_per_s:g}", *figures, _number(card.power_w)]


def _derived(card: KnownCard) -> dict[str, float]:
    """The figures that were not published, in TFLOP/s, of modes that the card has."""
    facts = GpuFacts(
        name=card.driver_names[0],
        capability=card.capability,
        multiprocessors=card.multiprocessors,
        memory_bytes=int(card.memory_gb * 1e9),
    )
    found = {}
    for name in _TITLES:
        peak = theoretical_peak(facts, name, accumulate=accumulator(name))
        if peak is not None and name not in card.tflops:
            found[name] = peak.flops_per_s / 1e12
    return found


def _number(value: float | None, digits: int = 4) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 1000 else f"{value:.{digits}g}"
