"""benchmarks/compare_changes.py: what is planted is found, wrong verdicts count, and it goes on."""

from __future__ import annotations

import importlib
import math
import random
import statistics
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from invented_rows import row_of, time_of
from invented_runs import RUN

from pydlbench.compare.match import key
from pydlbench.compare.rows import read_side
from pydlbench.records.specs import KernelSpec
from pydlbench.store.entry import Entry
from pydlbench.store.store import Store

_BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
RUNS = 5


@pytest.fixture
def script():
    sys.path.insert(0, str(_BENCHMARKS))
    yield importlib.import_module("compare_changes")
    sys.path.remove(str(_BENCHMARKS))


def _seconds(script: Any, layer: Any, rng: random.Random, spread: float) -> float:
    """An invented kernel: as many images, as many times a millisecond."""
    work = script.STANDS_FOR[layer.problem][1]
    return 1e-3 * (1 + work / 100) * math.exp(rng.gauss(0, spread))


def _measure(script: Any, store: Path, number: int, spread: float = 0.001) -> None:
    """Store what the script's own run would have measured, of invented kernels."""
    rng = random.Random(number)
    changes = script.changes_of(number)
    with Store.open(store) as opened:
        run = msgspec.structs.replace(
            RUN,
            id=f"20300102-0304{number:02}-abcd",
            created_utc=f"2030-01-02T03:{number:02}:00Z",
            environment={**RUN.environment, "code": "c0de"},
        )
        opened.begin(run, "layers")
        for at in range(len(script.LAYERS)):
            layer = script.layer_of(at, changes.get(at, 0))
            spec = KernelSpec(layer=layer, layout="any")
            visits = [_seconds(script, layer, rng, spread) for _ in range(6)]
            time = msgspec.structs.replace(
                time_of(statistics.median(visits)), visits=6, visit_s=tuple(visits)
            )
            opened.add(run.id, Entry("layer", row_of(spec, time=time).to_dict()))
        opened.finish(run, "done")
        opened.tag(run.id, script.tag(number))


@pytest.fixture
def store(script, tmp_path):
    found = tmp_path / "store.sqlite"
    for number in range(RUNS):
        _measure(script, found, number)
    return found


def test_every_change_is_more_images_and_every_problem_has_one_meaning(script):
    assert len(script.STANDS_FOR) == len(script.LAYERS) * 4
    for layer in range(len(script.LAYERS)):
        usual = script.layer_of(layer)
        for change in script.CHANGES:
            more = script.layer_of(layer, change)
            assert more.batch / usual.batch == pytest.approx(1 + change / 100)
            assert more.flops("forward") / usual.flops("forward") == pytest.approx(1 + change / 100)


def test_what_is_planted_in_stored_runs_is_found_and_nothing_else(script, store):
    for alone in (True, False):
        rows = script.stored(store, alone=alone)
        assert Counter(abs(one.change) for one in rows) == {0: 96, 3: 8, 5: 8, 10: 8}
        planted = [one for one in rows if abs(one.change) >= 5]
        # Of three replicates a row in a hundred scatters far more than its kind does.
        assert sum(map(script.right, planted)) >= len(planted) - (not alone)
        wrong = [one for one in rows if one.verdict in ("SLOWER", "FASTER") and not one.change]
        assert wrong == []
        assert sum(one.verdict == "SAME" for one in rows if not one.change) >= 90
        assert {one.change for one in rows} == {0, 3, -3, 5, -5, 10, -10}


def test_rows_that_stand_for_usual_ones_have_replicates(script, store):
    with Store.open(store, readonly=True) as opened:
        runs = [script.usual(read_side(script.tag(number), opened))[0] for number in (0, 1)]
        keys = [set(map(key, one.rows)) for one in runs]
        assert keys[0] == keys[1]
        (group,) = script.replicates(opened, *runs)
        assert len(group) == RUNS - 2
        # Each of the others lacks what it has changed itself.
        assert {len(one) for one in group} == {27}
        assert set().union(*group) == keys[0]


def test_what_is_planted_in_turns_is_found(script, store):
    rng = random.Random(3)
    run = script.side_of(store, 0)
    pairs = script.pairs_of(1, run)
    assert sum(pair.a.problem != pair.b.problem for pair in pairs) == len(pairs) / 2
    layers = [[script.parse_problem(row.problem) for row in pair] for pair in pairs]
    taken = [
        [
            [math.log(_seconds(script, b, rng, 1e-3) / _seconds(script, a, rng, 1e-3))]
            for a, b in layers
        ]
        for _ in range(6)
    ]
    taken[2][4] = []  # a pass that failed
    assert script.interleaved(1, run, taken[:3]) == []
    rows = script.interleaved(1, run, taken)
    assert Counter(one.change for one in rows) == {0: 5, 3: 1, 5: 2, 10: 2}
    assert all(script.right(one) for one in rows if one.change)
    assert {one.verdict for one in rows if not one.change} == {"SAME"}


def test_each_verdict_counts_where_it_belongs(script):
    told = script.Told
    rows = [
        *(told(3, 1.03, verdict, 1.02) for verdict in ("SLOWER", "FASTER", "SAME", "UNCLEAR")),
        told(-3, 0.97, "FASTER", 1.02),
        told(0, 1.0, "SAME", None),
        told(0, 1.1, "SLOWER", 1.05),
    ]
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in script.table(rows).splitlines()[2:]
    ]
    # Rows, found, undecided, missed, false.
    assert lines[0][:6] == ["3 %", "5", "2", "1", "1", "1"]
    assert lines[1][:6] == ["none", "2", "1", "0", "0", "1"]


def test_it_goes_on_where_it_stopped(script, tmp_path, monkeypatch, capsys):
    done: list[str] = []
    clock = iter(range(10_000))

    def measure(number: int, _budget: float, store: Path) -> None:
        done.append(f"run {number}")
        _measure(script, store, number)

    def one_pass(number: int, turn: int, run: Any) -> list[list[float]]:
        done.append(f"pass {number} {turn}")
        rng = random.Random(turn)
        return [
            [math.log1p(script.STANDS_FOR[pair.b.problem][1] / 100) + rng.gauss(0, 1e-3)]
            for pair in script.pairs_of(number, run)
        ]

    monkeypatch.setattr(script, "measure", measure)
    monkeypatch.setattr(script, "one_pass", one_pass)
    monkeypatch.setattr(script, "time", SimpleNamespace(monotonic=lambda: float(next(clock))))
    words = ["--runs", "4", "--folder", str(tmp_path), "--md", str(tmp_path / "page.md")]

    def call(*more: str) -> int:
        monkeypatch.setattr(sys, "argv", ["compare_changes.py", *words, *more])
        found: int = script.main()
        return found

    call("--minutes", str(2.5 / 60))
    assert done == ["run 0", "pass 0 0"]
    assert call() == 0
    passes = [f"pass 0 {turn}" for turn in range(6)]
    assert done[1:] == [
        *(*passes[:2], "run 1", *passes[2:4], "run 2", *passes[4:], "run 3"),
        *("pass 1 0", "pass 1 1"),
    ]
    before = (tmp_path / "page.md").read_text(encoding="utf-8")
    assert call() == 0
    assert len(done) == 4 + 8
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == before
    assert before.count("| none |") == 3
    capsys.readouterr()
