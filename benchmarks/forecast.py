"""Forecasts scored against steps, beside an oracle that knows the median of the step.

    python benchmarks/forecast.py --minutes 20
    python benchmarks/forecast.py --models vgg13 resnet101 --md forecast.md

Each step is forecast from rows that are measured for it or stored, then runs in four fresh
processes one after another. The truth is the geometric mean of the four. An oracle that knows it
misses a single process by as much as a process scatters: no forecast can do better. So what
counts is the error of the forecast over that of the oracle, and how often the truth lies in the
printed interval. What is finished is a line of the journal (``--journal``) at once; called again,
the script goes on there. Forecasts after the ninth have an interval of what the earlier ones
missed by.
"""

from __future__ import annotations

import argparse
import datetime as dt
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, NamedTuple

from journal import Journal

from pydlbench.analysis.forecast import forecast_step
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.errors import PydlbenchError
from pydlbench.models import build_model
from pydlbench.records.step import StepPreparation, StepRecord, StepSpec
from pydlbench.report.text import markdown_table
from pydlbench.runner.options import Options
from pydlbench.runner.session import Session
from pydlbench.steps.run import run_in_turn
from pydlbench.store.entry import Entry
from pydlbench.store.store import Store
from pydlbench.units import Scale, percent

_ALL = ("torch forward", "torch training", "tensorflow forward", "tensorflow training")
_FORWARD = ("torch forward", "tensorflow forward")
_TORCH = ("torch forward", "torch training", "tensorflow forward")
#: Model: batch, and what is forecast of it. TensorFlow traces a function for each operator, so that
#: networks with hundreds of distinct ones have rows in PyTorch only.
MODELS: dict[str, tuple[int, tuple[str, ...]]] = {
    "vgg13": (2, _ALL),
    "vgg16": (2, _ALL),
    "vgg19": (2, _ALL),
    "alexnet-tfcnn-cifar10": (64, _ALL),
    "resnet101": (2, _ALL),
    "resnet152": (2, _ALL),
    "resnet18-v1": (4, _TORCH),
    "resnet50-v1": (2, _TORCH),
    "resnet101-v1": (2, _FORWARD),
    "resnet152-v1": (2, _FORWARD),
    "mobilenet-v2": (4, _TORCH),
    "mobilenet-v3-large": (4, _TORCH),
    "nasnet-mobile": (2, ("torch forward",)),
    "densenet161": (2, ("torch forward",)),
    "densenet169": (2, ("torch forward",)),
    "densenet201": (2, ("torch forward",)),
}
#: The largest error over an oracle's, and share of steps that lie in their interval.
TARGETS = (1.25, 0.9)
#: Fresh processes that a step runs in.
PROCESSES = 4
# Seconds of sampling of a step, over all processes.
_STEP_S = 6.0


def read() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--minutes", type=float, help="begin no step after so long")
    parser.add_argument("--repetitions", type=int, default=2, help="of each operator (2)")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--journal", type=Path, default=Path("forecast.jsonl"))
    parser.add_argument("--store", type=Path, default=Path("forecast.sqlite"))
    parser.add_argument("--md", type=Path, metavar="FILE", help="write the table as Markdown")
    return parser.parse_args()


class Case(NamedTuple):
    """A step that is forecast."""

    model: str
    batch: int
    framework: str
    phase: str

    @property
    def name(self) -> str:
        """Its name in the journal."""
        return " ".join(map(str, self))

    @property
    def step(self) -> StepSpec:
        """The step itself; where a script ends with the gradients, it is trained all the same."""
        ends = self.phase == "training" and build_model(self.model).optimizer.kind == "none"
        return StepSpec(
            model=self.model,
            options={"optimizer": "sgd"} if ends else {},
            batch=self.batch,
            framework=self.framework,
            phase=self.phase,
        )


def cases(models: Sequence[str]) -> Iterator[Case]:
    """Yield the cases of some models."""
    for model in models:
        batch, kinds = MODELS[model]
        for kind in kinds:
            framework, phase = kind.split()
            yield Case(model, batch, framework, phase)


def timed(step: StepSpec, threads: int | None = None) -> StepRecord:
    """Run a step in fresh processes one after another; ``rounds_s`` has what it takes in each.

    Raises:
        PydlbenchError: it cannot be run.
    """
    with Session(Options(budget_s=_STEP_S, threads=threads)) as session:
        how = StepPreparation(checks=False)
        (record,) = run_in_turn([step], session, visits=PROCESSES, preparation=how)
    if not record.ok or len(record.rounds_s) < PROCESSES:
        raise PydlbenchError(record.reason or "; ".join(record.warnings))
    return record


def score(case: Case, store: Store, repetitions: int) -> dict[str, Any]:
    """Forecast a step, run it, and return both.

    Raises:
        PydlbenchError: nothing came of it.
    """
    with Session(Options()) as session:
        run = session.run
        store.begin(run, "forecast")

        def keep(table: str, document: dict[str, Any], key: str) -> None:
            store.add(run.id, Entry.from_document(table, document, key))

        try:
            record = forecast_step(case.step, session, store, visits=repetitions, keep=keep)
            keep("forecast", record.to_dict(), f"forecast {case.name}")
            step = timed(case.step)
            keep("step", step.to_dict(), f"step {case.name}")
        finally:
            store.finish(run, "done")
    if record.status != "ok":
        raise PydlbenchError(str(record.reason))
    return {
        "when": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "forecast_s": record.seconds,
        "interval_s": [record.ci_low, record.ci_high],
        "scored": record.scored,
        "faults_s": record.faults_s,
        "processes_s": list(step.rounds_s.values()),
    }


# -----------------------------------------------------------------------------
# The table.

TITLES = ("model", "batch", "phase", "framework", "forecast", "interval", "step", "error", "oracle")


_HOW = (
    f"`python benchmarks/forecast.py`: a step is forecast from rows of its operators, then runs in "
    f"{PROCESSES} fresh processes. `step`: their geometric mean. `oracle`: what that misses a "
    "single process by, in the median."
)


def errors(entry: Mapping[str, Any]) -> tuple[float, float]:
    """Return the error of a forecast, and what the truth misses a single process by, typically."""
    truth = geometric_mean(entry["processes_s"])
    oracle = [abs(truth / seconds - 1) for seconds in entry["processes_s"]]
    return entry["forecast_s"] / truth - 1, median(oracle)


def cells(case: Case, entry: dict[str, Any] | None) -> list[str]:
    """Return a case under :data:`TITLES`."""
    head = [case.model, str(case.batch), case.phase, case.framework]
    if entry is None:
        return [*head, *["-"] * (len(TITLES) - len(head))]
    error, oracle = errors(entry)
    truth = geometric_mean(entry["processes_s"])
    scale = Scale.fit(truth)
    low, high = entry["interval_s"]
    return [
        *head,
        scale.text(entry["forecast_s"]),
        f"{scale.bare(low)} .. {scale.bare(high)}",
        scale.text(truth),
        percent(error, decimal=True, signed=True),
        percent(oracle, decimal=True),
    ]


def verdict(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what all rows say together, held against the targets.

    Args:
        entries: with ``forecast_s``, ``interval_s`` and ``processes_s`` each.
    """
    if not entries:
        return ["no step was scored"]
    scores = [errors(entry) for entry in entries]
    missed = median(abs(error) for error, _ in scores)
    oracle = median(one for _, one in scores)
    # Four processes tell their own mean too well: one of n is off it by sqrt((n - 1) / n).
    oracle /= math.sqrt((PROCESSES - 1) / PROCESSES)
    inside = [
        low <= geometric_mean(entry["processes_s"]) <= high
        for entry in entries
        for low, high in [entry["interval_s"]]
    ]
    share = sum(inside) / len(inside)
    worst = percent(max(abs(error) for error, _ in scores), decimal=True)
    near = "met" if missed / oracle <= TARGETS[0] else "MISSED"
    often = "met" if share >= TARGETS[1] else "MISSED"
    return [
        f"{len(entries)} steps; median error {percent(missed, decimal=True)}, worst {worst}",
        f"an oracle misses a single process by {percent(oracle, decimal=True)}",
        f"error over the oracle's {missed / oracle:.2f}, target {TARGETS[0]}: {near}",
        f"steps in their interval {percent(share)}, target {percent(TARGETS[1])}: {often}",
    ]


def markdown(journal: Journal, every: Sequence[Case]) -> str:
    """Return verdict and table."""
    entries = {case: journal.get(case.name) for case in every}
    known = [entry for entry in entries.values() if entry is not None]
    right = [number > 3 for number in range(len(TITLES))]
    return "\n\n".join(
        [
            "# Forecasts, and the steps that ran later",
            f"{read_cpu_facts().name}. {_HOW}",
            "\n".join(f"- {line}" for line in verdict(known)),
            markdown_table(TITLES, [cells(case, entries[case]) for case in every], right),
            "",
        ]
    )


def main() -> int:
    """Score steps, then write what is known.

    Exit 0 if all of it is there, 1 if not, 2 for bad input, 130 after Ctrl-C.
    """
    args = read()
    wrong = [name for name in args.models or () if name not in MODELS]
    if wrong:
        print(f"forecast: {wrong[0]}: not scored; there are {', '.join(MODELS)}", file=sys.stderr)
        return 2
    every = list(cases(args.models or list(MODELS)))
    journal = Journal(args.journal)
    begin = time.monotonic()
    code = 0
    try:
        with Store.open(args.store) as store:
            for case in every:
                if journal.get(case.name) is not None:
                    continue
                if args.minutes is not None and time.monotonic() - begin > 60 * args.minutes:
                    print(f"{args.minutes:g} minutes are over; the same command goes on")
                    break
                try:
                    journal.add(case.name, score(case, store, args.repetitions))
                    print(f"{case.name}: {' '.join(cells(case, journal.get(case.name))[4:])}")
                except PydlbenchError as error:
                    print(f"{case.name}: {' '.join(str(error).split())}")
    except KeyboardInterrupt:
        code = 130
    text = markdown(journal, every)
    print(text)
    if args.md is not None:
        args.md.write_text(text, encoding="utf-8")
    return code or int(any(journal.get(case.name) is None for case in every))


if __name__ == "__main__":
    sys.exit(main())
