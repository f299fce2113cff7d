"""The options of ``pydlbench layers``."""

from functools import partial

from pydlbench.backends import capabilities
from pydlbench.cli.options import (
    BATCH,
    BUDGET,
    DEVICE,
    EXPLAIN,
    FAIL_ON,
    GPU,
    HOW,
    LAYOUT,
    MINUTES,
    MODE,
    OP,
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
from pydlbench.words import CACHES, FUSIONS, LAYOUTS, PASSES, PROPAGATIONS, TIMINGS


def layer_backends() -> list[str]:
    """Return the names of the backends that compute layers."""
    return [backend.name for backend in capabilities.all_capabilities() if backend.layers]


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
    op: str | None = OP()
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
    minutes: float | None = MINUTES()
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
        "what is fused with the layer: none (default), bias (and its gradient), bias-relu; on a "
        "CPU oneDNN's post-ops, too: bias+relu+sum:0.5+add:per_oc, src_scale+weights_scale",
        group=HOW,
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
