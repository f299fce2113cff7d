"""Invented sessions of every kind that a sweep opens."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from check_records import make_record

from pydlbench.cli import sweep as command
from pydlbench.cli.parser import Parser
from pydlbench.records.measurement import Measurement, Roofline, TimeSummary
from pydlbench.records.run import RunRecord
from pydlbench.records.step import StepRecord
from pydlbench.runner.execute import _new_run
from pydlbench.store.store import Store

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from pydlbench.records.run import RunInfo
    from pydlbench.store.entry import Entry

__all__ = ["FILE", "LAYERS", "Sessions", "entries", "parse", "sweep"]

#: A row of every kind.
FILE = """
title = "everything"
[[layers]]
shape = ["conv3", "conv4"]
batch = [1, 2]
pass = ["forward", "backward-data"]
exclude = [{ pass = "backward-data", batch = 2 }]
[[model]]
model = "mnist"
batch = [1, 4]
[[e2e]]
model = "mnist"
framework = "torch"
mode = "all"
batch = 8
[[check]]
model = "mnist"
framework = "torch"
batch = 8
"""
LAYERS = '[[layers]]\nshape = ["conv2", "conv3", "conv4", "conv5"]\nbatch = 1\n'


def time_of(seconds: float) -> TimeSummary:
    return TimeSummary(
        median=seconds,
        ci_low=0.99 * seconds,
        ci_high=1.01 * seconds,
        q1=seconds,
        q3=seconds,
        min=seconds,
        n=9,
    )


class Sessions:
    """Opens sessions and counts what they measured; ``before`` is called ahead of each thing."""

    def __init__(self, before: Any = None) -> None:
        self.measured: list[str] = []
        self.opened: list[dict[str, Any]] = []
        self.remembered: list[tuple[str, str, str]] = []
        self.bad: dict[str, Exception] = {}
        self.failing: set[str] = set()
        self._before = before or (lambda _: None)
        self.memory_bytes = 10**12
        self.run = RunRecord(
            id="session",
            created_utc="2030-01-01T00:00:00Z",
            # The machine that it is, or no later run could go on.
            device={**_new_run().device, "clock_hz": 1.25e9},
        )

    @contextmanager
    def open(self, **options: Any) -> Iterator[Sessions]:
        self.opened.append(options)
        yield self

    def remember(self, case: Any, algorithm: str, layout: str) -> None:
        self.remembered.append((case.label, algorithm, layout))

    def cache_bytes(self, _device: str) -> int:
        return 1 << 40

    def _count(self, label: str) -> None:
        for word, error in self.bad.items():
            if word in label:
                raise error
        self._before(len(self.measured))
        self.measured.append(label)

    def check_room(self, cases):
        pass

    def measure(self, cases: Any, progress: Any) -> Iterator[Any]:
        for case in cases:
            self._count(case.label)
            failed = any(word in case.label for word in self.failing)
            yield (
                case,
                Measurement(
                    layer=case.layer.name or case.layer.problem,
                    kind=case.layer.kind,
                    problem=case.layer.problem,
                    batch=case.layer.batch,
                    pass_=case.pass_,
                    precision=case.precision,
                    backend=case.backend,
                    mode=case.mode,
                    cache=case.cache,
                    algorithm="jit",
                    layout="src nhwc",
                    status="failed" if failed else "ok",
                    reason="wrong result" if failed else None,
                    time=None if failed else time_of(1e-3),
                    roofline=Roofline(bound="compute", time_s=9e-4, efficiency=0.9),
                    flops=10,
                    flops_executed=10,
                    bytes=10,
                    samples_s=(1e-3, 2e-3),
                    threads=2,
                ),
            )
        progress(len(cases), len(cases), "")

    def steps(self, cases: Any, *, checks: bool, progress: Any) -> list[StepRecord]:
        assert checks
        progress(0, len(cases), cases[0].label)
        found = []
        for case in cases:
            self._count(case.label)
            found.append(
                StepRecord(
                    case=case,
                    status="ok",
                    time=time_of(0.1),
                    images_per_s=10.0 * case.batch,
                    samples_s=(0.1, 0.11),
                    threads=2,
                    library="torch 1",
                )
            )
        return found

    def checker(self, *step: Any, **settings: Any) -> Any:
        model, options, batch, phase, _precision, framework, mode, _session = step
        settings["tell"]("parts")
        self._count(f"check {model} {framework} {mode}")
        return make_record(
            model=model, options=options, batch=batch, phase=phase, framework=framework, mode=mode
        )


def parse(*words: Any) -> argparse.Namespace:
    parser = Parser(prog="pydlbench")
    command.add_parser(parser.add_subparsers())
    return parser.parse_args(["sweep", *map(str, words)])


def sweep(sessions: Sessions, *words: Any) -> int:
    return command.run(parse(*words), sessions.open, sessions.checker)


def entries(run: str = "last") -> tuple[RunInfo, list[Entry]]:
    with Store.open(readonly=True) as store:
        info = store.find(run)
        return info, store.entries(info.id, samples=True)
