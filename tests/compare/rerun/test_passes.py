"""Passes over invented kernels on a drifting machine."""

import math
import statistics

import pytest

from pydlbench.compare.interleaved import compare_interleaved, policy
from pydlbench.compare.rows import Matching, Pair, Side, SideRow


def judged(measured):
    row = SideRow(**{**dict.fromkeys(SideRow._fields), "layer": "x", "status": "ok", "median": 1.0})
    pairs = [Pair(row, row) for _ in measured]
    side = Side(name="a", rows=[row])
    matching = Matching(pairs=pairs, only_a=[], only_b=[], untimed=[])
    return compare_interleaved(side, side, matching, measured)


def test_three_percent_are_found_on_a_machine_that_drifts_by_more(machine):
    found = 0
    for seed in range(20):
        here = machine(seconds={"torch": 1.03e-3}, seed=seed)
        found += judged(here.measure([("native", "torch")])).rows[0].verdict == "SLOWER"
    assert found >= 18


def test_one_slow_kernel_among_eleven_is_found_and_no_other(machine):
    pairs = [("native", "native")] * 10 + [("native", "torch")]
    for seed in range(3):
        here = machine(seconds={"torch": 1.04e-3}, seed=seed)
        verdicts = [row.verdict for row in judged(here.measure(pairs)).rows]
        assert verdicts.pop() == "SLOWER"
        assert not {"SLOWER", "FASTER"} & set(verdicts)


def test_two_preparations_of_one_kernel_are_not_called_different(machine):
    false = 0
    for seed in range(20):
        # Preparations differ by 3 % here: as much as the slowdown that was found above.
        here = machine(preparation_sd=0.03, seed=seed)
        verdicts = {row.verdict for row in judged(here.measure([("native", "native")] * 5)).rows}
        false += bool(verdicts & {"SLOWER", "FASTER"})
    assert false <= 1


def test_a_quiet_machine_tells_that_nothing_differs(machine):
    here = machine(preparation_sd=0.001, noise_sd=0.001)
    found = judged(here.measure([("native", "native")] * 3))
    assert {row.verdict for row in found.rows} == {"SAME"}
    assert found.geomean.verdict == "SAME"
    assert found.passes == 8


def test_cycles_are_told_where_both_clocks_are_read(machine):
    here = machine(
        seconds={"torch": 1.25e-3},
        clocks={"native": 4e9, "torch": 3.2e9},
        preparation_sd=0.001,
        noise_sd=0.001,
    )
    (row,) = judged(here.measure([("native", "torch")])).rows
    assert row.verdict == "SLOWER"
    assert row.estimate.cycles == pytest.approx(1.0, abs=0.01)


def test_every_pass_prepares_anew_in_new_processes(machine):
    here = machine()
    here.measure([("native", "torch")], passes=5, threads=(1, 2))
    assert len(here.kernels) == 10
    assert {kernel.released for kernel in here.kernels} == {1}
    assert [host.threads for host in here.hosts].count(1) == 5
    assert len(here.hosts) == 10
    assert all(host.closed for host in here.hosts)


def test_who_is_prepared_first_is_left_to_chance(machine):
    here = machine()
    here.measure([("native", "torch")], passes=12)
    first = [kernel.facts.algorithm for kernel in here.kernels[::2]]
    assert 2 <= first.count("native kernel") <= 10


def test_what_cannot_be_prepared_costs_its_own_pair(machine):
    here = machine(refuses={"numba"})
    lost, kept = here.measure([("native", "numba"), ("native", "torch")])
    assert lost.logs == {}
    assert "numba has no such kernel" in lost.reason
    assert len(kept.logs) == 8
    # What was prepared of the lost pair is let go of, too.
    assert {kernel.released for kernel in here.kernels} == {1}
    found = judged([lost, kept])
    assert (len(found.rows), len(found.matching.untimed)) == (1, 1)
    assert lost.reason in found.notes[0]


def test_too_few_passes_have_no_verdict(machine):
    here = machine(seconds={"torch": 2e-3})
    (row,) = judged(here.measure([("native", "torch")], passes=3)).rows
    assert row.verdict == "UNCLEAR"
    assert "3 repetitions" in row.estimate.reason


def test_a_pass_is_worth_the_median_of_its_rounds(machine):
    here = machine(seconds={"torch": 1.5e-3}, preparation_sd=0, noise_sd=0, drift_sd=0)
    (one,) = here.measure([("native", "torch")], passes=4)
    assert one.logs == pytest.approx(dict.fromkeys(range(4), math.log(1.5)))
    assert statistics.median(one.seconds[1]) == pytest.approx(1.5e-3)


def test_a_small_budget_has_small_chunks(machine):
    half = machine().measure([("native", "native")], passes=0)[0].sides[0]
    found = policy(0.05, half.spec, "steady")
    assert found.chunk_s == pytest.approx(0.01)
    assert found.visit_s == pytest.approx(0.01)


def test_rows_that_lack_a_pass_are_in_the_geometric_mean(machine):
    here = machine(seconds={"torch": 1.21e-3}, preparation_sd=0.001)
    measured = here.measure([("native", "native"), ("native", "torch")])
    measured[1].logs.popitem()
    found = judged(measured)
    ratios = [row.estimate.ratio for row in found.rows]
    assert ratios == pytest.approx([1.0, 1.21], rel=0.01)
    assert found.geomean.ratio == pytest.approx(math.sqrt(ratios[0] * ratios[1]))
    assert found.geomean.ci_low < 1.1 < found.geomean.ci_high


def test_a_row_without_a_verdict_is_not(machine):
    here = machine(seconds={"torch": 2e-3}, preparation_sd=0.001)
    measured = here.measure([("native", "native"), ("native", "torch")])
    for number in range(3, 8):
        del measured[1].logs[number]
    assert judged(measured).geomean.ratio == pytest.approx(1.0, rel=0.01)


def invented(machine, *logs):
    """Pairs that were measured in some passes, with these logarithms by pass."""
    pairs = machine().measure([("native", "native")] * len(logs), passes=1)
    for pair, own in zip(pairs, logs, strict=True):
        pair.logs = own
    return pairs


def test_what_rows_have_in_common_is_taken_from_the_same_pass(machine):
    """Each pass moves both rows alike, up and down in turn; each row lacks another pass."""
    common = {number: 0.1 * (-1) ** number for number in range(9)}
    lacks = [{number: log for number, log in common.items() if number != own} for own in (0, 8)]
    geomean, every = (judged(invented(machine, *logs)).geomean for logs in (lacks, [common] * 2))
    assert geomean.ci_high / geomean.ratio == pytest.approx(every.ci_high / every.ratio, rel=0.02)


def test_many_rows_of_a_kind_know_their_scatter_no_better_than_their_passes_do(machine):
    steady, others = (
        {number: size * (-1) ** number for number in range(5)} for size in (0.01, 0.0101)
    )
    alone, among = (
        judged(invented(machine, steady, *[others] * count)).rows[0].estimate for count in (0, 19)
    )
    assert among.ci_high > alone.ci_high
    assert among.resolution > alone.resolution
