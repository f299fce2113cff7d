"""``pydlbench compare``: two runs row by row with a verdict, or results beside published ones."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

from pydlbench.cli.compare_options import CompareOptions
from pydlbench.cli.machine import reading_store
from pydlbench.cli.options import flag_of
from pydlbench.cli.output import Outputs, gate, reading_runs, without_collection
from pydlbench.cli.terminal import ProgressLine, tell
from pydlbench.errors import PydlbenchError, UnsupportedError, UsageError
from pydlbench.units import some_names

if TYPE_CHECKING:
    from pydlbench.compare.comparison import Comparison
    from pydlbench.compare.interleaved import RerunPair
    from pydlbench.compare.rows import Matching, Side, SideRow
    from pydlbench.records.measurement import KernelSpec
    from pydlbench.records.step import StepSpec
    from pydlbench.report.blocks import Block
    from pydlbench.store.documents import Loaded

#: Options of ``--interleave`` and ``--python``.
_MEASURING: Final = ("repetitions", "budget", "seed")
#: Options of ``layers`` and ``step`` that name what two installations measure.
_LAYERS_OR_STEP: Final = (
    *("shape", "batch", "pass_", "precision", "backend", "framework", "mode", "phase", "input"),
    "threads",
)
#: Options for the steps of two models only.
_MODELS: Final = (
    *("set_", "set_a", "set_b", "swap", "loss", "optimizer", "train_mode", "eval_mode", "autocast"),
    *("layout", "device", "minutes"),
)
#: Those that kernels do not have either.
_MODELS_ONLY: Final = (*_MODELS[:-2], "framework", "phase", "input")
#: Options that have no meaning with ``--published``.
_NOT_PUBLISHED: Final = (
    *("interleave", "python", "fail_on", "same", "all"),
    *(*_MEASURING, *_LAYERS_OR_STEP, *_MODELS, "cache"),
)
#: Minimum change of a node that counts, as a fraction; the same margin as in ``fleet``.
_FLEET_MARGIN: Final = 0.03


def run(args: CompareOptions, open_host: Callable[..., Any] | None = None) -> int:
    """Compare two runs or installations, or show published figures.

    Args:
        args: the command's options.
        open_host: opens a session for a side, with threads and a seed, for ``--interleave``.

    Returns:
        0; 3 if a row is slower than ``--fail-on`` allows; 4 if that cannot be told; 130 after
        Ctrl-C.

    Raises:
        UsageError: bad input, no such run, or rows that cannot be matched.
        PydlbenchError: nothing was timed in both.
    """
    from pydlbench.compare.comparison import MARGIN
    from pydlbench.compare.rows import side_of
    from pydlbench.compare.stored import compare_sides
    from pydlbench.store.documents import load

    outputs = Outputs.from_options(args)
    _refuse(args)
    if args.published:
        with reading_runs(args.runs):
            return run_published(args, outputs)
    if _are_kernels(args) or _are_models(args):
        return _run_measured(args)
    margin = MARGIN if args.same is None else args.same
    if args.python:
        return _run_installations(args, outputs, margin)
    if len(args.runs) != 2:  # A and B
        raise UsageError(
            f"RUN: {len(args.runs)} given, two are compared; nearest: pydlbench compare last~1 last"
        )
    if args.interleave:
        return _run_interleaved(args, outputs, margin, open_host)
    with without_collection(), reading_runs(args.runs):
        with reading_store(args.store) as store:
            runs = [load(text, store) for text in args.runs]
            if any(item.info.kind == "fleet" for item in runs):
                return _compare_fleets(args, runs, outputs)
            if any(item.info.kind == "trace" for item in runs):
                return _compare_traces(args, runs, outputs)
            a, b = map(side_of, args.runs, runs)
            comparison = compare_sides(a, b, store, margin)
        return _conclude(args, comparison, outputs)


def _conclude(
    args: CompareOptions,
    comparison: Comparison,
    outputs: Outputs,
    unfinished: Sequence[str] | None = None,
) -> int:
    """Show a comparison, and return the command's exit code.

    Args:
        args: the command's options.
        comparison: the comparison.
        outputs: where it is shown.
        unfinished: labels of the rows that an interrupted run lacks in part; None for a whole one.

    Raises:
        PydlbenchError: no row was timed in both, and the run was not interrupted.
    """
    if unfinished is None and not comparison.rows:
        raise PydlbenchError(no_rows_text(comparison))
    show(comparison, outputs, everything=args.all, unfinished=unfinished)
    if unfinished is None:
        return exit_code(args, comparison)
    tell(f"interrupted; rows that lack repetitions: {some_names(unfinished) or 'none'}")
    return 130


def _refuse(args: CompareOptions) -> None:
    """Refuse options that have no meaning beside the others.

    Raises:
        UsageError: one of them was given.
    """
    if args.published:
        args.refuse(_NOT_PUBLISHED, "with --published")
    else:
        args.refuse(("model",), "without --published", "--published")
    if _are_kernels(args):
        args.refuse((*_MODELS_ONLY, "backend"), "with kernels")
        return
    args.refuse(("cache",), "without kernels", "--shape conv3")
    if _are_models(args):
        args.refuse(("pass_", "backend"), "with models")
        return
    args.refuse(_MODELS, "without models", "pydlbench compare old.py:build new.py:build")
    if args.python:
        args.refuse(("interleave",), "with --python")
        return
    args.refuse(_LAYERS_OR_STEP, "without --python")
    if not args.interleave:
        args.refuse(_MEASURING, "without --interleave", "--interleave")


def _are_models(args: CompareOptions) -> bool:
    """Whether A and B are models, whose steps are timed."""
    from pydlbench.models import model_names
    from pydlbench.models.user_model import is_onnx

    if args.interleave or args.published or args.python:
        return False
    own = any(":" in name or name.endswith(".py") or is_onnx(name) for name in args.runs)
    known = bool(args.runs) and not {*args.runs} - {*model_names()}
    return own or known or bool(args.set_a or args.set_b or args.swap)


def _are_kernels(args: CompareOptions) -> bool:
    """Whether A and B are kernels or backends, which compute the layers of ``--shape``."""
    return bool(args.shape) and not (args.interleave or args.published or args.python)


def _run_measured(args: CompareOptions) -> int:
    """Compare two models or kernels; return the exit code: 1 if one computes something else."""
    from pydlbench.cli import compare_kernels, compare_models

    read = compare_kernels.read_task if _are_kernels(args) else compare_models.read_task
    code, compared = compare_models.run_measured(args, *read(args))
    if code or compared is None:
        return code
    return int(compared.wrong) or exit_code(args, compared)


def _compare_traces(args: CompareOptions, runs: Sequence[Loaded], outputs: Outputs) -> int:
    """Compare the recorded steps of two runs, as ``pydlbench trace`` compares files.

    Raises:
        UsageError: only one of them is a trace, or an option has no meaning for traces.
    """
    from pydlbench.cli.trace import stored_ledgers
    from pydlbench.report.trace import recorded_document, recorded_report

    args.refuse(("fail_on", "same"), "with recorded steps")
    _refuse_other_kind(runs, "trace")
    ledgers = [ledger for item in runs for ledger in stored_ledgers(item)]
    if len(ledgers) != 2:  # A and B
        raise UsageError(
            f"{' '.join(args.runs)}: have {len(ledgers)} traces, two are compared; nearest: two "
            "runs of one trace each"
        )
    head = {"kind": "trace", "run": runs[1].record.to_dict()}
    outputs.write(
        lambda: {**head, **recorded_document(ledgers)},
        lambda: recorded_report(ledgers, everything=args.all),
    )
    return 0


def _refuse_other_kind(runs: Sequence[Loaded], kind: str) -> None:
    """Refuse two runs of which only one is of a kind.

    Raises:
        UsageError: that is so.
    """
    other = next((item.info for item in runs if item.info.kind != kind), None)
    if other is not None:
        raise UsageError(
            f"run {other.id}: is of {other.kind}, the other one of {kind}; nearest: two of {kind}"
        )


def _compare_fleets(args: CompareOptions, runs: Sequence[Loaded], outputs: Outputs) -> int:
    """Compare two runs of a fleet node by node; return the exit code.

    Raises:
        UsageError: only one of them is a fleet's, or they have no node in common.
    """
    from pydlbench.fleet.run import TABLE
    from pydlbench.fleet.verdict import compare_fleets
    from pydlbench.report.fleet import fleet_comparison, judge_changes

    _refuse_other_kind(runs, "fleet")
    for item, text in zip(runs, args.runs, strict=True):
        if item.table("fleet"):
            raise UsageError(
                f"{text}: a verdict has no times of nodes; nearest: the run itself, {item.info.id}"
            )
    before, after = ([entry.document for entry in item.table(TABLE)] for item in runs)
    beyond = _FLEET_MARGIN if args.same is None else args.same
    comparison = compare_fleets(before, after, beyond)
    head = {"kind": "compare-fleets", "runs": [item.info.id for item in runs]}
    outputs.write(
        lambda: {**head, **comparison.to_dict()},
        lambda: fleet_comparison(comparison),
    )
    if args.fail_on is None:
        return 0
    threshold = args.fail_on[1]
    if threshold > beyond:
        comparison = compare_fleets(before, after, threshold)
    return gate(*judge_changes(comparison))


def no_rows_text(comparison: Comparison) -> str:
    """Return why a comparison has no rows."""
    untimed = comparison.matching.untimed
    reason = next(iter(comparison.notes), "")
    if not untimed or comparison.installations:
        return f"nothing to compare: {reason or 'no row is in both runs'}"
    pair = untimed[0]
    return (
        f"no row was timed in both runs: {pair.b.layer} {pair.b.pass_} is {_status(pair.a)} in "
        f"{comparison.a.name} and {_status(pair.b)} in {comparison.b.name}"
        f"{f' ({reason})' if reason else ''}; measure it again"
    )


def _status(row: SideRow) -> str:
    """Return a row's status, or its time if that has no ratio to another."""
    if row.status == "failed" and row.median is not None:
        return f"an invalid time ({row.median:g} s)"
    return row.status


def exit_code(args: CompareOptions, comparison: Comparison) -> int:
    """Return the exit code; under ``--fail-on`` the reason is printed on standard error."""
    from pydlbench.report.compare import judge

    return 0 if args.fail_on is None else gate(*judge(comparison, args.fail_on[1]))


def stored_report(loaded: Loaded) -> list[Block]:
    """Return the report of two models' steps, in a run of a store."""
    from pydlbench.cli.compare_models import stored_report as report

    return report(loaded)


def show(
    comparison: Comparison,
    outputs: Outputs,
    *,
    everything: bool,
    unfinished: Sequence[str] | None = None,
) -> None:
    """Write the files, then print the table, or the format of standard output.

    Args:
        comparison: the comparison.
        outputs: where it is shown.
        everything: whether rows that did not change are shown.
        unfinished: labels of rows that an interrupted run lacks in part; None for a whole one.

    Raises:
        PydlbenchError: a file could not be written after all; the table is printed before.
    """
    from pydlbench.report.compare import comparison_report

    ending = {} if unfinished is None else {"interrupted": True, "unfinished": unfinished}

    def blocks(*, everything: bool = False) -> list[Block]:
        return comparison_report(comparison, everything=everything) if comparison.rows else []

    outputs.write(
        lambda: comparison.to_dict() | ending,
        lambda: blocks(everything=everything),
        markdown=blocks,
    )


# -----------------------------------------------------------------------------
# ``compare --published``: results beside published figures, or the figures alone.


def run_published(args: CompareOptions, outputs: Outputs) -> int:
    """Show the figures of ``--model``, each with the results of the given runs.

    Returns:
        0; 1 if runs were given and none of their results has a figure.

    Raises:
        UsageError: no such run, no such model.
    """
    from pydlbench.compare.published import find_figures, match_figures, measured_figures
    from pydlbench.report.published import published_report
    from pydlbench.store.documents import load

    with reading_store(args.store) as store:
        results = [
            figure
            for name in args.runs
            for figure in measured_figures(name, load(name, store), _script_batch)
        ]
    figures = match_figures(find_figures(args.model), results)
    given = bool(args.runs)
    outputs.write(
        lambda: {
            "runs": list(args.runs),
            "published": [figure.to_dict() for figure in figures if figure.own or not given],
        },
        lambda: published_report(figures, own=given),
    )
    return 1 if given and not any(figure.own for figure in figures) else 0


def _script_batch(protocol: str, model: str) -> int | None:
    """Return a script's default batch of a model."""
    from pydlbench.protocols.protocol import find_protocol

    try:
        return find_protocol(protocol).settings(model).batch
    except UsageError:  # the run is of a pydlbench that knows more protocols
        return None


# -----------------------------------------------------------------------------
# ``compare --python A --python B``: two installations, measured interleaved.


def _run_installations(args: CompareOptions, outputs: Outputs, margin: float) -> int:
    """Compare two installations, measured in turn; return the exit code.

    Raises:
        UsageError: bad input, or an interpreter that cannot measure.
        PydlbenchError: nothing was measured in both.
    """
    from pydlbench.compare.interleaved import compare_installations, open_session, pairs_of
    from pydlbench.runner.session import Session
    from pydlbench.workers.installation import read_installation

    if len(args.python) != 2:  # A and B
        raise UsageError(
            f"--python: {len(args.python)} given, two are compared; nearest: --python "
            f"{args.python[0]} --python {sys.executable}"
        )
    specs, threads, notes = _read_specs(args)
    outputs.note(*notes)
    a, b = map(read_installation, args.python)
    pairs = pairs_of(specs, threads)

    def opened(*, side: int, threads: int | None, seed: int) -> Session:
        return open_session((a, b)[side], threads, seed)

    unfinished = _measure(args, pairs, opened)
    with Session() as session:
        device = session.run.device
    comparison = compare_installations((a, b), pairs, device, margin)
    return _conclude(args, comparison, outputs, unfinished)


def _read_specs(
    args: CompareOptions,
) -> tuple[list[KernelSpec | StepSpec], int | None, tuple[str, ...]]:
    """Return layers or steps, the number of threads, and notes.

    Raises:
        UsageError: none is named, or an option is one that the measuring command does not take.
    """
    from pydlbench.cli import step
    from pydlbench.cli.layer_options import LayersOptions
    from pydlbench.cli.layer_request import read_request
    from pydlbench.cli.steps import ModelTask, StepOptions

    words = [
        word
        for name in _LAYERS_OR_STEP
        for value in getattr(args, name)
        for word in (flag_of(name), value)
    ]
    if len(args.runs) > 1:
        raise UsageError(f"MODEL: {len(args.runs)} given, one is measured; nearest: {args.runs[0]}")
    if args.runs:
        given = StepOptions.parse([*args.runs, *words])
        tasks, notes = step.read_tasks(given)
        if any(isinstance(task, ModelTask) and task.guessed for task in tasks):
            raise UsageError(
                f"{given.model}: its framework is not clear; nearest: --framework torch"
            )
        return [row.spec for task in tasks for row in task.rows], given.threads, notes
    if not args.shape:
        raise UsageError("--python: nothing to measure is named; nearest: --shape conv3")
    request = read_request(LayersOptions.parse(words))
    threads, *others = request.threads
    if others:
        raise UsageError(f"--threads {others[0]}: one number at a time; nearest: leave it out")
    return [*request.cases], threads, request.notes


# -----------------------------------------------------------------------------
# ``compare --interleave``: both sides measured again, interleaved.


def _run_interleaved(
    args: CompareOptions, outputs: Outputs, margin: float, open_host: Callable[..., Any] | None
) -> int:
    """Measure both sides interleaved and compare them; return the exit code.

    Args:
        args: the command's options.
        outputs: where the comparison is shown.
        margin: ratios within 1 +- this count as the same.
        open_host: opens a session for a ``side`` (0 is A) with ``threads`` and ``seed``.

    Raises:
        UsageError: bad input, or nothing can be measured here.
        PydlbenchError: nothing was measured in both.
    """
    from pydlbench.compare.interleaved import as_remeasured, compare_interleaved
    from pydlbench.compare.rows import match, read_side

    with without_collection(), reading_store(args.store) as store:
        a, b = (read_side(name, store) for name in args.runs)
    matching, rerun, notes = _measurable_pairs(match(a, b))
    opened = open_host or _open_session
    if open_host is None:
        _check_memory(rerun)
    unfinished = _measure(args, rerun, opened)
    with opened(side=0, threads=None, seed=args.seed) as session:
        here = session.run
    notes += _other_machines(a, b, here.device.get("name"))
    a, b = (as_remeasured(side, here) for side in (a, b))
    comparison = compare_interleaved(a, b, matching, rerun, margin, notes)
    return _conclude(args, comparison, outputs, unfinished)


def _measurable_pairs(
    matching: Matching,
) -> tuple[Matching, list[RerunPair], tuple[str, ...]]:
    """Return the pairs that can be measured again, their specs, and notes on the others."""
    import dataclasses

    from pydlbench.compare.interleaved import RerunPair
    from pydlbench.compare.rows import Pair

    pairs: list[Pair] = []
    untimed = list(matching.untimed)
    rerun = []
    reasons: dict[str, None] = {}
    for pair in matching.pairs:
        try:
            rerun.append(RerunPair.from_rows(pair))
        except UnsupportedError as error:
            reasons[str(error)] = None
            untimed.append(Pair(*(row._replace(status="failed") for row in pair)))
            continue
        pairs.append(pair)
    if not rerun:
        reason = next(iter(reasons), "no row was timed in both runs")
        raise UsageError(f"--interleave: {reason}; nearest: leave it out")
    measurable = dataclasses.replace(matching, pairs=pairs, untimed=untimed)
    return measurable, rerun, tuple(f"not measured again: {reason}" for reason in reasons)


def _check_memory(rerun: Sequence[RerunPair]) -> None:
    """Make sure that both kernels of each pair fit into memory together.

    Raises:
        UsageError: they do not.
    """
    from pydlbench.records.measurement import KernelSpec
    from pydlbench.runner.memory import check_memory

    with _open_session(side=0, threads=None, seed=0) as session:
        available = session.facts.memory_available_bytes
        # A session's rotating copies for a cold cache.
        cold = 3 * session.cache_bytes()
    for pair in rerun if available is not None else ():
        try:
            specs = [side.spec for side in pair.sides if isinstance(side.spec, KernelSpec)]
            check_memory(specs, available, cold)
        except UsageError as error:
            raise UsageError(f"--interleave: {error}") from None


def _measure(
    args: CompareOptions,
    rerun: Sequence[RerunPair],
    open_host: Callable[..., Any],
) -> list[str] | None:
    """Take the passes; return the labels of pairs that lack some after Ctrl-C, else None."""
    from pydlbench.compare.interleaved import take_pass
    from pydlbench.interrupts import OneInterrupt

    progress = ProgressLine.from_options(args)
    rng = random.Random(args.seed)  # noqa: S311 - an order, not a secret
    total = args.repetitions * len(rerun)
    started = 0

    def advance(label: str) -> None:
        nonlocal started
        progress(started, total, label)
        started += 1

    with OneInterrupt() as interrupts:
        try:
            try:
                for number in range(args.repetitions):
                    take_pass(
                        rerun,
                        number,
                        lambda side, threads: open_host(side=side, threads=threads, seed=args.seed),
                        args.budget,
                        rng,
                        advance,
                    )
            finally:
                interrupts.ignore()
        except KeyboardInterrupt:
            lacking = (pair for pair in rerun if len(pair.logs) < args.repetitions)
            return [pair.sides[1].spec.label for pair in lacking]
        finally:
            progress.close()
    return None


def _other_machines(a: Side, b: Side, here: Any) -> tuple[str, ...]:
    """Return notes on runs of other machines, whose stored times are not compared."""
    return tuple(
        f"{side.name} was stored on {side.machine}; it was measured here again, on {here}"
        for side in (a, b)
        if side.machine and here and side.machine != here
    )


def _open_session(*, side: int, threads: int | None, seed: int) -> Any:  # noqa: ARG001 - alike
    from pydlbench.runner.options import RunnerOptions
    from pydlbench.runner.session import Session

    return Session(RunnerOptions(threads=threads, seed=seed))


SUBCOMMANDS: Final = {"": (CompareOptions, run)}
