"""Two kernels in turn: the verdict of each row, and kernels that are refused are not ranked."""

import dataclasses
import shlex
from types import SimpleNamespace

import msgspec
import pytest
from invented_rows import measurement

from pydlbench.cli.compare_kernels import read_task
from pydlbench.cli.compare_models import stored_report
from pydlbench.cli.compare_options import CompareOptions
from pydlbench.compare.kernels import CALLED_ONCE, compare_kernels, name_of
from pydlbench.errors import UsageError
from pydlbench.report.compare import comparison_report, conclude, judge
from pydlbench.report.text import as_text

DRIFT = (1.0, 1.2, 0.9, 1.1, 1.0, 0.95)
OWN = (1.0, 1.001, 0.999, 1.002, 0.998, 1.0)
REASON = "wrong result in a timed sample"


def row(kernel, factor=1.0, layer="net/relu", **fields):
    """A kernel whose repetitions drift together with those of the other one."""
    found = measurement(median=factor * 1e-3, layer=layer, backend="torch", mode=kernel)
    if kernel == "native":
        found = msgspec.structs.replace(found, backend="native", mode=None)
    seconds = [
        1e-3 * factor * drift * own ** (factor > 1) for drift, own in zip(DRIFT, OWN, strict=True)
    ]
    time = msgspec.structs.replace(found.time, visit_s=tuple(seconds), repetitions=len(seconds))
    return msgspec.structs.replace(found, **{"time": time, **fields})


def refused(kernel, **fields):
    return row(kernel, time=None, status="failed", reason=REASON, **fields)


@pytest.mark.parametrize(
    ("factor", "verdict", "words"),
    [
        (1.0, "SAME", "as fast as A within 2 %"),
        (1.1, "SLOWER", "it takes 1.1"),
        (0.8, "FASTER", "1.250x as fast as A"),
    ],
)
def test_the_ratio_is_that_of_the_repetitions_in_turn(run_record, factor, verdict, words):
    found = compare_kernels([row("a.py:f"), row("b.py:f", factor)], run_record)
    (only,) = found.rows
    assert (only.verdict, found.passes, found.wrong) == (verdict, 6, False)
    assert only.estimate.ratio == pytest.approx(factor, rel=0.003)
    assert only.estimate.ci_low <= only.estimate.ratio <= only.estimate.ci_high
    assert words in conclude(found)[0]
    assert (found.a.name, found.b.name) == ("a.py:f", "b.py:f")
    document = found.to_dict()
    assert len(document["rows"][0]["by_pass"]) == 6
    assert document["settings"]["confidence"] == 0.95
    assert (judge(found, 0.03).slower != "") is (verdict == "SLOWER")


def test_after_a_lost_repetition_the_others_keep_their_pairs(run_record):
    b = row("b.py:f", 1.1)
    kept = b.time.visit_s[:2] + b.time.visit_s[3:]
    time = msgspec.structs.replace(b.time, visit_s=kept, laps=(0, 1, 3, 4, 5), repetitions=5)
    found = compare_kernels([row("a.py:f"), msgspec.structs.replace(b, time=time)], run_record)
    assert (found.passes, found.rows[0].verdict) == (5, "SLOWER")
    assert found.rows[0].estimate.ratio == pytest.approx(1.1, rel=0.003)


def test_rows_of_several_caches_and_passes_pair_up_by_what_they_compute(run_record):
    rows = [
        row(kernel, factor, cache=cache, pass_=pass_)
        for kernel, factor in (("a.py:f", 1.0), ("native", 1.5))
        for cache in ("hot", "all-cold")
        for pass_ in ("forward", "backward-data")
    ]
    found = compare_kernels(rows, run_record)
    assert [each.verdict for each in found.rows] == ["SLOWER"] * 4
    assert {(each.a.cache, each.a.pass_) for each in found.rows} == {
        (each.b.cache, each.b.pass_) for each in found.rows
    }
    assert found.notes == (CALLED_ONCE,)
    assert "all-cold" in as_text(comparison_report(found))


@pytest.mark.parametrize(
    ("factor", "command"),
    [
        (1.5, "layers --shape relu:ic64 --cache hot,all-cold --backend a.py:f,native"),
        (1.02, "compare a.py:f native --shape relu:ic64 --cache hot,all-cold --repetitions 30"),
    ],
)
def test_the_next_command_is_on_limits_or_more_repetitions(run_record, factor, command):
    words = shlex.split("compare a.py:f native --shape relu:ic64 --cache hot,all-cold")
    run = msgspec.structs.replace(run_record, command=("pydlbench", *words))
    rows = [
        row(kernel, times, cache=cache)
        for kernel, times in (("a.py:f", 1.0), ("native", factor))
        for cache in ("hot", "all-cold")
    ]
    documents = [SimpleNamespace(document=one.to_dict()) for one in rows]
    stored = {"layer": documents, "step": [], "change": []}
    headline, *_ = stored_report(SimpleNamespace(record=run, table=stored.__getitem__))
    assert headline.lines[-1] == f"next: pydlbench {command}"
    assert ("2 rows (hot, all-cold)" in headline.lines[0]) is (factor == 1.5)


def test_a_single_stored_row_is_named_by_its_layer(run_record):
    pair = [row("a.py:f"), row("b.py:f", 1.5)]
    stored = dataclasses.replace(compare_kernels(pair, run_record), passes=0)
    first, *_ = conclude(stored)
    assert f"in 1 of 1 row ({stored.rows[0].b.layer})" in first


@pytest.mark.parametrize("side", ["A", "B"])
def test_a_kernel_that_computes_something_else_is_named_first_and_not_ranked(run_record, side):
    pair = [refused("a.py:f"), row("b.py:f")] if side == "A" else [row("a.py:f"), refused("b.py:f")]
    others = [row(kernel, 0.5, layer="net/other") for kernel in ("a.py:f", "b.py:f")]
    found = compare_kernels([pair[0], others[0], pair[1], others[1]], run_record)
    assert [each.b.layer for each in found.rows] == ["net/other"]
    first, second = conclude(found)
    assert first.startswith(f"{side} is not ranked: net/relu")
    assert REASON in first
    assert "as fast as A" in second
    assert found.wrong
    assert found.to_dict()["refused"] == (first.removesuffix("."),)
    (untimed,) = found.to_dict()["untimed"]
    assert (untimed["a"] == "failed", untimed["b"] == "failed") == (side == "A", side == "B")


def test_with_nothing_to_rank_the_refusal_is_the_answer(run_record):
    found = compare_kernels([row("a.py:f"), refused("b.py:f")], run_record)
    assert found.rows == []
    assert conclude(found)[0].startswith("B is not ranked")
    assert "SLOWER" not in as_text(comparison_report(found))
    failed = row("b.py:f", status="failed", reason=REASON)
    assert compare_kernels([row("a.py:f"), failed], run_record).rows == []
    assert compare_kernels([row("a.py:f")], run_record) is None


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["native", "torch"], ["native", "torch"]),
        (["torch", "native"], ["torch", "native"]),
        (["native", "torch", "--mode", "compiled"], ["native", "torch"]),
        (["native", "torch", "--mode", "eager,compiled"], None),
        (["torch", "numba", "--pass", "all"], ["torch", "numba"]),
    ],
)
def test_the_task_has_the_rows_of_a_first(words, names):
    args = CompareOptions.parse(["--shape", "relu:ic64", *words])
    if names is None:
        with pytest.raises(UsageError, match="mode"):
            read_task(args)
        return
    task, _ = read_task(args)
    assert list(dict.fromkeys(name_of(each.spec) for each in task.rows)) == names
    assert {each.spec.cache for each in task.rows} == {"hot", "all-cold"}
    assert (task.options["repetitions"], task.options["fresh"]) == (10, True)


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["native"], "two are compared"),
        (["native", "native"], "two are compared"),
        (["native", "trch"], "nearest: torch"),
        (["native", "nowhere.py:launch"], "nowhere.py"),
    ],
)
def test_what_is_no_pair_of_kernels_is_refused(words, reason):
    with pytest.raises(UsageError, match=reason):
        read_task(CompareOptions.parse(["--shape", "relu:ic64", *words]))
