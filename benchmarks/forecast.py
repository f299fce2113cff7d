"""Forecasts scored against steps and ratios of steps, and compared with an oracle.

    python benchmarks/forecast.py --minutes 20
    python benchmarks/forecast.py --models vgg13 resnet101 --md forecast.md

The steps of a model are forecast from stored rows, or from rows that are measured for them. Then
they run in four fresh processes each, interleaved. The true time is the geometric mean of the four.
An oracle that predicts it misses a single process by the scatter between processes: no forecast can
do better. So the score is the error of the forecast over that of the oracle, and the share of true
times within the printed intervals. For two steps of a model that differ in one setting (batch,
layout, mode...) the ratio of the forecasts is compared with the ratio of their rounds.

When the steps of a model are finished, each is a line of the journal (``--journal``), from which
the script continues when it is called again. Forecasts after the ninth have an interval from the
errors of earlier ones.
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
from pydlbench.grouping import group_by
from pydlbench.models import build_model
from pydlbench.records.estimate import ForecastRecord
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
#: Batch and cases by model. A case is framework, phase and a changed setting. TensorFlow traces a
#: function for each operator, so networks with hundreds of distinct ones run in PyTorch only.
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
#: Largest error over an oracle's, least share of steps in their interval, largest error of ratios.
TARGETS = (1.25, 0.9, 0.02)
#: Fresh processes of a step.
PROCESSES = 4
#: Stores a result: table, document and key.
Keep = Callable[[str, dict[str, Any], str], None]
# Seconds of sampling of a step, over all its processes.
_STEP_S = 6.0


def read() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--minutes", type=float, help="begin no model after this time")
    parser.add_argument("--repetitions", type=int, default=2, help="of each operator (2)")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--journal", type=Path, default=Path("forecast.jsonl"))
    parser.add_argument("--store", type=Path, default=Path("forecast.sqlite"))
    parser.add_argument("--md", type=Path, metavar="FILE", help="write the table as Markdown")
    return parser.parse_args()


class Case(NamedTuple):
    """A step to forecast.

    Attributes:
        model: name in the catalogue.
        batch: images per step, before a change of the batch.
        framework: name of the framework.
        phase: phase of the step.
        change: changed setting: twice the ``batch``, the other ``layout`` or ``mode``,
            ``precision`` bf16; empty for the defaults.
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
        """The step's specification; a model without an optimizer is trained with SGD."""
        no_optimizer = self.phase == "training" and build_model(self.model).optimizer.kind == "none"
        step = StepSpec(
            model=self.model,
            options={"optimizer": "sgd"} if no_optimizer else {},
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


def run_steps(steps: Sequence[StepSpec], threads: int | None = None) -> list[StepRecord]:
    """Run steps in fresh processes, interleaved; ``rounds_s`` has the time in each process."""
    with Session(RunnerOptions(budget_s=_STEP_S, threads=threads)) as session:
        preparation = StepPreparation(checks=False)
        return run_in_turn(steps, session, visits=PROCESSES, preparation=preparation)


def missing_reason(record: StepRecord) -> str:
    """Return why a step lacks times; empty if it has all of them."""
    if record.ok and len(record.rounds_s) == PROCESSES:
        return ""
    return record.reason or "; ".join(record.warnings)


@contextlib.contextmanager
def stored_run(session: Session, store: Store, kind: str) -> Iterator[Keep]:
    """Store results as a run, whose status is ``failed`` after an error.

    Args:
        session: session of the run.
        store: store for the results.
        kind: kind of the run.

    Yields:
        A function of table, document and key that stores a result.
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
    """Forecast steps, and run those that have a forecast, interleaved.

    Returns:
        Forecast and times of each step, and why other steps lack them.
    """
    forecasts: dict[Case, ForecastRecord] = {}
    reasons = []
    with Session(RunnerOptions()) as session, stored_run(session, store, "forecast") as keep:
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
        steps = run_steps([case.step for case in forecasts])
        for case, step in zip(forecasts, steps, strict=True):
            if reason := missing_reason(step):
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
        if not missing_reason(step)
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
    """Return the error of a forecast, and the median error of the mean against a single value."""
    truth = geometric_mean(measured)
    return forecast / truth - 1, median(abs(truth / value - 1) for value in measured)


def errors(entry: Mapping[str, Any]) -> tuple[float, float]:
    """Return the deviation of a step's forecast from the seconds of its processes."""
    return deviation(entry["forecast_s"], entry["processes_s"])


def cells(case: Case, entry: Mapping[str, Any] | None) -> list[str]:
    """Return the cells of a case, in the order of :data:`TITLES`."""
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
        numerator: the changed step.
        denominator: the step that it is compared with.
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
        """The cells of the ratio, in the order of :data:`RATIOS`."""
        error, oracle = deviation(self.forecast, self.measured)
        return [
            self.numerator.model,
            *(f"{case.framework} {case.phase} {case.change}".strip() for case in self[:2]),
            f"{self.forecast:.3f}",
            f"{geometric_mean(self.measured):.3f}",
            percent(error, decimal=True, signed=True),
            percent(oracle, decimal=True),
        ]


def ratios(entries: Mapping[Case, Mapping[str, Any]]) -> Iterator[Ratio]:
    """Yield the ratios of scored steps.

    Args:
        entries: entries of the journal.
    """
    for case, base in itertools.permutations(entries, 2):
        differ = [name for name in Case._fields if getattr(case, name) != getattr(base, name)]
        defaults = {"framework": "torch", "phase": "forward", "change": ""}
        if len(differ) != 1 or defaults.get(differ[0]) != getattr(base, differ[0]):
            continue
        numerator, denominator = entries[case], entries[base]
        if numerator["when"] != denominator["when"]:  # they were not interleaved
            continue
        measured = [
            above / below
            for above, below in zip(
                numerator["processes_s"], denominator["processes_s"], strict=True
            )
        ]
        forecast = numerator["forecast_s"] / denominator["forecast_s"]
        yield Ratio(case, base, case.change or differ[0], forecast, measured)


def verdict(entries: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the scores of all steps, compared with the targets.

    Args:
        entries: entries with ``forecast_s``, ``interval_s`` and ``processes_s``.
    """
    if not entries:
        return ["no step was scored"]
    scores = [errors(entry) for entry in entries]
    missed = median(abs(error) for error, _ in scores)
    oracle = unbiased(error for _, error in scores)
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
    """Return the median error of oracles, corrected for the number of values.

    The mean is that of the same values: the deviation of one of n values from it is too small by
    sqrt((n - 1) / n).
    """
    return median(oracles) / math.sqrt((PROCESSES - 1) / PROCESSES)


def verdict_of_ratios(every: Iterable[Ratio]) -> list[str]:
    """Return the scores of ratios, all together and by setting, compared with the target."""
    every = list(every)
    if not every:
        return ["no ratio was scored"]
    lines = []
    for word, some in {"all": every, **group_by(every, lambda ratio: ratio.setting)}.items():
        scores = [deviation(ratio.forecast, ratio.measured) for ratio in some]
        missed = median(abs(error) for error, _ in scores)
        target = ""
        if word == "all":
            met = "met" if missed <= TARGETS[2] else "MISSED"
            target = f", target {percent(TARGETS[2])}: {met}"
        oracle = percent(unbiased(error for _, error in scores), decimal=True)
        error = percent(missed, decimal=True)
        lines.append(
            f"{word}: {len(some)} ratios; median error {error}, an oracle's {oracle}{target}"
        )
    return lines


def markdown(entries: Mapping[Case, Mapping[str, Any] | None]) -> str:
    """Return verdicts and tables.

    Args:
        entries: entries of the journal; None for a case that is not scored yet.
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
    """Return the processor and the versions of libraries.

    Args:
        modules: modules of the libraries; those that are not installed are skipped.
    """
    facts = read_cpu_facts()
    distributions = metadata.packages_distributions()
    names = dict.fromkeys(distributions[module][0] for module in modules if module in distributions)
    versions = [f"{name} {metadata.version(name)}" for name in names]
    processor = f"{facts.name} (family {facts.family}, model {facts.model}), {os.cpu_count()} CPUs"
    return ", ".join([processor, f"pydlbench {__version__}", *versions])


def main() -> int:
    """Score steps, then write the scores.

    Exit 0 if all steps are scored, 1 if not, 2 for bad input, 130 after Ctrl-C.
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
