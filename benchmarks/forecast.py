"""Forecasts scored against steps that run later, beside two baselines.

    python benchmarks/forecast.py --stage rows  --minutes 20    # measure and store operators
    python benchmarks/forecast.py --stage steps --minutes 20    # an hour or more later
    python benchmarks/forecast.py --stage again --minutes 12    # another hour later

``rows`` measures each operator that the store lacks, by its signature; no step of these models
runs. ``steps`` makes each forecast from stored rows only and writes it down with its time, then
runs that step, and once more in a second process. ``again`` runs the steps once more. What is
finished is a line of the journal (``--journal``) at once; a stage that ends early goes on there. A
step whose rows are younger than ``--apart`` minutes waits, and so does its repetition.

No model that forecasts are calibrated on is here.
"""

from __future__ import annotations

import abc
import argparse
import datetime as dt
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from journal import Journal

from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.errors import PydlbenchError
from pydlbench.ladder.calibration import visited_step
from pydlbench.ladder.forecast import forecast_step
from pydlbench.models import build_model
from pydlbench.records.forecast import ForecastRecord
from pydlbench.records.step import StepSpec
from pydlbench.report.text import markdown_table
from pydlbench.runner.options import Options
from pydlbench.runner.session import Session
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
STAGES = ("rows", "steps", "again")
# Largest median error; of that over the better baseline's.
TARGETS = (0.05, 1.5)
# Seconds of sampling of a step in each process.
_STEP_S = 3.0


def read() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--stage", choices=STAGES, help="what to do; without it only the table")
    parser.add_argument("--minutes", type=float, help="begin no step after so long")
    parser.add_argument("--apart", type=float, default=60.0, help="minutes between stages (60)")
    parser.add_argument("--visits", type=int, default=2, help="processes of each operator (2)")
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


# -----------------------------------------------------------------------------
# The stages. Each takes a case if it can, and returns why not where it cannot.


class Stage(abc.ABC):
    """What the stages share.

    Args:
        journal: what is finished.
        store: of the rows.
        args: the command line.

    Cases are of the script's own kind; each has a name.
    """

    def __init__(self, journal: Journal, store: Store, args: argparse.Namespace) -> None:
        self.journal = journal
        self.store = store
        self.args = args

    @abc.abstractmethod
    def take(self, case: Any) -> str | None:
        """Take a case; return why it has to wait, or what it lacks; None or nothing if all is well.

        Raises:
            PydlbenchError: nothing came of it.
        """

    @abc.abstractmethod
    def done(self, case: Any) -> bool:
        """Whether there is nothing to be done."""

    def known(self, what: str, case: Any) -> dict[str, Any]:
        """Return an entry of the journal; empty where there is none."""
        return self.journal.get(f"{what} {case.name}") or {}

    def add(self, what: str, case: Any, **entry: Any) -> None:
        """Write an entry, with its time."""
        self.journal.add(f"{what} {case.name}", {"when": now(), **entry})

    def young(self, when: str | None) -> str | None:
        """Return how long something has to wait that something younger was measured for."""
        if when is None:
            return None
        then = dt.datetime.fromisoformat(when)
        left = 60 * self.args.apart - (dt.datetime.now(dt.UTC) - then).total_seconds()
        return f"waits {left / 60:.0f} minutes more" if left > 0 else None


class Rows(Stage):
    """Measures what a forecast lacks."""

    def done(self, case: Case) -> bool:
        """Whether all rows are there."""
        return self.known("rows", case).get("missing") == 0

    def take(self, case: Case) -> str | None:
        """Measure the rows of a case; those of another case that has them, too, are taken."""
        with Session(Options()) as session:
            found = kept_forecast(case.step, session, self.store, self.args.visits)
        self.add(
            "rows",
            case,
            measured=found.measured,
            stored=found.stored,
            missing=found.missing,
            reason=found.reason,
        )
        return found.reason


def kept_forecast(step: StepSpec, session: Session, store: Store, visits: int) -> ForecastRecord:
    """Forecast a step, measure what the store lacks for it, and keep that."""
    run = session.run
    store.begin(run, "forecast")
    status = "failed"
    try:

        def keep(table: str, document: dict[str, Any], key: str) -> None:
            store.add(run.id, Entry.of(table, document, key))

        found = forecast_step(step, session, store, visits=visits, keep=keep)
        status = "done"
    finally:
        store.finish(session.run, status)
    return found


class Steps(Stage):
    """Forecasts from the store alone, then runs the step in two processes."""

    def done(self, case: Case) -> bool:
        """Whether both are there."""
        return bool(self.known("second", case))

    def take(self, case: Case) -> str | None:
        """Forecast, write it down, then run the step."""
        with Session(Options()) as session:
            if not self.known("forecast", case):
                found = forecast_step(case.step, session, self.store, measures=False)
                if found.status != "ok":
                    return str(found.reason)
                if (why := self.young(found.newest_utc)) is not None:
                    return why
                told = found.to_dict()
                del told["terms"], told["calibration"]
                self.add("forecast", case, **told)
            for what in ("step", "second"):
                if not self.known(what, case):
                    seconds, ours = visited_step(case.step, session, _STEP_S)
                    self.add(what, case, seconds=seconds, undisturbed=ours)
        return None


class Again(Stage):
    """Runs the step once more."""

    def done(self, case: Case) -> bool:
        """Whether it is there."""
        return bool(self.known("again", case))

    def take(self, case: Case) -> str | None:
        """Run it, unless it has just run."""
        before = self.known("step", case)
        if not before:
            return "has not run yet"
        if (why := self.young(before["when"])) is not None:
            return why
        with Session(Options()) as session:
            seconds, ours = visited_step(case.step, session, _STEP_S)
        self.add("again", case, seconds=seconds, undisturbed=ours)
        return None


def now() -> str:
    """Return the time of day in ISO 8601."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


# -----------------------------------------------------------------------------
# The table.

TITLES = (
    *("model", "batch", "phase", "framework", "forecast", "interval", "measured", "error"),
    *("second process", "an hour later", "rows"),
)


def errors(journal: Journal, case: Case) -> dict[str, float]:
    """Return what of a case is known: (predicted - measured) / measured, by predictor.

    ``forecast`` and ``second`` (the same step in a second process) predict the first process's
    step; that predicts the one of an hour later (``again``).
    """

    def seconds(what: str, name: str = "seconds") -> float | None:
        return (journal.get(f"{what} {case.name}") or {}).get(name)

    measured, again = seconds("step"), seconds("again")
    pairs = {
        "forecast": (seconds("forecast", "forecast_s"), measured),
        "second": (seconds("second"), measured),
        "again": (measured, again),
    }
    return {
        name: (predicted - real) / real
        for name, (predicted, real) in pairs.items()
        if predicted is not None and real is not None
    }


def cells(journal: Journal, case: Case) -> list[str]:
    """Return a case under :data:`TITLES`."""
    told = journal.get(f"forecast {case.name}")
    step = journal.get(f"step {case.name}")
    head = [case.model, str(case.batch), case.phase, case.framework]
    if told is None or step is None:
        return [*head, *["-"] * (len(TITLES) - len(head))]
    scale, off = Scale.of(step["seconds"]), errors(journal, case)
    hours = dt.datetime.fromisoformat(told["when"]) - dt.datetime.fromisoformat(told["oldest_utc"])
    return [
        *head,
        scale.text(told["forecast_s"]),
        f"{scale.bare(told['ci_low'])} .. {scale.bare(told['ci_high'])}",
        scale.text(step["seconds"]) + ("" if step["undisturbed"] else " *"),
        *(percent(off.get(name), decimal=True, signed=True) for name in _PREDICTORS),
        f"{told['stored']}, {hours.total_seconds() / 3600:.1f} h",
    ]


_PREDICTORS = ("forecast", "second", "again")


def summary(journal: Journal, every: Sequence[Case]) -> list[list[str]]:
    """Return median and worst error by framework and phase, and of all."""
    groups: dict[str, list[Case]] = {"all": list(every)}
    for case in every:
        groups.setdefault(f"{case.framework}, {case.phase}", []).append(case)
    rows = []
    for name, some in groups.items():
        found = [errors(journal, case) for case in some]
        row = [name, str(sum("forecast" in one for one in found))]
        for predictor in _PREDICTORS:
            known = [abs(one[predictor]) for one in found if predictor in one]
            row += [percent(median(known), decimal=True) if known else "-"]
            row += [percent(max(known), decimal=True) if known else "-"]
        rows.append(row)
    return rows


def verdict(journal: Journal, every: Sequence[Case]) -> list[str]:
    """Return what all rows say together, held against the targets."""
    found = [errors(journal, case) for case in every]
    of = {name: [abs(one[name]) for one in found if name in one] for name in _PREDICTORS}
    if not of["forecast"]:
        return [f"0 of {len(every)} steps have run"]
    error = median(of["forecast"])
    inside = sum(_inside(journal, case) for case in every)
    lines = [
        f"{len(of['forecast'])} of {len(every)} steps have a forecast and have run",
        f"median error {percent(error, decimal=True)}, target {percent(TARGETS[0])}: "
        + ("met" if error <= TARGETS[0] else "MISSED"),
        f"the measured step lies in the forecast's interval in {inside} of {len(of['forecast'])}",
    ]
    baselines = [median(of[name]) for name in _PREDICTORS[1:] if of[name]]
    if len(baselines) == len(_PREDICTORS) - 1 and min(baselines) > 0:
        ratio = error / min(baselines)
        state = "met" if ratio <= TARGETS[1] else "MISSED"
        lines.append(f"{ratio:.1f} times the better baseline's, target {TARGETS[1]}: {state}")
    return lines


def _inside(journal: Journal, case: Case) -> bool:
    told = journal.get(f"forecast {case.name}")
    step = journal.get(f"step {case.name}")
    if told is None or step is None:
        return False
    return bool(told["ci_low"] <= step["seconds"] <= told["ci_high"])


def markdown(journal: Journal, every: Sequence[Case]) -> str:
    """Return verdict, summary and table."""
    days = sorted(one["when"][:10] for one in journal.entries().values())
    span = " to ".join(dict.fromkeys([days[0], days[-1]])) if days else "nothing yet"
    titles = ["steps", "n", *(f"{name}, {one}" for name in TITLES[7:10] for one in _BOTH)]
    right = [number > 3 for number in range(len(TITLES))]
    lines = [f"- {one}" for one in verdict(journal, every)]
    return (
        "\n\n".join(
            [
                "# Forecasts, and the steps that ran later",
                f"{read_cpu_facts().name}, {span}. {_HOW}",
                _LEGEND,
                "\n".join(lines),
                markdown_table(
                    titles, summary(journal, every), [n > 0 for n in range(len(titles))]
                ),
                markdown_table(TITLES, [cells(journal, case) for case in every], right),
            ]
        )
        + "\n"
    )


_BOTH = ("median", "worst")
_HOW = (
    "`python benchmarks/forecast.py`: rows; an hour or more later forecasts from stored rows only, "
    "then the steps, each in two processes; the steps again another hour later."
)
_LEGEND = (
    "Errors: (predicted - measured) / measured. `error`: the forecast against the step. `second "
    "process`: the same step in another process, right behind it. `an hour later`: the step "
    "against the same an hour later. `rows`: how many distinct operators, and the oldest one's "
    "age at the forecast. `*`: somebody else used the cores."
)


def work(stage: Stage, every: Sequence[Any], minutes: float | None) -> int:
    """Take all cases that are not done, until the time is over.

    Returns:
        0 if all of them are there, 1 if not, 130 after Ctrl-C.
    """
    begin = time.monotonic()
    try:
        for number, case in enumerate(every, start=1):
            if stage.done(case):
                continue
            spent = (time.monotonic() - begin) / 60
            if minutes is not None and spent > minutes:
                print(f"{minutes:g} minutes are over; the same command goes on with {case.name}")
                break
            try:
                why = stage.take(case)
            except PydlbenchError as error:
                why = " ".join(str(error).split())
            end = why or "done"
            print(f"{spent:5.1f} min  {number}/{len(every)}  {case.name}  {end}", flush=True)
    except KeyboardInterrupt:
        return 130
    return int(not all(map(stage.done, every)))


def main() -> int:
    """Do a stage, then write what is known.

    Exit 0 if all of it is there, 1 if not, 2 for bad input, 130 after Ctrl-C.
    """
    args = read()
    wrong = [name for name in args.models or () if name not in MODELS]
    if wrong:
        print(f"forecast: {wrong[0]}: not scored; there are {', '.join(MODELS)}", file=sys.stderr)
        return 2
    every = list(cases(args.models or list(MODELS)))
    journal = Journal(args.journal)
    code = 0
    if args.stage is not None:
        stages: dict[str, Callable[..., Stage]] = {"rows": Rows, "steps": Steps, "again": Again}
        with Store.open(args.store) as store:
            code = work(stages[args.stage](journal, store, args), every, args.minutes)
    text = markdown(journal, every)
    print(text)
    if args.md is not None:
        args.md.write_text(text, encoding="utf-8")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
