"""The table of known cards: figures, names, slices."""

import itertools
import re
from collections import Counter

import pytest

from pydlbench.devices.gpu.cards import card_named, find_card, known_cards
from pydlbench.devices.gpu.facts import GpuFacts
from pydlbench.devices.gpu.peaks import accumulator, theoretical_peak
from pydlbench.words import GPU_LAYER_PRECISIONS

CARDS = known_cards()


def facts_of(card):
    return GpuFacts(
        name=f"NVIDIA {card.driver_names[0]}",
        capability=card.capability,
        multiprocessors=card.multiprocessors,
        memory_bytes=int(card.memory_gb * 1e9),
    )


def published():
    for card in CARDS:
        if not card.capability:  # peaks are derived for NVIDIA's cards only
            continue
        for name, value in card.tflops.items():
            yield card, name, accumulator(name), value
        for name, value in card.tflops_float16.items():
            yield card, name, "float16", value


def test_the_derived_peak_is_the_published_one():
    for card, precision, accumulate, tflops in published():
        peak = theoretical_peak(facts_of(card), precision, accumulate=accumulate)
        found = peak.flops_per_s / 1e12
        assert found == pytest.approx(tflops, rel=0.02), (card.name, precision, accumulate)
        assert not peak.assumed, (card.name, precision, accumulate)


def test_every_name_of_a_card_finds_it():
    prefixes = ("", "NVIDIA ", "Tesla ", "NVIDIA Tesla ")
    for card, prefix in itertools.product(CARDS, prefixes):
        for name in card.driver_names:
            facts = GpuFacts(
                name=prefix + name,
                capability=card.capability,
                memory_bytes=int(0.95 * card.memory_gb * 2**30),
            )
            assert find_card(facts) is card, facts.name


def test_figures_are_of_known_precisions_and_names_are_distinct():
    for card in CARDS:
        assert set(card.tflops) | set(card.tflops_float16) <= set(GPU_LAYER_PRECISIONS)
    assert max(Counter(card.name.casefold() for card in CARDS).values()) == 1


_DOCUMENT = re.compile(r"data ?sheet|whitepaper|specifications?\b|documentation")


def test_figures_are_of_a_document_or_unconfirmed():
    assert {card.name for card in CARDS if card.unconfirmed} == {"H800 SXM", "H20", "GB10"}
    for card in CARDS:
        assert card.unconfirmed or _DOCUMENT.search(card.source), card.name


def test_the_memory_decides_between_cards_of_one_name(gpu):
    for size, processors in ((10, 68), (12, 70)):
        card = find_card(
            gpu(name="NVIDIA GeForce RTX 3080", capability="8.6", memory_bytes=size * 10**9)
        )
        assert card.multiprocessors == processors


def test_a_slice_is_a_part_of_its_card(gpu):
    facts = gpu(name="NVIDIA H200 MIG 1g.18gb", multiprocessors=16)
    assert find_card(facts).name == "H200 SXM"
    peak = theoretical_peak(facts, "fp32")
    assert peak.flops_per_s == 16 * 256 * 1.98e9


@pytest.mark.parametrize("name", ["NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA H20", "A10 G"])
def test_similar_names_are_other_cards(gpu, name):
    assert find_card(gpu(name=name)) is None
    assert find_card(gpu(name=name, capability="8.9")) is None


@pytest.mark.parametrize(
    ("recorded", "name"),
    [
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA A100-PG509-200", "A100 SXM 40GB"),
        ("Tesla V100-SXM2-16GB", "V100 SXM2 16GB"),
        ("AMD Instinct MI300X VF", "MI300X"),
        ("NVIDIA H20", "H20"),
        ("NVIDIA GeForce RTX 5070 Ti", "RTX 5070 Ti"),
        ("NVIDIA GB200", "GB200"),
    ],
)
def test_a_name_from_a_profile_finds_its_card(recorded, name):
    assert card_named(recorded).name == name


def test_a_name_that_says_nothing_finds_no_card():
    assert card_named("AMD Radeon Graphics") is None
