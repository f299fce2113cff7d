"""Other people's models: how many can be recorded and replayed, and how well they are forecast.

    python benchmarks/own_models.py --stage import --minutes 30
    python benchmarks/own_models.py --stage measure --minutes 60

``import`` uses all image classifiers of torchvision (no detection, segmentation or video), one
small model each of 60 families of timm, and 20 architectures of transformers in small
configurations. It records a forward and a training step of each model, and runs each distinct call
alone on made-up operands, in a process of its own with a time limit. Nothing is timed.

``measure`` uses 20 of them at the size of their papers, and ten held-out models, forward and
training: the step's forecast, from operators that are measured separately; then the step, in four
fresh processes; then its breakdown. Nothing else should run on the machine.

Each finished part is a line of the journal, from which the same command resumes. With
``--minutes 0`` it ends after one part, which takes a minute or two. Models are built by
``benchmarks/zoo.py``, which needs the three libraries.
"""

from __future__ import annotations

import abc
import argparse
import datetime as dt
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any, Final, NamedTuple

from forecast import Keep, errors, machine, missing_reason, run_steps, stored_run
from forecast import verdict as forecasts_verdict
from journal import Journal

from pydlbench.analysis import breakdown_run
from pydlbench.analysis.forecast import forecast_step
from pydlbench.analysis.mapped import listed
from pydlbench.analysis.rows import batches, now_utc
from pydlbench.backends.steps import requests
from pydlbench.calls.seen import meaning_of
from pydlbench.errors import PydlbenchError
from pydlbench.records.step import StepSpec
from pydlbench.records.trace import OperatorsFacts, RecordedCall
from pydlbench.records.user_model import UserInput, UserModelSpec
from pydlbench.report.text import markdown_table
from pydlbench.runner.options import RunnerOptions
from pydlbench.runner.session import Session
from pydlbench.store.store import Store
from pydlbench.units import Scale, percent

PHASES = ("forward", "training")
#: The parts of a step in the stage ``measure``, each in processes of its own.
PARTS = ("forecast", "step", "breakdown")
_ZOO: Final = os.path.relpath(Path(__file__).with_name("zoo.py"))
# Limit of one request to a worker.
_PATIENCE_S: Final = 280.0
#: Goals for the duration of a breakdown in seconds, by model and phase.
_AIMS: Final = {("resnet50", "forward"): 60.0, ("bert", "training"): 150.0}

#: Builder and name, its arguments, its input (none: the builder's own), and its optimizer, at the
#: size of the paper; batches so that a training step takes a second or two on two cores.
MEASURED: Final[tuple[tuple[str, str, dict[str, int], str, str], ...]] = (
    ("vision", "resnet50", {}, "8x3x224x224", "momentum"),
    ("language", "bert", {"batch": 2, "length": 128}, "", "adamw"),
    ("language", "gpt2", {"batch": 2, "length": 128}, "", "adamw"),
    ("vision", "vit_b_16", {}, "4x3x224x224", "adamw"),
    ("vision", "convnext_tiny", {}, "4x3x224x224", "adamw"),
    ("vision", "efficientnet_b0", {}, "8x3x224x224", "momentum"),
    ("vision", "mobilenet_v3_large", {}, "16x3x224x224", "momentum"),
    ("vision", "swin_t", {}, "4x3x224x224", "adamw"),
    ("vision", "densenet121", {}, "4x3x224x224", "momentum"),
    ("vision", "regnet_y_800mf", {}, "8x3x224x224", "momentum"),
    ("vision", "vgg11", {}, "4x3x224x224", "momentum"),
    ("vision", "shufflenet_v2_x1_0", {}, "16x3x224x224", "momentum"),
    ("vision", "squeezenet1_1", {}, "16x3x224x224", "momentum"),
    ("vision", "resnext50_32x4d", {}, "4x3x224x224", "momentum"),
    ("vision", "googlenet", {}, "8x3x224x224", "momentum"),
    ("language", "t5", {"batch": 2, "length": 128}, "", "adamw"),
    ("language", "distilbert", {"batch": 4, "length": 128}, "", "adamw"),
    ("language", "albert", {"batch": 1, "length": 128}, "", "adamw"),
    ("pictures", "convnextv2_atto", {"batch": 8}, "", "adamw"),
    ("pictures", "mixer_s32_224", {"batch": 8}, "", "adamw"),
)

#: The same for models that were never timed while the breakdown and the forecast were developed:
#: they show the errors for a new model.
HELD_OUT: Final[tuple[tuple[str, str, dict[str, int], str, str], ...]] = (
    ("vision", "wide_resnet50_2", {}, "4x3x224x224", "momentum"),
    ("language", "electra", {"batch": 4, "length": 128}, "", "adamw"),
    ("pictures", "poolformer_s12", {"batch": 8}, "", "adamw"),
    ("vision", "mnasnet1_0", {}, "16x3x224x224", "momentum"),
    ("pictures", "repvgg_a0", {"batch": 8}, "", "momentum"),
    ("language", "opt", {"batch": 2, "length": 128}, "", "adamw"),
    ("vision", "inception_v3", {}, "4x3x299x299", "momentum"),
    ("pictures", "hrnet_w18_small", {"batch": 4}, "", "momentum"),
    ("vision", "efficientnet_v2_s", {}, "4x3x224x224", "momentum"),
    ("pictures", "mobilevit_xxs", {"batch": 8}, "", "adamw"),
)


def read() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--stage", choices=tuple(_STAGES), help="without it only the tables")
    parser.add_argument("--minutes", type=float, help="begin no model after so long")
    parser.add_argument("--models", nargs="+", metavar="NAME", help="only these")
    parser.add_argument("--phases", nargs="+", choices=PHASES, help="measure: only these")
    parser.add_argument("--parts", nargs="+", choices=PARTS, help="measure: only these of each")
    parser.add_argument("--again", action="store_true", help="import: try anew what failed")
    parser.add_argument("--repetitions", type=int, default=2, help="measure: of each call (2)")
    parser.add_argument("--threads", type=int, help="one per core without it")
    parser.add_argument("--journal", type=Path, default=Path("own_models.jsonl"))
    parser.set_defaults(apart=0.0)  # a forecast is made right before its step
    parser.add_argument("--store", type=Path, default=Path("own_models.sqlite"))
    parser.add_argument("--md", type=Path, metavar="FILE", help="write the tables as Markdown")
    return parser.parse_args()


class Case(NamedTuple):
    """A model, and how a step of it is run.

    Attributes:
        builder: of ``zoo.py``.
        model: that it is asked for.
        options: what else it is asked for.
        input: shape; empty for the builder's own.
        optimizer: of training.
        phases: each is a step.
    """

    builder: str
    model: str
    options: Mapping[str, Any]
    input: str
    optimizer: str = "sgd"
    phases: tuple[str, ...] = PHASES

    @property
    def name(self) -> str:
        """Its name in the journal."""
        return " ".join([self.builder, self.model, *(self.phases if len(self.phases) == 1 else ())])

    def step(self, phase: str) -> StepSpec:
        """Return a step of it."""
        inputs = (UserInput.parse(self.input),) if self.input else ()
        return StepSpec(
            model=f"{_ZOO}:{self.builder}",
            options={"name": self.model, **self.options},
            own=UserModelSpec(inputs=inputs, optimizer=self.optimizer),
            phase=phase,
        )


def imported() -> list[Case]:
    """Return the models of the stage ``import``, small wherever they can be."""
    from torchvision import models
    from zoo import ARCHITECTURES, PICTURES

    # Their sizes are part of the model; an auxiliary classifier needs room for its window.
    sizes = {"vit": "1x3x224x224", "maxvit": "2x3x224x224", "inception": "2x3x299x299"}
    return [
        *(Case("language", name, {"small": True}, "") for name in ARCHITECTURES),
        *(Case("pictures", name, {"small": True}, "") for name in PICTURES),
        *(
            Case("vision", name, {}, sizes.get(name.partition("_")[0], "2x3x64x64"))
            for name in models.list_models(module=models)
        ),
    ]


def measured() -> list[Case]:
    """Return the steps of the stage ``measure``."""
    return [Case(*one, phases=(phase,)) for one in (*MEASURED, *HELD_OUT) for phase in PHASES]


# -----------------------------------------------------------------------------
# Recording and replaying.


class Stage(abc.ABC):
    """Base of the stages.

    Args:
        journal: what is finished.
        store: of the rows.
        args: the command line.

    Cases are of the script's own kind; each has a name.
    """

    #: What is taken of a case, a part at a time.
    parts: Sequence[str] = ("import",)

    def __init__(self, journal: Journal, store: Store, args: argparse.Namespace) -> None:
        self.journal = journal
        self.store = store
        self.args = args

    @abc.abstractmethod
    def take(self, case: Any) -> str | None:
        """Take a part of a case; return which, or what it lacks; None or nothing if all is well.

        Raises:
            PydlbenchError: nothing came of it.
        """

    @abc.abstractmethod
    def done(self, case: Any) -> bool:
        """Whether there is nothing to be done."""

    def known(self, what: str, case: Any) -> dict[str, Any]:
        """Return an entry of the journal; empty without one."""
        return self.journal.get(f"{what} {case.name}") or {}

    def add(self, what: str, case: Any, **entry: Any) -> None:
        """Write an entry, with its time."""
        self.journal.add(f"{what} {case.name}", {"when": now_utc(), **entry})


class Import(Stage):
    """Records the steps of a model and runs each distinct call alone."""

    def done(self, case: Case) -> bool:
        """Whether it was tried; with ``--again``, whether all of it went well."""
        found = self.known("import", case)
        return bool(found) and not (self.args.again and lacks(found["phases"]))

    def take(self, case: Case) -> str | None:
        """Try both steps in one process; what happens to one is in its entry."""
        options = RunnerOptions(threads=self.args.threads, timeout_s=_PATIENCE_S)
        with Session(options) as session:
            found = {phase: tried(case.step(phase), session) for phase in case.phases}
        self.add("import", case, phases=found)
        return lacks(found)


def lacks(phases: Mapping[str, Any]) -> str:
    """Return why a model's steps are not fully recorded and replayed; empty if they are."""
    found = []
    for phase, one in phases.items():
        if "reason" in one:
            found.append(f"{phase}: {one['reason']}")
        found += [f"{phase}: {name}: {why}" for name, why in one.get("refused", {}).items()]
    return "; ".join(found)


def tried(step: StepSpec, session: Session) -> dict[str, Any]:
    """Record a step and replay its calls; return the entry, or the reason for a failure."""
    begin = time.monotonic()
    try:
        facts = listed(step, session)
        refused = replayed(step, facts.calls, session)
    except PydlbenchError as error:
        return {"reason": " ".join(str(error).split())}
    why = {one.operator: refused[one.signature] for one in facts.calls if one.signature in refused}
    once = {one.signature for one in facts.calls}
    return {
        "distinct": len(once),
        "replayed": len(once - refused.keys()),
        "refused": why,
        **tally(facts.calls),
        "notes": list(facts.notes),
        "seconds": round(time.monotonic() - begin, 1),
    }


def replayed(step: StepSpec, calls: Sequence[RecordedCall], session: Session) -> dict[str, str]:
    """Run each distinct call alone; return the reasons of refused calls, by signature."""
    worker = session.worker(step.framework, step.device)
    refused: dict[str, str] = {}
    for batch in batches(list({one.signature: one for one in calls}.values())):
        kernel = worker.build(
            requests.request_calls,
            OperatorsFacts,
            spec=step.to_dict(),
            signatures=[one.signature for one in batch],
        )
        refused |= kernel.facts.refused
        kernel.release()
    return refused


def tally(calls: Iterable[RecordedCall]) -> dict[str, Any]:
    """Count calls and bytes, those with native layers, with a FLOP formula; views left out."""
    count = dict.fromkeys(("calls", "native", "formula"), 0)
    size = dict.fromkeys(count, 0)
    unknown: dict[str, int] = {}
    for one in calls:
        found = meaning_of(one)
        if found.kind == "view":
            continue
        whats = ["calls"]
        whats += ["native"] if found.layers else []
        whats += ["formula"] if found.flops is not None else []
        if found.flops is None:
            unknown[one.operator] = unknown.get(one.operator, 0) + one.count
        for what in whats:
            count[what] += one.count
            size[what] += one.count * one.bytes
    return {"count": count, "bytes": size, "unknown": unknown}


# -----------------------------------------------------------------------------
# Forecast, run and breakdown.


class Measure(Stage):
    """Forecasts a step, runs it, and breaks it down."""

    def done(self, case: Case) -> bool:
        """Whether all parts that are asked for are there."""
        return all(self.known(part, case) for part in self.parts)

    @property
    def parts(self) -> Sequence[str]:
        """The parts that are asked for."""
        return self.args.parts or PARTS

    def take(self, case: Case) -> str | None:
        """Take the first part that is missing, in processes of its own."""
        step = case.step(case.phases[0])
        options = RunnerOptions(threads=self.args.threads, budget_s=0.25, estimate=True)
        part = next(part for part in self.parts if not self.known(part, case))
        if part == "forecast":
            with Session(options) as session, stored_run(session, self.store, "forecast") as keep:
                self.add("forecast", case, **self._forecast(step, session, keep))
        elif part == "step":
            (ran,) = run_steps([step], self.args.threads)
            if reason := missing_reason(ran):
                raise PydlbenchError(reason)
            processes_s = list(ran.rounds_s.values())
            self.add("step", case, processes_s=processes_s, disturbed=ran.disturbed)
        else:
            with Session(options) as session, stored_run(session, self.store, "breakdown") as keep:
                self.add("breakdown", case, **broken_down(step, session, keep))
        return part

    def _forecast(self, step: StepSpec, session: Session, keep: Keep) -> dict[str, Any]:
        """Forecast a step from what is measured for it now, and return the record without terms."""
        begin = time.monotonic()
        made = forecast_step(
            step, session, self.store, visits=self.args.repetitions, keep=keep
        ).to_dict()
        del made["terms"]
        return {**made, "took_s": time.monotonic() - begin}


def broken_down(step: StepSpec, session: Session, keep: Keep) -> dict[str, Any]:
    """Break a step down as the command does; return the judged numbers."""
    begin = time.monotonic()
    moments: list[tuple[float, str]] = []

    def tell(what: str) -> None:
        moments.append((time.monotonic(), what))

    *_, record = breakdown_run.broken_down(
        step, session, advance=lambda _done, _of, what: tell(what.partition(",")[0])
    )
    found = record.to_dict()
    keep("breakdown", found, "")
    tell("end")
    parts: dict[str, float] = {}
    for (start, what), (end, _) in pairwise(moments):
        parts[what] = parts.get(what, 0.0) + end - start
    names = ("measured_s", "levels", "terms", "additivity_error", "unexplained", "unexplained_low")
    more = ("unexplained_high", "not_measured", "contradictions", "disturbed", "notes", "batch")
    return {
        **{name: found[name] for name in (*names, *more)},
        "took_s": time.monotonic() - begin,
        "parts_s": {name: round(seconds, 1) for name, seconds in parts.items()},
    }


# -----------------------------------------------------------------------------
# The tables.

_MODULES: Final = ("torch", "torchvision", "timm", "transformers")
_HEAD: Final = "# Models of other people's libraries"
_IMPORTED: Final = (
    "`python benchmarks/own_models.py`: a forward and a "
    "training step of each recorded, and each distinct call run alone on operands made up from its "
    "signature. `native` and `formula`: shares of the calls, and of the bytes of their operands "
    "and results, that have native layers and a FLOP formula; views are left out."
)
_LIBRARIES: Final = {"vision": "torchvision", "pictures": "timm", "language": "transformers"}


def share(part: float, whole: float) -> str:
    """Return a share as text; a dash if the whole is zero."""
    return percent(part / whole, decimal=True) if whole else "-"


def import_table(journal: Journal) -> list[str]:
    """Return a line for each library, then the reasons of what is missing."""
    entries = journal.entries("import ")
    if not entries:
        return []
    every = {name.removeprefix("import "): one for name, one in entries.items()}
    groups = {
        library: {name: one for name, one in every.items() if name.startswith(builder)}
        for builder, library in _LIBRARIES.items()
    }
    rows = []
    for library, models in {**groups, "all": every}.items():
        steps = [step for one in models.values() for step in one["phases"].values()]
        there = [one for one in steps if "reason" not in one]

        def total(kind: str, what: str, there: list[Any] = there) -> int:
            return sum(one[kind][what] for one in there)

        recorded = sum(
            all("reason" not in step for step in one["phases"].values()) for one in models.values()
        )
        whole = sum(not lacks(one["phases"]) for one in models.values())
        distinct = sum(one["distinct"] for one in there)
        again = sum(one["replayed"] for one in there)
        rows.append(
            [
                library,
                str(len(models)),
                f"{recorded} ({share(recorded, len(models))})",
                f"{whole} ({share(whole, len(models))})",
                f"{again} of {distinct} ({share(again, distinct)})",
                *(
                    share(total(kind, what), total(kind, "calls"))
                    for what in ("native", "formula")
                    for kind in ("count", "bytes")
                ),
            ]
        )
    titles = ("library", "models", "recorded", "wholly replayed", "distinct calls replayed")
    ends = ("native, calls", "native, bytes", "formula, calls", "formula, bytes")
    lines = [_IMPORTED, markdown_table([*titles, *ends], rows, [n > 0 for n in range(9)])]
    wrong = {name: lacks(one["phases"]) for name, one in every.items()}
    reasons = [f"- {name}: {why}" for name, why in wrong.items() if why]
    varied = [
        f"- {name}, {phase}: {note}"
        for name, one in every.items()
        for phase, step in one["phases"].items()
        for note in step.get("notes", ())
        if "other calls" in note
    ]
    unknown: dict[str, int] = {}
    for one in every.values():
        for step in one["phases"].values():
            for operator, number in step.get("unknown", {}).items():
                unknown[operator] = unknown.get(operator, 0) + number
    few = sorted(unknown.items(), key=lambda item: -item[1])
    lines.append("What is missing:\n\n" + ("\n".join(reasons) or "- nothing"))
    if varied:
        lines.append("Steps that are not the same twice:\n\n" + "\n".join(varied))
    if few:
        words = ", ".join(f"{name} ({number})" for name, number in few[:20])
        lines.append(f"Calls without a FLOP formula: {words}")
    return lines


def measure_tables(journal: Journal) -> list[str]:
    """Return a line for each step, and all held against the aims; then the models held out."""
    names = {name for _, name, *_ in HELD_OUT}
    parts = [[one for one in measured() if (one.model in names) is out] for out in (False, True)]
    known, held_out = (measure_table(cases, journal) for cases in parts)
    text = "\n".join([*known, *held_out])
    columns = [f"`{name}`: {what}." for name, what in _COLUMNS.items() if f"| {name} |" in text]
    return [
        *([" ".join([_LEGEND, *columns])] if text else []),
        *known,
        *(["## Held out", _HELD_OUT, *held_out] if held_out else []),
    ]


def measure_table(cases: Sequence[Case], journal: Journal) -> list[str]:
    """Return a line for each step, and all held against the aims."""
    rows, judged, durations, scored = [], [], [], []
    for case in cases:
        told, step, found = (journal.get(f"{part} {case.name}") for part in PARTS)
        name = f"{case.model} {case.phases[0]}"
        if step is not None:
            seconds, disturbed = geometric_mean(step["processes_s"]), step["disturbed"]
        elif found is not None:
            seconds, disturbed = found["measured_s"]["median"], found["disturbed"]
        else:
            continue
        number: dict[str, float | None] = dict.fromkeys(_NUMBERS)
        if told is not None and step is not None and made_before(told, step):
            scored.append({**told, **step, "interval_s": [told["ci_low"], told["ci_high"]]})
            number["forecast"], _ = errors(scored[-1])
        if found is not None:
            number |= {
                "again": None if step is None else found["measured_s"]["median"] / seconds - 1,
                "additivity": found["additivity_error"],
                "unexplained": found["unexplained"],
                **unexplained(found),
            }
            if aim_s := _AIMS.get((case.model, case.phases[0])):
                took = f"{found['took_s']:.0f} s (aim {aim_s:.0f} s)"
                durations.append(f"breakdown of {name}: {took}")
        judged.append(number)
        rows.append(
            [
                case.model,
                str((found or told or {}).get("batch", "-")),
                case.phases[0],
                Scale.fit(seconds).text(seconds) + (" *" if disturbed else ""),
                percent(number["forecast"], decimal=True, signed=True)
                + reach(told, number["forecast"]),
                *(percent(number[one], decimal=True, signed=True) for one in ("again", *_SIGNED)),
                percent(number["half"], decimal=True),
                *("-" if one is None else f"{one['took_s']:.0f} s" for one in (told, found)),
            ]
        )
    if not rows:
        return []
    titles = ("model", "batch", "phase", "step", "forecast", "step again")
    middle = ("additivity", "unexplained")
    ends = ("half-width", "forecast took", "breakdown took")
    every = [*titles, *middle, *ends]
    there = [n for n in range(len(every)) if any(row[n] != "-" for row in rows)]
    shown = [[row[n] for n in there] for row in rows]
    table = markdown_table([every[n] for n in there], shown, [n > 2 for n in there])
    said = [*forecasts_verdict(scored), f"{len(judged)} of {len(cases)} steps", *verdict(judged)]
    said += [*durations, *(_without(part, cases, journal) for part in PARTS)]
    return [table, "\n".join(f"- {one}" for one in said if one)]


def _without(part: str, cases: Sequence[Case], journal: Journal) -> str:
    """Return the steps without such a part as text; empty if there are none."""
    every = [f"{case.model} {case.phases[0]}" for case in cases]
    entries = [journal.get(f"{part} {case.name}") for case in cases]
    names = [name for name, entry in zip(every, entries, strict=True) if entry is None]
    which = "all" if names == every else ", ".join(names)
    return f"without a {part} yet: {which}" if names else ""


def unexplained(found: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the judged numbers of the unexplained part, by the names of :data:`_JUDGED`."""
    low, high = found["unexplained_low"], found["unexplained_high"]
    known = None not in (low, high)
    return {
        "half": (high - low) / 2 if known else None,
        "outside": float(not low <= 0 <= high) if known else None,
        "lacking": float(bool(found["not_measured"])),
    }


def made_before(told: Mapping[str, Any], step: Mapping[str, Any]) -> bool:
    """Whether a forecast is complete, and was made before its step ran."""
    made, ran = (dt.datetime.fromisoformat(one) for one in (told["created_utc"], step["when"]))
    return bool(told["status"] == "ok") and made <= ran


def reach(told: Mapping[str, Any] | None, error: float | None) -> str:
    """Return the width of a forecast's interval, with a star if its rows were disturbed."""
    if told is None or error is None:
        return ""
    half = (told["ci_high"] - told["ci_low"]) / 2 / told["forecast_s"]
    star = (
        " *"
        if any(one.startswith("other processes used the cores") for one in told["notes"])
        else ""
    )
    return f" (± {percent(half)}){star}"


_SIGNED: Final = ("additivity", "unexplained")
_NUMBERS: Final = ("forecast", "again", *_SIGNED, "half", "outside", "lacking")
_LEGEND: Final = (
    "`python benchmarks/own_models.py --stage measure`: steps at the size of their papers. Errors "
    "are (predicted - measured) / measured. `*`: other processes used the cores."
)
#: Texts of the columns that a table has.
_COLUMNS: Final = {
    "step": "geometric mean of fresh processes",
    "forecast": "error of the forecast, made before the step ran (and the half width of its own "
    "interval)",
    "step again": "how much longer the same step took in the breakdown, at another time in other "
    "processes, which no forecast can know",
    "additivity": "error of the sum of the calls alone within the breakdown",
    "half-width": "of the 95 % interval of what is unexplained",
    "breakdown took": "all of it in new processes, with the search for native kernels",
}

_HELD_OUT: Final = (
    "Models of which nobody had timed a step when the breakdown and the forecast were built. Later "
    "changes were made by people who knew their results; no number was fitted to them."
)

#: Of a median.
_JUDGED: Final = {
    "additivity": "no aim",
    "unexplained": "no aim",
    "half": "aim: at most 2 %",
}
#: Of a share of the breakdowns.
_SHARES: Final = {
    "outside": "zero lies outside of the unexplained interval: {} (aim: at most 10 %)",
    "lacking": "breakdowns that lack an experiment: {} (aim: none)",
}


def verdict(judged: Sequence[Mapping[str, float | None]]) -> list[str]:
    """Return the verdict over all steps, beside the goals."""

    def known(name: str) -> list[float]:
        return [abs(one) for number in judged if (one := number[name]) is not None]

    lines = []
    if again := known("again"):
        lines.append(
            "the same step in another process, at another time: "
            f"{percent(median(again), decimal=True)} apart in the median, "
            f"{percent(max(again), decimal=True)} at the most"
        )
    for name, aim in _JUDGED.items():
        if found := known(name):
            middle = percent(median(found), decimal=True)
            lines.append(f"{name}: {middle} in the median of {len(found)} ({aim})")
    for name, words in _SHARES.items():
        if found := known(name):
            lines.append(words.format(f"{percent(sum(found) / len(found))} of {len(found)}"))
    return lines


_STAGES: Final[dict[str, tuple[Callable[..., Stage], Callable[[], list[Case]]]]] = {
    "import": (Import, imported),
    "measure": (Measure, measured),
}


def work(stage: Stage, every: Sequence[Any], minutes: float | None) -> int:
    """Run all cases that are not done, until the time is over.

    Returns:
        0 if all of them are there, 1 if not, 130 after Ctrl-C.
    """
    begin = time.monotonic()
    try:
        parts = [(number, case) for number, case in enumerate(every, 1) for _ in stage.parts]
        failed: set[int] = set()
        taken = 0
        for number, case in parts:
            if number in failed or stage.done(case):
                continue
            spent = (time.monotonic() - begin) / 60
            if taken and minutes is not None and spent > minutes:
                print(f"{minutes:g} minutes are over; the same command goes on with {case.name}")
                break
            taken += 1
            try:
                why = stage.take(case)
            except PydlbenchError as error:
                why = " ".join(str(error).split())
                failed.add(number)
            end = why or "done"
            print(f"{spent:5.1f} min  {number}/{len(every)}  {case.name}  {end}", flush=True)
    except KeyboardInterrupt:
        return 130
    return int(not all(map(stage.done, every)))


def main() -> int:
    """Run a stage, then print the results.

    Exit 0 if all of the stage is there, 1 if not, 2 for bad input, 130 after Ctrl-C.
    """
    args = read()
    journal = Journal(args.journal)
    code = 0
    for option in ("phases", "parts"):
        if getattr(args, option) is not None and args.stage != "measure":
            print(f"own_models: --{option}: of --stage measure; nearest: leave it out")
            return 2
    if args.stage is not None:
        make, cases = _STAGES[args.stage]
        every = cases()
        wrong = [name for name in args.models or () if name not in {one.model for one in every}]
        if wrong:
            print(f"own_models: {wrong[0]}: not in this stage")
            return 2
        every = [one for one in every if not args.models or one.model in args.models]
        every = [one for one in every if set(one.phases) <= set(args.phases or PHASES)]
        with Store.open(args.store) as store:
            code = work(make(journal, store, args), every, args.minutes)
    parts = [_HEAD, machine(_MODULES), *import_table(journal), *measure_tables(journal)]
    text = "\n\n".join(parts) + "\n"
    print(text)
    if args.md is not None:
        args.md.write_text(text, encoding="utf-8")
    return code


if __name__ == "__main__":
    raise SystemExit(main())
