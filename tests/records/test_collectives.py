"""Pairs of ranks by rounds, and the bus bandwidth's factors."""

from __future__ import annotations

import itertools

import pytest

from pydlbench.records.collectives import bus_factor, partner_of


@pytest.mark.parametrize("ranks", range(2, 12))
def test_in_so_many_rounds_each_pair_meets_once(ranks):
    rounds = ranks - 1 + ranks % 2
    met = []
    for round_ in range(rounds):
        partners = [partner_of(rank, ranks, round_) for rank in range(ranks)]
        assert [partners[other] for other in partners] == list(range(ranks))
        met += [(rank, other) for rank, other in enumerate(partners) if rank < other]
        assert partners.count(-1) == 0
        assert sum(rank == other for rank, other in enumerate(partners)) == ranks % 2
    assert sorted(met) == list(itertools.combinations(range(ranks), 2))


def test_the_bus_counts_as_in_nccl_tests():
    assert bus_factor("all-reduce", 8) == 2 * 7 / 8
    assert bus_factor("all-gather", 4) == bus_factor("reduce-scatter", 4) == 3 / 4
    assert bus_factor("broadcast", 4) == bus_factor("point-to-point", 4) == 1
