"""``pydlbench diagnose``: what costs a step its time, and what would save it, measured."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from pydlbench.records.diagnosis import Diagnosis
    from pydlbench.records.run import RunRecord
    from pydlbench.records.step import StepSpec

__all__ = ["add_parser", "run"]

FOUND = 3


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Describe the command."""
    from pydlbench.cli.options import add_store_option

    parser = subparsers.add_parser(
        "diagnose",
        help="what costs a step its time: findings, ranked by what they would save",
        description="Time a real framework step on the CPU, look for what costs it time, and "
        "measure what each remedy would save by running it beside the step.",
        epilog="exit codes: 0 done, 1 the step cannot be run, 2 bad input, 3 a finding saves at "
        "least --fail-on",
    )
    parser.add_argument("model", metavar="MODEL", help="alexnet-owt, vgg16, resnet50...")
    parser.add_argument(
        "--framework", metavar="NAME", default="torch", help="torch (default) or tensorflow"
    )
    parser.add_argument(
        "--mode",
        metavar="MODE",
        help="eager (torch's default), compiled; graph (TensorFlow's), xla",
    )
    parser.add_argument(
        "--phase",
        metavar="PHASE",
        default="forward",
        help="forward (default), forward-backward or training (with loss and optimizer)",
    )
    parser.add_argument("--batch", metavar="N", help="images per step; default: as published")
    parser.add_argument("--precision", metavar="P", default="fp32", help="of the products (fp32)")
    parser.add_argument(
        "--layout", metavar="L", default="nhwc", help="of PyTorch's images: nhwc (default) or nchw"
    )
    parser.add_argument(
        "--option",
        action="append",
        metavar="NAME=VALUE",
        help="a variant of the model: lrn=off, classes=1001",
    )
    parser.add_argument("--threads", metavar="N", help="default: one per physical core")
    parser.add_argument(
        "--time-limit",
        metavar="S",
        default="300",
        help="seconds; no experiment begins later (300), or than half of it after the layers",
    )
    parser.add_argument(
        "--budget", metavar="S", default="0.25", help="seconds of sampling per kernel (0.25)"
    )
    parser.add_argument("--seed", metavar="N", default="0", help="seed of data and order (0)")
    parser.add_argument(
        "--fail-on",
        metavar="SHARE",
        help="end with 3 if a finding would save this share of the step: 0.1",
    )
    parser.add_argument("--json", metavar="FILE", help="write JSON; - is stdout")
    parser.add_argument("--md", metavar="FILE", help="write Markdown; - is stdout")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    add_store_option(parser)


def run(args: argparse.Namespace, session_factory: Callable[..., Any] | None = None) -> int:
    """Diagnose and show.

    Args:
        args: the command's options.
        session_factory: gives a session for the options of ``measure.Options`` as keywords.

    Returns:
        0; 3 under ``--fail-on`` with such a finding; 130 after Ctrl-C, with what was found by then.

    Raises:
        UsageError: bad input; nothing was measured and nothing written.
        PydlbenchError: the step cannot be run.
    """
    from pydlbench.cli.options import fraction, positive_seconds, whole_number
    from pydlbench.cli.recorder import Recorder
    from pydlbench.cli.terminal import OneInterrupt, tell
    from pydlbench.diagnose.run import diagnose
    from pydlbench.errors import UsageError
    from pydlbench.report.text import STDOUT, check_writable

    case = _case(args)
    fail_on = None if args.fail_on is None else fraction("--fail-on", args.fail_on, 0.0, 1.0)
    limit = positive_seconds("--time-limit", args.time_limit)
    options = {
        "threads": None if args.threads is None else whole_number("--threads", args.threads, 1),
        "seed": case.seed,
        "budget_s": positive_seconds("--budget", args.budget),
        "estimate": True,
    }
    targets = [one for one in (args.json, args.md) if one is not None]
    if len({one if one == STDOUT else os.path.realpath(one) for one in targets}) < len(targets):
        raise UsageError(f"--md {args.md}: --json goes there already; nearest: --md results.md")
    for option, target in (("--json", args.json), ("--md", args.md)):
        if target is not None:
            check_writable(option, target)

    def say(text: str) -> None:
        if not args.quiet:
            tell(f"{text}...")

    with (
        Recorder.of(args, "diagnose") as recorder,
        OneInterrupt() as interrupts,
        (session_factory or _open_session)(**options) as session,
    ):
        recorder.start(session.run)
        found = diagnose(case, session, limit, say)
        interrupts.ignore()
        record = session.run
        recorder.add("findings", found.to_dict())
        recorder.finish(record, "interrupted" if found.interrupted else "done")
        _show(args, record, found)
    if found.interrupted:
        tell("interrupted")
        return 130
    return FOUND if fail_on is not None and _largest(found) >= fail_on else 0


def _case(args: argparse.Namespace) -> StepSpec:
    """Return what is asked for, every word of it checked."""
    from pydlbench.cli.options import one_of, read_options, whole_number
    from pydlbench.devices.cpu.facts import read_cpu_facts
    from pydlbench.errors import UsageError
    from pydlbench.models import build_model
    from pydlbench.records.specs import CPU_PRECISIONS
    from pydlbench.records.step import StepSpec
    from pydlbench.steps.run import check_memory_of_parts

    case = StepSpec(
        model=args.model,
        options=read_options(args.option or []),
        batch=None if args.batch is None else whole_number("--batch", args.batch, 1),
        phase=args.phase,
        framework=args.framework,
        mode=args.mode,
        precision=one_of("--precision", args.precision, CPU_PRECISIONS),
        layout=args.layout,
        seed=whole_number("--seed", args.seed, 0),
    )
    model = build_model(case.model, case.batch, **case.options)
    if case.framework == "tensorflow" and case.layout != "nhwc":
        raise UsageError(
            f"--layout {case.layout}: TensorFlow's convolutions on CPUs take nhwc only; "
            "nearest: --layout nhwc"
        )
    if case.phase == "training" and model.optimizer.kind == "none":
        raise UsageError(
            f"--phase training: {case.model} has no optimizer to train with; nearest: "
            "--phase forward-backward"
        )
    check_memory_of_parts(model, case, read_cpu_facts().memory_available_bytes)
    return case


def _show(args: argparse.Namespace, record: RunRecord, found: Diagnosis) -> None:
    """Write the files, then print.

    Raises:
        PydlbenchError: a file could not be written after all; the report is printed before.
    """
    from pydlbench.errors import PydlbenchError
    from pydlbench.report.diagnose import diagnosis_markdown, render_diagnosis
    from pydlbench.report.json import dump
    from pydlbench.report.text import STDOUT, Style, write_text

    troubles = []
    for kind, target in (("json", args.json), ("md", args.md)):
        if target is None:
            continue
        document = {"run": record.to_dict(), **found.to_dict()}
        text = dump(document) if kind == "json" else diagnosis_markdown(record, found)
        try:
            write_text(target, text)
        except OSError as error:
            if target == STDOUT:
                raise
            troubles.append(f"--{kind} {target}: not written: {error.strerror or error}")
    if STDOUT not in (args.json, args.md):
        print(render_diagnosis(record, found, Style.of(sys.stdout)), flush=True)
    if troubles:
        raise PydlbenchError("; ".join(troubles))


def _largest(found: Diagnosis) -> float:
    return max((one.saving.share for one in found.findings), default=0.0)


def _open_session(**options: Any) -> AbstractContextManager[Any]:
    from pydlbench.runner.session import Options, Session

    return Session(Options(**options))
