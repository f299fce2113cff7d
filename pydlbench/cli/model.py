"""``pydlbench model``: sum measured layers into the estimate of a step."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec

from pydlbench.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from pydlbench.cli.recorder import Recorder
    from pydlbench.ladder.estimate import Estimate, Plan
    from pydlbench.models.graph import Model
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.run import RunRecord
    from pydlbench.records.specs import KernelSpec

__all__ = ["add_parser", "read_model", "run", "summed"]


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Describe the command."""
    from pydlbench.cli.options import add_store_option

    parser = subparsers.add_parser(
        "model",
        help="sum measured layers into the estimate of a step; which layer dominates",
        description="Measure every distinct layer of a model alone, with hot and with cold caches, "
        "and sum them into the estimate of a step.",
    )
    parser.add_argument("model", metavar="MODEL", help="alexnet-owt, vgg16, resnet50...")
    parser.add_argument("--batch", metavar="N", help="images per step; default: as published")
    parser.add_argument(
        "--phase",
        metavar="PHASE",
        default="forward",
        help="forward (default), forward-backward or training (with loss and optimizer)",
    )
    parser.add_argument("--precision", metavar="P", default="fp32", help="of all layers (fp32)")
    parser.add_argument(
        "--option",
        action="append",
        metavar="NAME=VALUE",
        help="a variant of the model: lrn=off, classes=1001",
    )
    parser.add_argument("--summary", action="store_true", help="count, without timing anything")
    parser.add_argument(
        "--device", metavar="DEVICE", help="cpu or cuda:N; default: the GPU if there is one"
    )
    parser.add_argument("--threads", metavar="N", help="default: one per physical core")
    parser.add_argument(
        "--budget", metavar="S", default="0.25", help="seconds of sampling per kernel (0.25)"
    )
    parser.add_argument("--seed", metavar="N", default="0", help="seed of data and order (0)")
    parser.add_argument(
        "--top", metavar="N", default="20", help="kinds of layers shown, by time (20)"
    )
    parser.add_argument("--all", action="store_true", help="show all layers, in their order")
    parser.add_argument("--json", metavar="FILE", help="write JSON; - is stdout")
    parser.add_argument("--quiet", action="store_true", help="no progress and no warnings")
    add_store_option(parser)


def run(args: argparse.Namespace, session_factory: Callable[..., Any] | None = None) -> int:
    """Measure and sum.

    Args:
        args: the command's options.
        session_factory: gives a session for the options of ``measure.Options`` as keywords.

    Returns:
        0; 1 if nothing could be measured, or something is missing in the sum; 130 after Ctrl-C.

    Raises:
        UsageError: bad input; nothing was measured and nothing written.
    """
    from pydlbench.cli.options import one_of, whole_number
    from pydlbench.cli.recorder import Recorder
    from pydlbench.cli.terminal import tell
    from pydlbench.ladder.estimate import plan
    from pydlbench.report.text import check_writable

    top = None if args.all else whole_number("--top", args.top, 1)
    if args.json is not None:
        check_writable("--json", args.json)
    if args.summary:
        one_of("--phase", args.phase, PHASES)
        return show_summary(build(args), args.json)
    asked = read_model(args)
    for note in () if args.quiet else asked.notes:
        tell(f"note: {note}")
    # The samples are for the store.
    options = {**asked.options, "keep_samples": True, "estimate": True}
    with Recorder.of(args, "model") as recorder:
        with (session_factory or _open_session)(**options) as session:
            cache = session.cache_bytes(asked.device)
            wanted = plan(asked.model, asked.phase, asked.precision, asked.device, cache)
            recorder.start(session.run)
            rows, interrupted = measure(session, wanted, recorder, quiet=args.quiet)
            record = session.run
        if interrupted:
            recorder.finish(record, "interrupted")
            tell(
                f"interrupted: {len(rows)} of {len(wanted.cases)} kernels measured; no sum of a "
                "part"
            )
            return 130
        found = summed(asked, wanted, rows, cache)
        recorder.add("estimate", found.document)
        recorder.finish(record, "done")
        return show_estimate(record, found, args.json, top=top, quiet=args.quiet)


def _open_session(**options: Any) -> AbstractContextManager[Any]:
    from pydlbench.runner.session import Options, Session

    return Session(Options(**options))


# -----------------------------------------------------------------------------
# From the options of ``model`` to the step that is summed, or to one line of complaint.

PHASES: Final = ("forward", "forward-backward", "training")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One step.

    Attributes:
        model: its graph, with the batch.
        variant: of the model, as given.
        phase: ``forward``, ``forward-backward`` or ``training``.
        precision: of all layers.
        device: ``cpu`` or ``cuda:N``.
        options: keywords of ``measure.Options``.
        notes: what has to be said of the device.
    """

    model: Model
    variant: dict[str, str]
    phase: str
    precision: str
    device: str
    options: dict[str, Any]
    notes: tuple[str, ...] = ()


def build(args: argparse.Namespace) -> Model:
    """Return the graph of the model that was asked for.

    Raises:
        UsageError: no such model, option or batch.
    """
    from pydlbench.cli.options import read_options, whole_number
    from pydlbench.models import build_model

    batch = None if args.batch is None else whole_number("--batch", args.batch, 1)
    return build_model(args.model, batch, **read_options(args.option or []))


def read_model(args: argparse.Namespace) -> ModelRequest:
    """Check the options of ``model``.

    Raises:
        UsageError: a value is bad.
    """
    from pydlbench.backends.capabilities import default_device
    from pydlbench.cli.options import one_of, positive_seconds, read_options, whole_number
    from pydlbench.records.specs import CPU_PRECISIONS, GPU_PRECISIONS, check_device

    phase = one_of("--phase", args.phase, PHASES)
    model = build(args)
    if phase == "training" and model.optimizer.kind == "none":
        raise UsageError(
            f"--phase training: {model.name} has no optimizer; nearest: "
            "--phase forward-backward, or --option optimizer=sgd"
        )
    device, notes = default_device() if args.device is None else (args.device, ())
    check_device(device)
    if device != "cpu" and args.threads is not None:
        raise UsageError(f"--threads {args.threads}: for CPUs only; nearest: leave it out")
    allowed = CPU_PRECISIONS if device == "cpu" else GPU_PRECISIONS
    return ModelRequest(
        model=model,
        variant=read_options(args.option or []),
        phase=phase,
        precision=one_of("--precision", args.precision, allowed),
        device=device,
        options={
            "threads": None if args.threads is None else whole_number("--threads", args.threads, 1),
            "seed": whole_number("--seed", args.seed, 0),
            "budget_s": positive_seconds("--budget", args.budget),
        },
        notes=notes,
    )


# -----------------------------------------------------------------------------
# Measures the kernels behind an estimate, and sums them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Summed:
    """What came of a model.

    Attributes:
        wanted: the plan.
        rows: a measurement for each of its cases.
        estimate: their sum.
        memory: bytes by what they are for.
        document: the JSON object, all of it but the run and the kernels' rows.
    """

    wanted: Plan
    rows: Mapping[KernelSpec, Measurement]
    estimate: Estimate
    memory: dict[str, int]
    document: dict[str, Any]


def measure(
    session: Any, wanted: Plan, recorder: Recorder, *, quiet: bool
) -> tuple[dict[KernelSpec, Measurement], bool]:
    """Measure a plan's cases.

    Args:
        session: to measure with.
        wanted: the plan.
        recorder: keeps every row as soon as it is finished.
        quiet: no progress.

    Returns:
        What was finished, and whether Ctrl-C came before all was.
    """
    from pydlbench.cli.terminal import OneInterrupt, Progress

    progress = Progress(sys.stderr, quiet=quiet)
    rows: dict[KernelSpec, Measurement] = {}
    interrupted = False
    with OneInterrupt() as interrupts:
        try:
            try:
                for case, row in zip(
                    wanted.cases, session.measure(wanted.cases, progress=progress), strict=True
                ):
                    rows[case] = msgspec.structs.replace(row, samples_s=None)
                    recorder.layer(row)
            finally:
                interrupts.ignore()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            progress.close()
    return rows, interrupted


def summed(
    asked: ModelRequest, wanted: Plan, rows: Mapping[KernelSpec, Measurement], cache_bytes: int
) -> Summed:
    """Sum the kernels of a step.

    Args:
        asked: the step.
        wanted: its plan.
        rows: a measurement for each of the plan's cases.
        cache_bytes: of the device's last cache, as the plan was made with.
    """
    from pydlbench.ladder.estimate import estimate
    from pydlbench.models.counts import memory

    found = estimate(wanted, rows)
    needs = memory(asked.model, asked.phase, asked.precision)
    document = {
        "model": asked.model.name,
        "batch": asked.model.batch,
        "phase": asked.phase,
        "precision": asked.precision,
        **found.to_dict(),
        "memory_bytes": needs,
        "options": dict(asked.variant),
        "device": asked.device,
        "threads": next((one.threads for one in rows.values() if one.threads), None),
        "cache_bytes": cache_bytes,
    }
    return Summed(wanted=wanted, rows=rows, estimate=found, memory=needs, document=document)


# -----------------------------------------------------------------------------
# Where ``model`` puts its estimate, or its counts.


def show_estimate(
    run: RunRecord, found: Summed, target: str | None, *, top: int | None, quiet: bool
) -> int:
    """Warn, write the file, and print.

    Args:
        run: the run.
        found: what came of it.
        target: of JSON: a path, ``-`` or None.
        top: how many layers are listed; None is all.
        quiet: no warnings.

    Returns:
        The exit code: 1 if something is missing in the sum.

    Raises:
        PydlbenchError: the file could not be written after all; the table is printed before.
    """
    from pydlbench.cli.terminal import tell
    from pydlbench.errors import PydlbenchError
    from pydlbench.report.json import dump
    from pydlbench.report.model import render_model
    from pydlbench.report.text import STDOUT, Style, write_text

    wanted, rows, estimate = found.wanted, found.rows, found.estimate
    trouble = ""
    contended = sum(row.contended for row in rows.values())
    if contended and not quiet:
        tell(f"warning: other work disturbed {contended} of {len(rows)} kernels; repeat when quiet")
    if target is not None:
        measurements = [row.to_dict() for row in rows.values()]
        document = {"run": run.to_dict(), **found.document, "measurements": measurements}
        try:
            write_text(target, dump(document))
        except OSError as error:
            if target == STDOUT:
                raise
            trouble = f"--json {target}: not written: {error.strerror or error}"
    if target != STDOUT:
        libraries = sorted({row.library for row in rows.values() if row.library})
        print(
            render_model(
                run,
                wanted,
                estimate,
                found.memory,
                top=top,
                libraries=libraries,
                style=Style.of(sys.stdout),
            ),
            flush=True,
        )
    if trouble:
        raise PydlbenchError(trouble)
    return 1 if estimate.missing or not estimate.layers else 0


def show_summary(model: Model, target: str | None) -> int:
    """Count, without timing anything; returns the exit code."""
    from pydlbench.models.counts import summary
    from pydlbench.report.json import dump
    from pydlbench.report.model import render_summary
    from pydlbench.report.text import STDOUT, write_text

    found = summary(model)
    if target is not None:
        write_text(target, dump(found))
    if target != STDOUT:
        print(render_summary(found))
    return 0
