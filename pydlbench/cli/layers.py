"""``pydlbench layers``: time layers, measured against theoretical."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from pydlbench.cli.layer_backends import layer_backends
from pydlbench.cli.layer_request import read_request
from pydlbench.cli.options import (
    BATCH,
    BUDGET,
    DEVICE,
    EXPLAIN,
    FAIL_ON,
    GPU,
    HOW,
    LAYOUT,
    MODE,
    OUTPUT,
    POOL,
    PRECISION,
    REPETITIONS,
    RESUME,
    SEED,
    THREADS,
    WHAT,
    WIDTH,
    Measuring,
    TableOutput,
    flag,
    option,
)
from pydlbench.cli.values import byte_count, choices, patterns, splits, wholes
from pydlbench.errors import PydlbenchError, UsageError
from pydlbench.words import CACHES, FUSIONS, LAYOUTS, PASSES, PROPAGATIONS, TIMINGS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydlbench.cli.recorded import Log
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.recorded import RecordedSteps
    from pydlbench.records.run import RunRecord
    from pydlbench.report.blocks import Block
    from pydlbench.runner.execute import Results
    from pydlbench.runner.tasks import Task


class LayersOptions(Measuring, TableOutput):
    """The options of ``layers``."""

    description = (
        "Time layers, each on its own, and compare them with the limits of the hardware. An option "
        "with several values, separated by commas, multiplies the rows: every combination is timed."
    )
    usual = "shape"
    shape: tuple[str, ...] = option(
        "SHAPE",
        "a layer's name (conv3, vgg16/conv3_2, 'vgg16/*'), a descriptor as benchdnn's "
        "(mb128ic192ih13oc384oh13kh3ph1, 128x9216:9216x4096, relu:mb128ic96ih55), or @FILE: one "
        "of these per line, a log of ONEDNN_VERBOSE=1, or a trace of PyTorch's or onnxruntime's "
        "profiler; default: all layers of alexnet",
        group=WHAT,
        many=True,
        read=patterns,
        default=(),
    )
    model: tuple[str, ...] = option(
        "MODEL",
        "all layers of a model of the catalogue",
        group=WHAT,
        many=True,
        read=patterns,
        default=(),
    )
    batch: tuple[int, ...] = BATCH(
        help="batch size, in place of each layer's own", many=True, read=wholes, default=()
    )
    precision: tuple[str, ...] = PRECISION(
        help=f"{PRECISION.help} or all", many=True, read=splits, default=("fp32",)
    )
    pass_: tuple[str, ...] = option(
        "PASS",
        "forward (default), backward-data, backward-weights or all",
        group=WHAT,
        many=True,
        read=splits,
        default=PASSES[:1],
    )
    propagation: tuple[str, ...] = option(
        "KIND",
        "what the forward pass is for: inference (default), training (keeps what the backward pass "
        "needs) or both",
        group=WHAT,
        many=True,
        read=partial(choices, allowed=PROPAGATIONS, every="both"),
        default=PROPAGATIONS[:1],
    )
    pool: str | None = POOL()
    cache: tuple[str, ...] = option(
        "STATE",
        "what the caches hold before each execution: hot (all tensors; default), weights-cold (all "
        "but the weights), all-cold (nothing) or all three",
        group=HOW,
        many=True,
        read=partial(choices, allowed=CACHES, every="all"),
        default=CACHES[:1],
    )
    layout: tuple[str, ...] = LAYOUT(
        help="memory layout: best (default; the fastest of the others), any (the library's "
        "choice), nchw, nhwc, blocked or all",
        group=HOW,
        many=True,
        read=partial(choices, allowed=LAYOUTS, every="all"),
        default=LAYOUTS[:1],
    )
    threads: tuple[int, ...] = THREADS(many=True, read=wholes, default=())
    seed: int = SEED()
    device: str | None = DEVICE()
    backend: tuple[str, ...] = option(
        "NAME",
        f"native (default: the vendor's library, called directly), "
        f"{', '.join(layer_backends()[1:])}, or all; or FILE.py:LAUNCH, a kernel of your own "
        "on PyTorch's tensors",
        group=HOW,
        many=True,
        read=splits,
        default=("native",),
    )
    mode: tuple[str, ...] | None = MODE(
        help="of torch: eager (default), compiled or frozen; of tensorflow: graph (default) or "
        "xla; or all; default with --backend all: all but frozen",
        group=HOW,
    )
    budget: float | None = BUDGET(
        help="sampling time in seconds per row, over all repetitions (default: 1, of several "
        "backends 0.5)"
    )
    repetitions: int | None = REPETITIONS()
    width: float | None = WIDTH()
    algorithms: bool = flag("time and list every implementation that the library has", group=HOW)
    fresh: bool = flag(
        "search the fastest kernels and measure peaks and bandwidths again, instead of using those "
        "of earlier runs",
        group=HOW,
    )
    timing: tuple[str, ...] = option(
        "HOW",
        "events (around each execution, which waits until all is enqueued) or cuda-graph (many "
        "executions in one graph); default: cuda-graph with hot caches, events with cold ones",
        group=GPU,
        many=True,
        read=partial(choices, allowed=TIMINGS),
        default=TIMINGS[:1],
    )
    fuse: tuple[str, ...] = option(
        "WHAT",
        "what is fused with the layer: none (default), bias (and its gradient; on a CPU, too), "
        "bias-relu or all",
        group=GPU,
        many=True,
        read=splits,
        default=FUSIONS[:1],
    )
    workspace_limit: int | None = option(
        "BYTES",
        "maximum workspace of a kernel: 64M, 2GiB...; default: 8GiB",
        group=GPU,
        read=byte_count,
    )
    energy: bool = flag("also measure the energy of an execution, in joules", group=GPU)
    ncu: bool = flag(
        "print for each native row on a GPU the command that profiles it in Nsight Compute",
        group=OUTPUT,
    )
    samples: bool = flag(
        "put the raw samples into the JSON",
        group=OUTPUT,
        not_in_sweeps="raw samples are always kept in the store; nearest: leave it out",
    )
    explain: bool = EXPLAIN()
    fail_on: tuple[str, float] | None = FAIL_ON()
    resume: str | None = RESUME(help=f"{RESUME.help}; its options hold again")


def run(args: LayersOptions, session_factory: Callable[..., Any] | None = None) -> int:
    """Time layers and show them.

    Everything that can be wrong with the request is found before the first measurement.

    Args:
        args: The command's options.
        session_factory: Opens a session; its keywords are the session's options.

    Returns:
        0; 1 if no row is ok; 3 under ``--fail-on``; 130 after Ctrl-C, with what was finished.

    Raises:
        UsageError: Bad input; nothing was measured and nothing written.
    """
    if args.samples and args.json is None and args.format != "json":
        raise UsageError("--samples: raw samples are in JSON only; nearest: --samples --json -")
    args = resumed_options(args)
    bugs: list[Exception] = []
    with contextlib.ExitStack() as processes:

        def begin(threads: int | None) -> None:
            if session_factory is None:
                processes.enter_context(_native_ahead(threads))

        request = read_request(args, begin=begin)
        from pydlbench.cli.machine import reading_store
        from pydlbench.cli.measuring import answer
        from pydlbench.cli.output import expecting, row_warnings
        from pydlbench.records.measurement import Measurement
        from pydlbench.report.csv import to_csv
        from pydlbench.report.json import layers_document

        def measured(results: Results) -> list[Measurement]:
            return [outcome.record(Measurement) for outcome in results.outcomes]

        known: list[Sequence[Measurement]] = []

        def rows_of(results: Results) -> Sequence[Measurement]:
            if not known:
                rows = measured(results)
                # The run has warned of a store that cannot be read.
                with (
                    contextlib.suppress(PydlbenchError),
                    reading_store(args.store) as store,
                ):
                    rows = list(expecting(results.run, rows, store))
                known.append(rows)
            return known[0]

        code, _ = answer(
            *(args, "layers", request.tasks(), request.notes),
            lambda record, results: _report(args, record, rows_of(results), request.log, bugs),
            document=lambda results: layers_document(
                results.run,
                rows_of(results),
                interrupted=results.early,
                recorded=_recorded_steps(request.log, measured(results)),
            ),
            csv=lambda results: to_csv(results.run, rows_of(results)),
            warnings=lambda results: [
                *_device_warnings(results.run),
                *row_warnings(measured(results)),
            ],
            sessions=session_factory,
            request=request.document(),
            samples=args.samples,
        )
    if bugs:
        raise bugs[0]
    return code


def _recorded_steps(log: Log | None, rows: Sequence[Measurement]) -> RecordedSteps | None:
    """Return the log, its problems compared with the rows; None without a log or rows."""
    return log.described(rows) if log and rows else None


def _report(
    args: LayersOptions,
    record: RunRecord,
    rows: Sequence[Measurement],
    log: Log | None,
    bugs: list[Exception],
) -> list[Block]:
    """Return the blocks of rows; an error in the conclusion is added to ``bugs``."""
    from pydlbench.report.layers import layers_report
    from pydlbench.report.recorded import recorded_report
    from pydlbench.report.verdicts import conclude_run

    shown = {name: getattr(args, name) for name in ("algorithms", "explain", "ncu")}
    recorded = _recorded_steps(log, rows)
    conclusion: list[str] = []
    try:
        conclusion = conclude_run(record, rows)
    except Exception as error:  # noqa: BLE001 - a sentence must not cost the table
        bugs.append(error)
    return [
        *layers_report(record, rows, conclusion, **shown),
        *(recorded_report(recorded) if recorded else ()),
    ]


def _native_ahead(threads: int | None) -> contextlib.AbstractContextManager[None]:
    """Start the native process while modules are imported."""
    from pydlbench.devices.cpu.affinity import choose_cpus
    from pydlbench.devices.cpu.facts import read_cpu_facts
    from pydlbench.workers.host import launch_early

    return launch_early("native", "cpu", choose_cpus(read_cpu_facts(), threads))


def _device_warnings(record: RunRecord) -> list[str]:
    devices = record.devices()
    threads_by_text: dict[str, list[str]] = {}
    for threads, device in (devices or {"": record.device}).items():
        for item in device.get("warnings") or ():
            text = "; ".join(filter(None, (item["symptom"], item.get("remedy"))))
            threads_by_text.setdefault(text, []).append(threads)
    return [
        text if len(threads) >= len(devices) else f"{text} (with --threads {','.join(threads)})"
        for text, threads in threads_by_text.items()
    ]


def read_tasks(args: LayersOptions) -> tuple[list[Task], tuple[str, ...]]:
    """Return the tasks of a sweep's table, and notes on what is left out."""
    request = read_request(args, several=True)
    return request.tasks(), request.notes


# -----------------------------------------------------------------------------
# ``--resume``.

#: Options of the output, which may differ from those of the resumed run.
_OUTPUTS: Final = frozenset(
    (
        *("json", "csv", "md", "format", "quiet", "verbose", "samples", "explain"),
        *("ncu", "fail_on", "store", "resume"),
    )
)


def resumed_options(args: LayersOptions) -> LayersOptions:
    """Return the options of the resumed run if only options of the output are given.

    Raises:
        UsageError: there is no such run, or its command line cannot be read any more.
    """
    if args.resume is None or args.given.keys() - _OUTPUTS:
        return args
    from pydlbench.cli.measuring import run_to_resume

    with run_to_resume(args, args.resume, "layers") as (store, info):
        record = store.record(info.id)
    if record.command[1:2] != ("layers",):
        raise UsageError(
            f"--resume {args.resume}: run {record.id} was not begun by pydlbench layers; nearest: "
            "repeat its options beside --resume"
        )
    try:
        before = LayersOptions.parse(record.command[2:])
    except (PydlbenchError, SystemExit) as error:
        raise UsageError(
            f"--resume {args.resume}: the command line of run {record.id} cannot be read: {error}"
        ) from error
    return replace(before, **{name: getattr(args, name) for name in _OUTPUTS})


SUBCOMMANDS: Final = {"": (LayersOptions, run)}
