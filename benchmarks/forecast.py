"""Forecasts scored against steps and ratios of steps, beside an oracle that knows the truth.

    python benchmarks/forecast.py --minutes 20
    python benchmarks/forecast.py --models vgg13 resnet101 --md forecast.md

The steps of a model are forecast from rows that are measured for them or stored. Then they run in
four fresh processes each, in turn. The truth is the geometric mean of the four. An oracle that
knows it misses a single process by as much as a process scatters: no forecast can do better. So
what counts is the error of the forecast over that of the oracle, and how often the truth lies in
the printed interval. Of two steps of a model that differ in one setting (batch, layout, mode...)
the forecast ratio is held against the one of their rounds.

When the steps of a model are finished, each is a line of the journal (``--journal``); called
again, the script goes on there. Forecasts after the ninth have an interval of what the earlier ones
missed by.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, NamedTuple

import msgspec
from journal import Journal

from pydlbench.analysis.forecast import forecast_step
from pydlbench.analysis.rows import now_utc
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.errors import PydlbenchError
from pydlbench.grouping import grouped
from pydlbench.models import build_model
from pydlbench.records.forecast import ForecastRecord
from pydlbench.records.step import StepPreparation, StepRecord, StepSpec
from pydlbench.report.text import markdown_table
from pydlbench.runner.options import RunnerOptions
from pydlbench.runner.session import Session
from pydlbench.steps.run import run_in_turn
from pydlbench.store.entry import Entry
from pydlbench.store.store import Store
from pydlbench.units import Scale, percent
from pydlbench.version import __version__
from pydlbench.words import FRAMEWORK_MODES

_ALL = ("torch forward", "torch training", "tensorflow forward", "tensorflow training")
_FORWARD = ("torch forward", "tensorflow forward")
_TORCH = ("torch forward", "torch training", "tensorflow forward")
_CHANGED = tuple(f"torch forward {change}" for change in ("batch", "layout", "mode", "precision"))
#: Model: batch, and what is forecast of it: framework, phase, and what is changed. TensorFlow
#: traces a function for each operator, so that networks with hundreds of distinct ones have rows in
#: PyTorch only.
MODELS: dict[str, tuple[int, tuple[str, ...]]] = {
    "vgg13": (2, (*_ALL, *_CHANGED)),
    "vgg16": (2, _ALL),
    "vgg19": (2, _ALL),
    "alexnet-tfcnn-cifar10": (64, (*_ALL, *_CHANGED)),
    "resnet101": (2, _ALL),
    "resnet152": (2, _ALL),
    "resnet18-v1": (4, (*_TORCH, *_CHANGED)),
    "resnet50-v1": (2, (*_TORCH, *_CHANGED)),
    "resnet101-v1": (2, _FORWARD),
    "resnet152-v1": (2, _FORWARD),
    "mobilenet-v2": (4, (*_TORCH, *_CHANGED)),
    "mobilenet-v3-large": (4, _TORCH),
    "nasnet-mobile": (2, ("torch forward",)),
    "densenet161": (2, ("torch forward",)),
    "densenet169": (2, ("torch forward",)),
    "densenet201": (2, ("torch forward",)),
}
#: The largest error over an oracle's, share of steps that lie in their interval, error of ratios.
TARGETS = (1.25, 0.9, 0.02)
#: Fresh processes that a step runs in.
PROCESSES = 4
#: Keeps what is measured: table, document and key.
Keep = Callable[[str, dict[str, Any], str], None]
# Seconds of sampling of a step, over all its processes.
_STEP_S = 6.0


def read() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--minutes", type=float, help="begin no model after so long")
    parser.add_argument("--repetitions", type=int, default=2, help="of each operator (2)")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--journal", type=Path, default=Path("forecast.jsonl"))
    parser.add_argument("--store", type=Path, default=Path("forecast.sqlite"))
    parser.add_argument("--md", type=Path, metavar="FILE", help="write the table as Markdown")
    return parser.parse_args()


class Case(NamedTuple):
    """A step that is forecast.

    Attributes:
        model: of the catalogue.
        batch: images, where that is not what is changed.
        framework: that runs it.
        phase: of the step.
        change: of the step as it is usually run: twice the ``batch``, the other ``layout`` or
            ``mode``, ``precision`` bf16; empty for nothing.
    """

    model: str
    batch: int
    framework: str
    phase: str
    change: str = ""

    @property
    def name(self) -> str:
        """Its name in the journal."""
        return " ".join(map(str, self)).strip()

    @property
    def step(self) -> StepSpec:
        """The step itself; where a script ends with the gradients, it is trained all the same."""
        ends = self.phase == "training" and build_model(self.model).optimizer.kind == "none"
        step = StepSpec(
            model=self.model,
            options={"optimizer": "sgd"} if ends else {},
            batch=self.batch,
            framework=self.framework,
            phase=self.phase,
        )
        changes: dict[str, dict[str, Any]] = {
            "": {},
            "batch": {"batch": 2 * self.batch},
            "layout": {"layout": "nchw"},
            "mode": {"mode": FRAMEWORK_MODES[self.framework][1]},
            "precision": {"precision": "bf16"},
        }
        return msgspec.structs.replace(step, **changes[self.change])


def cases(model: str) -> list[Case]:
    """Return the cases of a model."""
    batch, kinds = MODELS[model]
    return [Case(model, batch, *kind.split()) for kind in kinds]


def timed(steps: Sequence[StepSpec], threads: int | None = None) -> list[StepRecord]:
    """Run steps in fresh processes, in turn; ``rounds_s`` has what each takes in which."""
    with Session(RunnerOptions(budget_s=_STEP_S, threads=threads)) as session:
        how = StepPreparation(checks=False)
        return run_in_turn(steps, session, visits=PROCESSES, preparation=how)


def lacks(record: StepRecord) -> str:
    """Return why a step has not all of its times; empty where it has."""
    if record.ok and len(record.rounds_s) == PROCESSES:
        return ""
    return record.reason or "; ".join(record.warnings)


@contextlib.contextmanager
def kept(session: Session, store: Store, kind: str) -> Iterator[Keep]:
    """Keep what is measured as a run of the store; it is ``failed`` after an error.

    Args:
        session: whose run it is.
        store: that keeps it.
        kind: of the run.

    Yields:
        A function of table, document and key of what is kept.
    """
    run = session.run
    store.begin(run, kind)
    status = "failed"

    def keep(table: str, document: dict[str, Any], key: str) -> None:
        store.add(run.id, Entry.from_document(table, document, key))

    try:
        yield keep
        status = "done"
    finally:
        store.finish(session.run, status)


def score(
    cases: Sequence[Case], store: Store, repetitions: int
) -> tuple[dict[Case, dict[str, Any]], list[str]]:
    """Forecast steps, and run those that have a forecast in turn.

    Returns:
        Both of each step, and why others lack one.
    """
    forecasts: dict[Case, ForecastRecord] = {}
    reasons = []
    with Session(RunnerOptions()) as session, kept(session, store, "forecast") as keep:
        for case in cases:
            try:
                forecast = forecast_step(case.step, session, store, visits=repetitions, keep=keep)
                if forecast.status != "ok":
                    raise PydlbenchError(str(forecast.reason))
            except PydlbenchError as error:
                reasons.append(f"{case.name}: {' '.join(str(error).split())}")
                continue
            keep("forecast", forecast.to_dict(), f"forecast {case.name}")
            forecasts[case] = forecast
        steps = timed([case.step for case in forecasts])
        for case, step in zip(forecasts, steps, strict=True):
            if reason := lacks(step):
                reasons.append(f"{case.name}: {reason}")
            keep("step", step.to_dict(), f"step {case.name}")
    when = now_utc()
    entries = {
        case: {
            "when": when,
            "forecast_s": forecast.seconds,
            "interval_s": [forecast.ci_low, forecast.ci_high],
            "scored": forecast.scored,
            "faults_s": forecast.faults_s,
            "processes_s": list(step.rounds_s.values()),
        }
        for (case, forecast), step in zip(forecasts.items(), steps, strict=True)
        if not lacks(step)
    }
    return entries, reasons


# -----------------------------------------------------------------------------
# The tables.

TITLES = (
    *("model", "batch", "phase", "framework", "change"),
    *("forecast", "interval", "step", "error", "oracle"),
)
RATIOS = ("model", "numerator", "denominator", "forecast", "measured", "error", "oracle")

_HOW = (
    f"`python benchmarks/forecast.py`: a step is forecast from rows of its operators, then runs in "
    f"{PROCESSES} fresh processes, in turn with the others of its model. `step`: their geometric "
    "mean. `oracle`: what that misses a single process by, in the median."
)
_HOW_RATIOS = (
    "Steps of a model that differ in one setting. `measured`: the geometric mean of their ratios "
    "in each round of the processes; `oracle`: what that misses a single round by, in the median."
)


def deviation(forecast: float, measured: Sequence[float]) -> tuple[float, float]:
    """Return the error of a forecast, and what the truth misses a single value by, typically."""
    truth = geometric_mean(measured)
    return forecast / truth - 1, median(abs(truth / one - 1) for one in measured)


def errors(entry: Mapping[str, Any]) -> tuple[float, float]:
    """Return the deviation of a step's forecast from the seconds of its processes."""
    return deviation(entry["forecast_s"], entry["processes_s"])


def cells(case: Case, entry: Mapping[str, Any] | None) -> list[str]:
    """Return a case under :data:`TITLES`."""
    head = [case.model, str(case.step.batch), case.phase, case.framework, case.change]
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


class Ratio(NamedTuple):
    """Two steps of a model that differ in one setting.

    Attributes:
        numerator: the step that is changed.
        denominator: the step that it is held against.
        setting: framework, phase, or the change.
        forecast: ratio of the forecasts.
        measured: ratios of the seconds, by round.
    """

    numerator: Case
    denominator: Case
    setting: str
    forecast: float
    measured: list[float]

    @property
    def cells(self) -> list[str]:
        """Itself under :data:`RATIOS`."""
        error, oracle = deviation(self.forecast, self.measured)
        return [
            self.numerator.model,
            *(f"{one.framework} {one.phase} {one.change}".strip() for one in self[:2]),
            f"{self.forecast:.3f}",
            f"{geometric_mean(self.measured):.3f}",
            percent(error, decimal=True, signed=True),
            percent(oracle, decimal=True),
        ]


def ratios(entries: Mapping[Case, Mapping[str, Any]]) -> Iterator[Ratio]:
    """Yield the ratios of scored steps.

    Args:
        entries: those of the journal.
    """
    for one, other in itertools.permutations(entries, 2):
        differ = [name for name in Case._fields if getattr(one, name) != getattr(other, name)]
        known = {"framework": "torch", "phase": "forward", "change": ""}
        if len(differ) != 1 or known.get(differ[0]) != getattr(other, differ[0]):
            continue
        numerator, denominator = entries[one], entries[other]
        if numerator["when"] != denominator["when"]:  # they did not run in turn
            continue
        measured = [
            above / below
            for above, below in zip(
                numerator["processes_s"], denominator["processes_s"], strict=True
            )
        ]
        forecast = numerator["forecast_s"] / denominator["forecast_s"]
        yield Ratio(one, other, one.change or differ[0], forecast, measured)


def verdict(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what all rows say together, held against the targets.

    Args:
        entries: with ``forecast_s``, ``interval_s`` and ``processes_s`` each.
    """
    if not entries:
        return ["no step was scored"]
    scores = [errors(entry) for entry in entries]
    missed = median(abs(error) for error, _ in scores)
    oracle = unbiased(one for _, one in scores)
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


def unbiased(oracles: Iterable[float]) -> float:
    """Return what oracles miss a single value by, in the median.

    Four values tell their own mean too well: one of n is off it by sqrt((n - 1) / n).
    """
    return median(oracles) / math.sqrt((PROCESSES - 1) / PROCESSES)


def verdict_of_ratios(every: Iterable[Ratio]) -> list[str]:
    """Return what ratios say together, all and by what differs, held against the target."""
    every = list(every)
    if not every:
        return ["no ratio was scored"]
    lines = []
    for word, some in {"all": every, **grouped(every, lambda ratio: ratio.setting)}.items():
        scores = [deviation(ratio.forecast, ratio.measured) for ratio in some]
        missed = median(abs(error) for error, _ in scores)
        target = ""
        if word == "all":
            met = "met" if missed <= TARGETS[2] else "MISSED"
            target = f", target {percent(TARGETS[2])}: {met}"
        oracle = percent(unbiased(one for _, one in scores), decimal=True)
        error = percent(missed, decimal=True)
        lines.append(
            f"{word}: {len(some)} ratios; median error {error}, an oracle's {oracle}{target}"
        )
    return lines


def markdown(entries: Mapping[Case, Mapping[str, Any] | None]) -> str:
    """Return verdicts and tables.

    Args:
        entries: of the journal; None of a case that is not scored yet.
    """
    known = {case: entry for case, entry in entries.items() if entry is not None}
    pairs = list(ratios(known))
    return "\n\n".join(
        [
            "# Forecasts, and the steps that ran later",
            f"{machine()}. {_HOW}",
            "\n".join(f"- {line}" for line in verdict(list(known.values()))),
            markdown_table(
                TITLES,
                [cells(*item) for item in entries.items()],
                [title not in TITLES[2:5] and title != "model" for title in TITLES],
            ),
            "## Ratios",
            _HOW_RATIOS,
            "\n".join(f"- {line}" for line in verdict_of_ratios(pairs)),
            markdown_table(
                RATIOS, [pair.cells for pair in pairs], [n > 2 for n in range(len(RATIOS))]
            ),
            "",
        ]
    )


def machine(modules: Sequence[str] = ("torch", "tensorflow")) -> str:
    """Return the processor and the versions of what ran on it.

    Args:
        modules: whose versions are named, as far as they are installed.
    """
    facts = read_cpu_facts()
    distributions = metadata.packages_distributions()
    names = dict.fromkeys(distributions[module][0] for module in modules if module in distributions)
    versions = [f"{name} {metadata.version(name)}" for name in names]
    processor = f"{facts.name} (family {facts.family}, model {facts.model}), {os.cpu_count()} CPUs"
    return ", ".join([processor, f"pydlbench {__version__}", *versions])


def main() -> int:
    """Score steps, then write what is known.

    Exit 0 if all of it is there, 1 if not, 2 for bad input, 130 after Ctrl-C.
    """
    args = read()
    wrong = [name for name in args.models or () if name not in MODELS]
    if wrong:
        print(f"forecast: {wrong[0]}: not scored; there are {', '.join(MODELS)}", file=sys.stderr)
        return 2
    every = {model: cases(model) for model in args.models or MODELS}
    journal = Journal(args.journal)
    begin = time.monotonic()
    code = 0
    try:
        with Store.open(args.store) as store:
            for steps in every.values():
                missing = [case for case in steps if case.name not in journal]
                if not missing:
                    continue
                if args.minutes is not None and time.monotonic() - begin > 60 * args.minutes:
                    print(f"{args.minutes:g} minutes are over; the same command goes on")
                    break
                scored, reasons = score(missing, store, args.repetitions)
                if reasons:
                    print("\n".join(reasons), flush=True)
                for case, entry in scored.items():
                    journal.add(case.name, entry)
                    print(f"{case.name}: {' '.join(cells(case, entry)[5:])}", flush=True)
    except KeyboardInterrupt:
        code = 130
    entries = {case: journal.get(case.name) for steps in every.values() for case in steps}
    text = markdown(entries)
    print(text)
    if args.md is not None:
        args.md.write_text(text, encoding="utf-8")
    return code or int(None in entries.values())


if __name__ == "__main__":
    sys.exit(main())
