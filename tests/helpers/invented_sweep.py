"""An invented session for a sweep: layers, models, steps and breakdowns."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from breakdown_records import record_of
from invented_rows import row_of, time_of
from invented_session import InventedSession

from pydlbench.cli import sweep as command
from pydlbench.cli.parser import read
from pydlbench.devices.cpu.affinity import choose_cpus
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.devices.cpu.record import start_record
from pydlbench.records.run import RunRecord
from pydlbench.records.step import StepPreparation, StepRecord
from pydlbench.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydlbench.records.measurement import Measurement
    from pydlbench.records.run import RunInfo
    from pydlbench.store.entry import Entry

#: A row of every kind.
FILE = """
title = "everything"
[[layers]]
shape = ["conv3", "conv4"]
batch = [1, 2]
pass = ["forward", "backward-data"]
exclude = [{ pass = "backward-data", batch = 2 }]
[[estimate]]
model = "mnist"
batch = [1, 4]
[[step]]
model = "mnist"
framework = "torch"
mode = "all"
batch = 8
[[breakdown]]
model = "mnist"
framework = "torch"
batch = 8
"""
LAYERS = '[[layers]]\nshape = ["conv2", "conv3", "conv4", "conv5"]\nbatch = 1\n'


class Sessions(InventedSession):
    """Has every kind of thing measured that a sweep may ask for.

    Attributes:
        failing: words of labels whose rows fail.
        disturbed: words of labels whose rows other work disturbs.
    """

    def __init__(self, before: Callable[[int], None] | None = None) -> None:
        # The machine that it is, or no later run could go on.
        facts = read_cpu_facts()
        here = start_record(facts, choose_cpus(facts, None)).to_dict()
        run = RunRecord(
            id="session", created_utc="2030-01-01T00:00:00Z", device={**here, "clock_hz": 1.25e9}
        )
        super().__init__(run, self._row, before)
        self.failing: set[str] = set()
        self.disturbed: set[str] = set()

    def room_bytes(self) -> int:
        return 10**12

    def _row(self, case: Any) -> Measurement:
        if any(word in case.label for word in self.failing):
            return row_of(case, status="failed", reason="wrong result", time=None)
        return row_of(
            case,
            median=1e-3,
            roof=9e-4,
            algorithm="jit",
            samples_s=(1e-3, 2e-3),
            contended=any(word in case.label for word in self.disturbed),
        )

    @contextmanager
    def open(self, **options: Any) -> Iterator[InventedSession]:
        steps = patch("pydlbench.steps.run.runs_in_turn", self.run_in_turn)
        with super().open(**options), steps:
            yield self

    def run_in_turn(
        self,
        cases: Any,
        session: Any,
        *,
        visits: Any,
        preparation: StepPreparation,
        trace: bool,
        progress: Any,
    ) -> Iterator[tuple[int, StepRecord]]:
        assert session is self
        assert preparation.checks
        assert trace
        assert visits is None
        progress(0, len(cases), cases[0].label)
        for index, case in enumerate(cases):
            self.begin(case.label)
            yield (
                index,
                StepRecord(
                    spec=case,
                    status="ok",
                    time=time_of(0.1),
                    images_per_s=10.0 * case.batch,
                    samples_s=(0.1, 0.11),
                    threads=2,
                    library="torch 1",
                ),
            )

    def broken_down(self, case: Any, _session: Any, **settings: Any) -> Any:
        settings["advance"](0, 1, "calls")
        self.begin(f"breakdown {case.model} {case.framework} {case.mode}")
        return iter([record_of(case)])


def parse(*words: Any) -> Any:
    return read(["sweep", *map(str, words)])[0]


def sweep(sessions: Sessions, *words: Any) -> int:
    with patch("pydlbench.analysis.breakdown_run.broken_down", sessions.broken_down):
        return command.run(parse(*words), sessions.open)


def entries(run: str = "last") -> tuple[RunInfo, list[Entry]]:
    with Store.open(readonly=True) as store:
        info = store.find(run)
        return info, store.entries(info.id, samples=True)


def counts(found: list[Entry]) -> dict[str, int]:
    """Return how many entries there are of each kind that a sweep measures."""
    tables = [entry.table for entry in found]
    return {name: tables.count(name) for name in ("layer", "estimate", "step", "breakdown")}
