"""``pydlbench model``: sum measured layers into the estimate of a step."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pydlbench.backends.case import Case
    from pydlbench.cli.recording import Recorder
    from pydlbench.compose import Estimate, Plan
    from pydlbench.models.graph import Model
    from pydlbench.results import Measurement, RunRecord

__all__ = ["add_parser", "run"]

PHASES = ("forward", "forward-backward", "training")


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Describe the command."""
    from pydlbench.cli.store_option import add_store_option

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
    parser.add_argument("--top", metavar="N", default="20", help="layers shown, by time (20)")
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
    from pydlbench.backends.case import CPU_PRECISIONS, GPU_PRECISIONS
    from pydlbench.cli.recording import Recorder
    from pydlbench.cli.streams import tell
    from pydlbench.cli.values import choices, positive_seconds, whole_number
    from pydlbench.compose import plan
    from pydlbench.results.destination import check_writable

    phase = choices("--phase", [args.phase], PHASES)[0]
    top = None if args.all else whole_number("--top", args.top, 1)
    model = _model(args)
    if args.json is not None:
        check_writable("--json", args.json)
    if args.summary:
        return _summary(model, args.json)
    device, notes = _device(args.device)
    allowed = CPU_PRECISIONS if device == "cpu" else GPU_PRECISIONS
    precision = choices("--precision", [args.precision], allowed)[0]
    options = {
        "threads": None if args.threads is None else whole_number("--threads", args.threads, 1),
        "seed": whole_number("--seed", args.seed, 0),
        "budget_s": positive_seconds("--budget", args.budget),
        "keep_samples": True,  # for the store
    }
    with Recorder.of(args, "model") as recorder:
        with (session_factory or _open_session)(**options) as session:
            cache = session.cache_bytes(device)
            wanted = plan(model, phase, precision, device, cache)
            recorder.start(session.run)
            rows, interrupted = _measure(session, wanted, args.quiet, notes, recorder)
            record = session.run
        if interrupted:
            recorder.finish(record, "interrupted")
            tell(
                f"interrupted: {len(rows)} of {len(wanted.cases)} kernels measured; no sum of a "
                "part"
            )
            return 130
        found = _estimate(args, wanted, rows, {"device": device, "cache_bytes": cache})
        recorder.add("estimate", found.document)
        recorder.finish(record, "done")
        return _show(args, record, found, top)


def _model(args: argparse.Namespace) -> Model:
    from pydlbench.cli.model_options import read_options
    from pydlbench.cli.values import whole_number
    from pydlbench.models import build_model

    batch = None if args.batch is None else whole_number("--batch", args.batch, 1)
    return build_model(args.model, batch, **read_options(args.option or []))


def _device(given: str | None) -> tuple[str, tuple[str, ...]]:
    from pydlbench.backends.case import check_device
    from pydlbench.backends.native.presence import default_device

    if given is None:
        return default_device()
    check_device(given)
    return given, ()


def _measure(
    session: Any, wanted: Plan, quiet: bool, notes: tuple[str, ...], recorder: Recorder
) -> tuple[dict[Case, Measurement], bool]:
    """Measure the plan's cases; what was finished before Ctrl-C, and whether there was one."""
    from pydlbench.cli.interrupts import OneInterrupt
    from pydlbench.cli.progress import Progress
    from pydlbench.cli.streams import tell

    for note in () if quiet else notes:
        tell(f"note: {note}")
    progress = Progress(sys.stderr, quiet=quiet)
    rows: dict[Case, Measurement] = {}
    interrupted = False
    with OneInterrupt() as interrupts:
        try:
            try:
                for case, row in zip(
                    wanted.cases, session.measure(wanted.cases, progress=progress), strict=True
                ):
                    rows[case] = replace(row, samples_s=None)
                    recorder.layer(row)
            finally:
                interrupts.ignore()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            progress.close()
    return rows, interrupted


@dataclass(frozen=True, slots=True)
class _Found:
    """What came of it; the document is all of it but the run and the kernels' rows."""

    wanted: Plan
    rows: dict[Case, Measurement]
    estimate: Estimate
    memory: dict[str, int]
    document: dict[str, Any]


def _estimate(
    args: argparse.Namespace,
    wanted: Plan,
    rows: dict[Case, Measurement],
    where: dict[str, Any],
) -> _Found:
    from pydlbench.cli.model_options import read_options
    from pydlbench.compose import estimate
    from pydlbench.models.counts import memory

    found = estimate(wanted, rows)
    needs = memory(wanted.model, wanted.phase, wanted.precision)
    document = {
        "model": wanted.model.name,
        "batch": wanted.model.batch,
        "phase": wanted.phase,
        "precision": wanted.precision,
        **found.to_dict(),
        "memory_bytes": needs,
        "options": read_options(args.option or []),
        **where,
    }
    return _Found(wanted, rows, found, needs, document)


def _show(args: argparse.Namespace, record: RunRecord, found: _Found, top: int | None) -> int:
    from pydlbench.cli.streams import tell
    from pydlbench.report.model_table import render_model
    from pydlbench.report.style import Style
    from pydlbench.results.destination import STDOUT, write_text
    from pydlbench.results.export_json import dump

    wanted, rows, estimate = found.wanted, found.rows, found.estimate
    contended = sum(row.contended for row in rows.values())
    if contended and not args.quiet:
        tell(f"warning: other work disturbed {contended} of {len(rows)} kernels; repeat when quiet")
    if args.json is not None:
        measurements = [row.to_dict() for row in rows.values()]
        document = {"run": record.to_dict(), **found.document, "measurements": measurements}
        write_text(args.json, dump(document))
    if args.json != STDOUT:
        libraries = sorted({row.library for row in rows.values() if row.library})
        print(
            render_model(
                record,
                wanted,
                estimate,
                found.memory,
                top=top,
                libraries=libraries,
                style=Style.of(sys.stdout),
            )
        )
    return 1 if estimate.missing or not estimate.layers else 0


def _summary(model: Model, target: str | None) -> int:
    from pydlbench.models.counts import summary
    from pydlbench.report.model_summary import render_summary
    from pydlbench.results.destination import STDOUT, write_text
    from pydlbench.results.export_json import dump

    found = summary(model)
    if target is not None:
        write_text(target, dump(found))
    if target != STDOUT:
        print(render_summary(found))
    return 0


def _open_session(**options: Any) -> AbstractContextManager[Any]:
    from pydlbench.measure import Options, Session

    return Session(Options(**options))
