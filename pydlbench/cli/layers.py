"""``pydlbench layers``: time layers, measured against theoretical."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from contextlib import AbstractContextManager

    from pydlbench.cli.layers_running import LayerSession, SessionFactory

__all__ = ["add_parser", "run"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the command."""
    from pydlbench.cli.store_option import add_store_option

    parser = subparsers.add_parser(
        "layers",
        help="time layers, measured against theoretical; the main job",
        description="Time layers one by one and hold them against the limits of the hardware. "
        "Lists are separated by spaces or commas; every combination is timed.",
    )
    what = parser.add_argument_group("what is timed")
    many: dict[str, Any] = {"nargs": "+", "action": "extend"}
    what.add_argument(
        "--shape",
        **many,
        metavar="SHAPE",
        help="catalog name (conv3, vgg16/conv3_2), glob ('vgg16/*'), descriptor "
        "(mb128ic192ih13oc384oh13kh3ph1, 128x9216:9216x4096, relu:mb128ic96ih55 and "
        "other memory-bound layers) or @FILE with one per line; "
        "default: all layers of alexnet",
    )
    what.add_argument("--model", **many, metavar="MODEL", help="all layers of a model")
    what.add_argument("--batch", **many, metavar="N", help="batch sizes; default: the catalog's")
    what.add_argument(
        "--pass",
        **many,
        dest="pass_",
        metavar="PASS",
        help="forward, backward-data, backward-weights or all; default: forward",
    )
    what.add_argument(
        "--precision",
        **many,
        metavar="P",
        help="fp32, bf16, fp16 or all; on a GPU fp32, tf32, fp16, fp16-tc, bf16-tc, fp8-tc or all; "
        "default: fp32",
    )
    what.add_argument("--propagation", metavar="KIND", help="inference (default) or training")
    what.add_argument("--pool", metavar="MODE", help="max or avg, for descriptors of pooling")

    how = parser.add_argument_group("how it is timed")
    how.add_argument(
        "--cache", **many, metavar="STATE", help="hot (default), weights-cold, all-cold or all"
    )
    how.add_argument(
        "--layout",
        **many,
        metavar="LAYOUT",
        help="best (default: tries them all), any (the library's choice), nchw, nhwc or blocked",
    )
    how.add_argument("--threads", **many, metavar="N", help="default: one per physical core")
    how.add_argument(
        "--device", metavar="DEVICE", help="cpu or cuda:N; default: the GPU if there is one"
    )
    how.add_argument(
        "--backend",
        **many,
        metavar="NAME",
        help="native (default), torch, tensorflow, cupy, numba or all, sampled in turn",
    )
    how.add_argument(
        "--mode",
        **many,
        metavar="MODE",
        help="of frameworks: eager, compiled (torch), graph, xla (tensorflow); default: all",
    )
    how.add_argument(
        "--budget", metavar="S", default="2", help="seconds of sampling per kernel (2)"
    )
    how.add_argument(
        "--confidence", metavar="C", default="0.95", help="level of the median's interval (0.95)"
    )
    how.add_argument("--seed", metavar="N", default="0", help="seed of data and order (0)")

    gpu = parser.add_argument_group("on a GPU")
    gpu.add_argument(
        "--timing",
        **many,
        metavar="HOW",
        help="events (each sample behind a closed gate), cuda-graph (many launches in a graph); "
        "default: a graph where caches are hot, events where they are cold",
    )
    gpu.add_argument(
        "--fuse",
        **many,
        metavar="WHAT",
        help="none (default), bias (as frameworks do, and its gradient), bias-relu (on a GPU, in "
        "the same kernel) or all",
    )
    gpu.add_argument(
        "--workspace-limit",
        metavar="BYTES",
        help="scratch memory that a kernel may ask for: 64M, 2GiB...; default: 8GiB",
    )
    gpu.add_argument("--energy", action="store_true", help="measure joules per execution as well")

    output = parser.add_argument_group("what is shown")
    output.add_argument(
        "--algorithms", action="store_true", help="list every implementation that was tried"
    )
    output.add_argument(
        "--explain", action="store_true", help="show what is behind the causes of slower backends"
    )
    output.add_argument("--samples", action="store_true", help="keep the raw samples in JSON")
    for kind in ("json", "csv", "md"):
        output.add_argument(f"--{kind}", metavar="FILE", help=f"write {kind}; - is stdout")
    output.add_argument("--quiet", action="store_true", help="no progress and no warnings")

    kept = parser.add_argument_group("where it is kept")
    add_store_option(kept)
    kept.add_argument(
        "--resume",
        metavar="RUN",
        help="go on where a run stopped: an id, a tag or last; its options are taken from it",
    )


def run(args: argparse.Namespace, session_factory: SessionFactory | None = None) -> int:
    """Time what ``args`` ask for and show it.

    Everything that can be wrong with the request is found before the first measurement.

    Args:
        args: The command's options.
        session_factory: Gives a session for the options of ``measure.Options`` as keywords.

    Returns:
        0; 1 if no row is ok; 130 after Ctrl-C, with what was finished until then.

    Raises:
        UsageError: Bad input; nothing was measured and nothing written.
    """
    from pydlbench.cli.interrupts import OneInterrupt
    from pydlbench.cli.layers_running import Running
    from pydlbench.cli.output import Outputs
    from pydlbench.cli.progress import Progress
    from pydlbench.cli.recording import Recorder
    from pydlbench.cli.request import read_request
    from pydlbench.cli.resuming import with_options
    from pydlbench.cli.streams import tell

    outputs = Outputs.from_args(args)
    args = with_options(args, add_parser, "layers")
    request = read_request(args)
    for note in () if args.quiet else request.notes:
        tell(f"note: {note}")
    with Recorder.of(args, "layers", args.resume) as recorder:
        progress = Progress(sys.stderr, quiet=args.quiet)
        running = Running(request, recorder, progress, samples=args.samples)
        with OneInterrupt() as interrupts:
            try:
                running.measure(session_factory or _open_session, interrupts)
            finally:
                progress.close()
            run = running.record()
            if run is not None:
                recorder.finish(run, running.status)
                outputs.show(run, running.rows, interrupted=running.early)
    if running.trouble is not None:
        raise running.trouble
    if running.interrupted:
        tell(f"interrupted: {len(running.rows)} of {request.rows} rows finished")
        return 130
    return 0 if any(row.ok for row in running.rows) else 1


def _open_session(**options: Any) -> AbstractContextManager[LayerSession]:
    from pydlbench.measure import Options, Session

    session: AbstractContextManager[LayerSession] = Session(Options(**options))
    return session
