"""Native chains of whole steps beside the same steps in PyTorch and TensorFlow, interleaved.

    python benchmarks/native_chain.py --resume native-chain.jsonl --md native-chain.md

For each model and phase: the native rows of the step with hot and with cold caches; the native
chain, held against PyTorch's output and gradients; then chain and frameworks' steps in turn, round
by round. Of each framework the mode that a few trial steps find to be the fastest takes part.
A ratio is the median of the rounds' ratios, chain over step.

With ``--resume`` each finished row is a line of that file at once, and a run that was cut off goes
on there. The page is written anew after each row. ``--seconds`` starts no row after so long;
``--budget 0`` takes no native rows, which are what most of the time goes into.
"""

from __future__ import annotations

import argparse
import datetime as dt
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from journal import Journal

from pydlbench.analysis.chain import prepare_native_chain
from pydlbench.analysis.estimate import estimate, plan
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.errors import PydlbenchError
from pydlbench.models import build_model
from pydlbench.records.chain import ChainFacts
from pydlbench.records.measurement import Measurement
from pydlbench.records.specs import KernelSpec
from pydlbench.records.step import StepFacts, StepPreparation, StepSpec
from pydlbench.report.text import markdown_table
from pydlbench.runner.options import Options
from pydlbench.runner.rows import summary_of
from pydlbench.runner.session import Session
from pydlbench.steps.prepare import prepare_step
from pydlbench.study.estimate import contrast
from pydlbench.study.estimate import estimate as estimate_series
from pydlbench.study.loop import Study, Subject, random_order
from pydlbench.study.table import Series
from pydlbench.timing.chunk import Request
from pydlbench.timing.policy import Policy
from pydlbench.units import Scale
from pydlbench.words import FRAMEWORK_MODES, FRAMEWORKS
from pydlbench.workers.host import RemoteKernel, releasing

MODELS = ("alexnet-owt:16", "vgg11:4", "resnet50:4")
PHASES = ("forward", "training")
TRIALS = 3

Row = dict[str, Any]


def read() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--models", nargs="+", default=list(MODELS), metavar="NAME:BATCH")
    parser.add_argument("--phases", nargs="+", default=list(PHASES), choices=PHASES)
    modes = [mode for framework in FRAMEWORKS for mode in FRAMEWORK_MODES[framework]]
    parser.add_argument("--modes", nargs="+", default=modes, choices=modes, help="to choose among")
    parser.add_argument("--time", type=float, default=6.0, help="seconds of sampling for each step")
    parser.add_argument("--rounds", type=int, default=8, help="at least, whatever the time")
    parser.add_argument("--budget", type=float, default=0.1, help="seconds per native row")
    parser.add_argument("--seconds", type=float, help="start no row after so long")
    parser.add_argument("--resume", type=Path, metavar="FILE", help="journal; goes on there")
    parser.add_argument("--md", type=Path, metavar="FILE", help="write the page")
    return parser.parse_args()


# -----------------------------------------------------------------------------
# One row: a model and a phase.


def native_rows(
    case: StepSpec, session: Session
) -> tuple[dict[KernelSpec, Measurement], float, float, int]:
    """Return the step's native rows, their sums with hot and with cold caches, what is missing."""
    model = build_model(case.model, case.batch, **case.options)
    wanted = plan(model, case.phase, case.precision, "cpu", session.cache_bytes("cpu"))
    rows = dict(session.measure(wanted.specs))
    total = estimate(wanted, rows)
    return rows, total.estimate.hot_s, total.estimate.cold_s, len(total.missing)


def fastest_mode(
    case: StepSpec, framework: str, modes: Sequence[str], session: Session
) -> tuple[RemoteKernel[StepFacts], StepSpec]:
    """Return a framework's step in the mode that a few trials find to be the fastest."""
    best: tuple[float, RemoteKernel[StepFacts], StepSpec] | None = None
    for mode in modes:
        own = StepSpec.from_dict({**case.to_dict(), "framework": framework, "mode": mode})
        kernel = prepare_step(own, session, preparation=StepPreparation(checks=False))
        seconds = min(kernel.sample(Request(samples=TRIALS, untimed=1)).seconds)
        if best is not None and best[0] <= seconds:
            kernel.release()
            continue
        if best is not None:
            best[1].release()
        best = seconds, kernel, own
    assert best is not None, "there is a mode"
    return best[1], best[2]


def measured(case: StepSpec, args: argparse.Namespace) -> Row:
    """Return one row of the table."""
    options = Options(estimate=True, budget_s=args.budget or 0.1)
    with Session(options) as session:
        rows: dict[KernelSpec, Measurement] = {}
        hot = cold = None
        missing = 0
        if args.budget:
            rows, hot, cold, missing = native_rows(case, session)
        chain = prepare_native_chain(case, session, rows)
        kernels: list[RemoteKernel[Any]] = [chain]
        with releasing(kernels):
            steps: list[StepSpec] = []
            for framework in FRAMEWORKS:
                modes = [mode for mode in FRAMEWORK_MODES[framework] if mode in args.modes]
                if modes:
                    kernel, own = fastest_mode(case, framework, modes, session)
                    kernels.append(kernel)
                    steps.append(own)
            policy = Policy(budget_s=args.time, visits=args.rounds)
            study = Study(random_order(0), session.interference)
            subjects = [
                Subject(key=number, sample=kernel.sample, policy=policy)
                for number, kernel in enumerate(kernels)
            ]
            for error in study.take(subjects, rounds=args.rounds).values():
                raise error
    own, *others = (study.table.series(number) for number in range(len(kernels)))
    named = zip(steps, others, strict=True)
    return {
        "status": "ok",
        "hot_s": hot,
        "cold_s": cold,
        "missing": missing,
        **compared(own, {step.framework: (str(step.mode), series) for step, series in named}),
        **described(chain.facts),
    }


def compared(own: Series, others: dict[str, tuple[str, Series]]) -> Row:
    """Return the time of a chain, and its ratios to steps.

    Args:
        own: the chain's visits.
        others: by framework, the mode of its step, and the step's visits in the same rounds.
    """
    ratios = {}
    for framework, (mode, samples) in others.items():
        ratio = contrast(own, samples)
        assert ratio is not None, "they shared all rounds"
        interval = ratio.interval
        ratios[framework] = {
            "mode": mode,
            "median_s": samples.median,
            "ratio": ratio.median,
            "low": None if interval is None else interval.low,
            "high": None if interval is None else interval.high,
            "rounds": ratio.rounds,
            "contended": ratio.contended,
        }
    time_s = summary_of(own)
    return {
        "chain_s": time_s.median,
        "low_s": time_s.ci_low,
        "high_s": time_s.ci_high,
        "contended": estimate_series(own).contended,
        "ratios": ratios,
    }


def described(facts: ChainFacts) -> Row:
    """Return what the page says of a chain."""
    return {
        "layouts": facts.layouts,
        "tried": facts.tried,
        "kernels": len(facts.kernels),
        "kernels_s": sum(one.seconds for one in facts.kernels),
        "reorders": len(facts.reorders),
        "reorder_s": facts.reorder_s,
        "reorder_bytes": sum(one.bytes for one in facts.reorders),
        "longest": [
            [one.name, one.layout, one.seconds]
            for one in sorted(facts.reorders, key=lambda one: -one.seconds)[:3]
        ],
        "memory": facts.memory,
        "checks": [f"{one.name}: {one.detail}" for one in facts.checks],
        "notes": list(facts.notes),
        "library": facts.library,
    }


# -----------------------------------------------------------------------------
# The page.

TITLES = (
    *("model", "phase", "batch", "native sum, hot .. cold", "chain", "of it conversions"),
    *("bracketed", "of PyTorch's step", "of TensorFlow's step"),
)


def ratio_text(row: Row, framework: str) -> str:
    """Return ``0.62 (0.61 .. 0.63) eager``."""
    one = row["ratios"].get(framework)
    if one is None:
        return "-"
    spread = "no interval" if one["low"] is None else f"{one['low']:.3f} .. {one['high']:.3f}"
    shared = ", contended" if one["contended"] or row["contended"] else ""
    return f"{one['ratio']:.3f} ({spread}) {one['mode']}{shared}"


def bracket(row: Row) -> str:
    """Return whether the native sum brackets the chain, or by how much it does not.

    Conversions are in no native row, so they are named beside what lies above.
    """
    if row["hot_s"] is None:
        return "-"
    if row["missing"]:
        return f"no sum: {row['missing']} rows are missing"
    if row["chain_s"] < row["hot_s"]:
        return f"no, {1 - row['chain_s'] / row['hot_s']:.1%} below hot"
    if row["chain_s"] <= row["cold_s"]:
        return "yes"
    over = row["chain_s"] - row["cold_s"]
    share = f"no, {over / row['cold_s']:.1%} above cold"
    if over <= row["reorder_s"]:
        return f"{share}: less than its conversions take, which no row has"
    return share


def cells(name: str, row: Row) -> list[str]:
    """Return a row under :data:`TITLES`; one without a result says why."""
    model, batch, phase = name.split()
    if row["status"] != "ok":
        return [model, phase, batch, f"{row['status']}: {row['reason']}", *[""] * 5]
    scale = Scale.fit(row["chain_s"])
    known = row["hot_s"] is not None
    return [
        *(model, phase, batch),
        f"{scale.bare(row['hot_s'])} .. {scale.text(row['cold_s'])}" if known else "-",
        f"{scale.text(row['chain_s'])} ({scale.bare(row['low_s'])} .. {scale.bare(row['high_s'])})"
        if row["low_s"] is not None
        else scale.text(row["chain_s"]),
        f"{scale.text(row['reorder_s'])}, {row['reorders']} of them",
        bracket(row),
        ratio_text(row, "torch"),
        ratio_text(row, "tensorflow"),
    ]


def remarks(name: str, row: Row) -> list[str]:
    """Return what is to be said of a row below the table."""
    if row["status"] != "ok":
        return []
    scale = Scale.fit(row["chain_s"])
    tried = ", ".join(f"{way} {scale.text(seconds)}" for way, seconds in row["tried"].items())
    longest = "; ".join(
        f"{tensor} ({layout}) {scale.text(seconds)}" for tensor, layout, seconds in row["longest"]
    )
    memory = {what: f"{size / 1e6:.1f} MB" for what, size in row["memory"].items()}
    text = (
        f"**{name}**: {row['library']}, convolutions {row['layouts']} (tried: {tried}). "
        f"Its {row['kernels']} kernels take {scale.text(row['kernels_s'])} by the clock between "
        f"them. Longest conversions: {longest or 'none'}. Memory: {memory['kept']} kept, "
        f"{memory['shared']} shared by lifetime ({memory['unshared']} without sharing), "
        f"{memory['scratch']} scratch. Checked: {'; '.join(row['checks']) or 'nothing'}. "
        f"{'; '.join(row['notes'])}."
    )
    return [text]


def page(rows: dict[str, Row], processor: str) -> str:
    """Return the table and the remarks as Markdown."""
    right = [number in (2, 4, 5) for number in range(len(TITLES))]
    table = markdown_table(TITLES, [cells(name, row) for name, row in rows.items()], right)
    days = sorted({row["when"][:10] for row in rows.values()})
    where = f"{processor}, {' to '.join(dict.fromkeys([days[0], days[-1]]))}" if days else processor
    says = [one for name, row in rows.items() for one in remarks(name, row)]
    how = (
        "Chain: the step's native kernels in order on each other's outputs, with the conversions "
        "between layouts and the packing of weights that the step changes. Ratios: chain over "
        "step, median of rounds in turn, with a 95 % interval. The native rows were taken before, "
        "one by one."
    )
    return "\n\n".join(["# Native chains", where, how, table, *says]) + "\n"


def main() -> int:
    """Take the rows that are not in the journal yet; exit 0 if all have a result, else 1."""
    args = read()
    begin = time.monotonic()
    processor = read_cpu_facts().name
    journal = Journal(args.resume) if args.resume else None
    rows: dict[str, Row] = {}
    wanted = [(word, phase) for word in args.models for phase in args.phases]
    for word, phase in wanted:
        model, _, batch = word.partition(":")
        name = f"{model} {batch or build_model(model).batch} {phase}"
        known = None if journal is None else journal.get(name)
        if known is not None and known["status"] == "ok":
            rows[name] = known
            continue
        if args.seconds is not None and time.monotonic() - begin > args.seconds:
            continue
        case = StepSpec(model=model, batch=int(name.split()[1]), phase=phase)
        try:
            row = measured(case, args)
        except PydlbenchError as error:
            row = {"status": "failed", "reason": str(error)}
        row |= {"when": dt.datetime.now(dt.UTC).isoformat(timespec="seconds")}
        rows[name] = row
        if journal is not None:
            journal.add(name, row)
        print("  ".join(cells(name, row)), flush=True)
        if args.md is not None:
            args.md.write_text(page(rows, processor))
    if args.md is not None and rows:
        args.md.write_text(page(rows, processor))
    left = len(wanted) - sum(row["status"] == "ok" for row in rows.values())
    if left:
        print(f"{left} of {len(wanted)} rows have no result", file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    raise SystemExit(main())
