"""``pydlbench check``: the ledger, a step's estimate against the real step in a framework."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

__all__ = ["add_parser", "run"]


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Describe the command."""
    from pydlbench.cli.store_option import add_store_option

    parser = subparsers.add_parser(
        "check",
        help="hold the estimate of a step against PyTorch and TensorFlow, term by term",
        description="Predict a framework's step from its operators, each run alone, run the step "
        "in turn with them, and name what lies between the hardware's roof and the measured time.",
    )
    parser.add_argument("model", metavar="MODEL", help="alexnet-owt, vgg16, resnet50...")
    many: dict[str, Any] = {"nargs": "+", "action": "extend"}
    parser.add_argument(
        "--framework",
        **many,
        metavar="NAME",
        help="torch, tensorflow or all; default: those that are installed",
    )
    parser.add_argument(
        "--mode",
        **many,
        metavar="MODE",
        help="eager, compiled (torch), graph, xla (tensorflow) or all; default: eager and graph",
    )
    parser.add_argument(
        "--phase",
        metavar="PHASE",
        default="forward",
        help="forward (default), forward-backward or training (with loss and optimizer)",
    )
    parser.add_argument("--batch", metavar="N", help="images per step; default: as published")
    parser.add_argument("--precision", metavar="P", default="fp32", help="fp32 (default), bf16...")
    parser.add_argument(
        "--layout",
        metavar="L",
        default="nhwc",
        help="of PyTorch's images: nhwc (channels last; default) or nchw",
    )
    parser.add_argument(
        "--feed",
        metavar="FROM",
        default="resident",
        help="resident images (default), or new ones from the host in each step",
    )
    parser.add_argument(
        "--option",
        action="append",
        metavar="NAME=VALUE",
        help="a variant of the model: lrn=off, classes=1001",
    )
    parser.add_argument(
        "--rounds", metavar="N", default="15", help="rounds at the most, 5 at the least (15)"
    )
    parser.add_argument(
        "--time-limit",
        metavar="S",
        default="60",
        help="no round of a framework and mode begins after so many seconds (60)",
    )
    parser.add_argument("--threads", metavar="N", help="default: one per physical core")
    parser.add_argument(
        "--budget", metavar="S", default="0.25", help="seconds of sampling per native kernel (0.25)"
    )
    parser.add_argument("--seed", metavar="N", default="0", help="seed of data and order (0)")
    parser.add_argument(
        "--explain", action="store_true", help="how each term was measured, all parts and rounds"
    )
    for kind in ("json", "md"):
        parser.add_argument(f"--{kind}", metavar="FILE", help=f"write {kind}; - is stdout")
    parser.add_argument("--quiet", action="store_true", help="no progress and no warnings")
    add_store_option(parser)
    # What the outputs of other commands have besides.
    parser.set_defaults(csv=None, samples=False, algorithms=False)


def run(
    args: argparse.Namespace,
    session_factory: Callable[..., Any] | None = None,
    checker: Callable[..., Any] | None = None,
) -> int:
    """Check the step in each framework and mode, and show what was found.

    Args:
        args: the command's options.
        session_factory: gives a session for the options of ``measure.Options`` as keywords.
        checker: takes the place of ``pydlbench.crosscheck.check``.

    Returns:
        0; 1 if no check is ok; 130 after Ctrl-C, with the checks that were finished.

    Raises:
        UsageError: bad input; nothing was measured and nothing written.
    """
    from pydlbench.cli.check_output import show
    from pydlbench.cli.check_request import check_room, read_check
    from pydlbench.cli.check_running import Checks
    from pydlbench.cli.interrupts import OneInterrupt
    from pydlbench.cli.output import Outputs
    from pydlbench.cli.progress import Progress
    from pydlbench.cli.recording import Recorder
    from pydlbench.cli.streams import tell

    request = read_check(args)
    check_room(request)
    outputs = Outputs.from_args(args)
    for note in () if args.quiet else request.notes:
        tell(f"note: {note}")
    progress = Progress(sys.stderr, quiet=args.quiet)
    with Recorder.of(args, "check") as recorder, OneInterrupt() as interrupts:
        checks = Checks(request, progress, session_factory, checker, recorder)
        try:
            checks.take(interrupts)
        finally:
            progress.close()
        if checks.run is not None:
            recorder.finish(checks.run, "interrupted" if checks.interrupted else "done")
        if checks.results:
            show(checks, outputs)
    if checks.interrupted:
        tell(f"interrupted: {len(checks.results)} of {len(request.subjects)} checks finished")
        return 130
    return 0 if any(one.record is not None for one in checks.results) else 1
