"""``pydlbench model``: sum measured layers into the estimate of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from contextlib import AbstractContextManager

__all__ = ["add_parser", "run"]


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
    from pydlbench.cli.model_options import one_of
    from pydlbench.cli.model_output import show_estimate, show_summary
    from pydlbench.cli.model_request import PHASES, build, read_model
    from pydlbench.cli.model_running import measure, summed
    from pydlbench.cli.recording import Recorder
    from pydlbench.cli.streams import tell
    from pydlbench.cli.values import whole_number
    from pydlbench.compose import plan
    from pydlbench.results.destination import check_writable

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
    from pydlbench.measure import Options, Session

    return Session(Options(**options))
