"""``pydlbench layers``: time layers, measured against theoretical."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from pydlbench.errors import PydlbenchError

if TYPE_CHECKING:
    import argparse

    from pydlbench.backends.case import Case
    from pydlbench.cli.interrupts import OneInterrupt
    from pydlbench.cli.progress import Progress
    from pydlbench.cli.request import Request
    from pydlbench.results import Measurement, RunRecord

__all__ = ["SessionFactory", "add_parser", "run"]


class _Session(Protocol):
    @property
    def run(self) -> RunRecord: ...

    def measure(
        self, cases: Sequence[Case], progress: Callable[[int, int, str], None]
    ) -> Iterable[Measurement]: ...


SessionFactory = Callable[..., AbstractContextManager[_Session]]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the command."""
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
        "(mb128ic192ih13oc384oh13kh3ph1, 128x9216:9216x4096, on a GPU relu:mb128ic96ih55 and "
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
    from pydlbench.cli.output import Outputs
    from pydlbench.cli.progress import Progress
    from pydlbench.cli.request import read_request
    from pydlbench.cli.streams import tell

    outputs = Outputs.from_args(args)
    request = read_request(args)
    for note in () if args.quiet else request.notes:
        tell(f"note: {note}")
    progress = Progress(sys.stderr, quiet=args.quiet)
    finished = _Finished()
    with OneInterrupt() as interrupts:
        try:
            finished.measure(request, session_factory or _open_session, progress, interrupts)
        finally:
            progress.close()
        run = finished.record()
        if run is not None:
            outputs.show(run, finished.rows, interrupted=finished.early)
    if finished.trouble is not None:
        raise finished.trouble
    if finished.interrupted:
        tell(f"interrupted: {len(finished.rows)} of {request.rows} rows finished")
        return 130
    return 0 if any(row.ok for row in finished.rows) else 1


@dataclass(slots=True)
class _Finished:
    """What is finished; survives whatever ends the measuring early."""

    runs: list[tuple[int, RunRecord]] = field(default_factory=list)
    rows: list[Measurement] = field(default_factory=list)
    interrupted: bool = False
    trouble: PydlbenchError | None = None

    @property
    def early(self) -> bool:
        return self.interrupted or self.trouble is not None

    def record(self) -> RunRecord | None:
        """Return one record for all sessions: the first's, with the device at most threads."""
        if not self.runs:
            return None
        device = dict(max(self.runs, key=lambda pair: pair[0])[1].device)
        if len(self.runs) > 1:
            device["by_threads"] = {str(threads): run.device for threads, run in self.runs}
        return dataclasses.replace(self.runs[0][1], device=device)

    def measure(
        self,
        request: Request,
        factory: SessionFactory,
        progress: Progress,
        interrupts: OneInterrupt,
    ) -> None:
        """Measure all; what an error leaves behind is kept, if there is anything to show."""
        try:
            try:
                for threads in request.threads:
                    self._one_session(request, threads, factory, progress)
            finally:
                # Inside the outer try: no moment is left in which Ctrl-C could get past it.
                interrupts.ignore()
        except KeyboardInterrupt:
            self.interrupted = True
        except PydlbenchError as error:
            if not self.rows:
                raise
            self.trouble = error

    def _one_session(
        self, request: Request, threads: int | None, factory: SessionFactory, progress: Progress
    ) -> None:
        before = len(self.rows)

        def advance(done: int, _total: int, label: str) -> None:
            progress(before + done, request.rows, label)

        with factory(**request.options, threads=threads) as session:
            try:
                # Not a comprehension: Ctrl-C must find the rows that are finished.
                for row in session.measure(request.cases, progress=advance):
                    self.rows.append(row)
            finally:
                # Only now: peaks and bandwidths are probed while rows are measured.
                try:
                    run = session.run
                except KeyboardInterrupt:  # the only one there is: see OneInterrupt
                    run = session.run
                    self.interrupted = True
                self.runs.append((threads or run.device.get("threads") or 0, run))


def _open_session(**options: Any) -> AbstractContextManager[_Session]:
    from pydlbench.measure import Options, Session

    session: AbstractContextManager[_Session] = Session(Options(**options))
    return session
