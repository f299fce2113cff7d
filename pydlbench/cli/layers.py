"""``pydlbench layers``: time layers, measured against theoretical."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

from pydlbench.backends import capabilities
from pydlbench.backends.capabilities import default_device
from pydlbench.cli.options import (
    byte_count,
    choices,
    fraction,
    positive_seconds,
    split_patterns,
    whole_number,
    wholes,
)
from pydlbench.errors import UsageError, nearest
from pydlbench.layers.base import PASSES
from pydlbench.layers.descriptor import POOL_MODES
from pydlbench.layers.pointwise import Pointwise
from pydlbench.models.catalog import entry_names, find_layers, is_entry
from pydlbench.records.specs import (
    CACHES,
    CPU_PRECISIONS,
    FUSIONS,
    GPU_PRECISIONS,
    LAYOUTS,
    PROPAGATIONS,
    TIMINGS,
    KernelSpec,
    check_device,
)

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from pydlbench.cli.layers_running import LayerSession, SessionFactory
    from pydlbench.layers.layer import Layer

__all__ = ["Request", "add_parser", "read_request", "run"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Describe the command."""
    from pydlbench.cli.options import add_store_option

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
        help=f"native (default), {', '.join(capabilities.names()[1:])} or all, sampled in turn",
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
    from pydlbench.cli.layers_running import Running
    from pydlbench.cli.output import Outputs
    from pydlbench.cli.recorder import Recorder
    from pydlbench.cli.resuming import with_options
    from pydlbench.cli.terminal import OneInterrupt, Progress, tell

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
    from pydlbench.runner.session import Options, Session

    session: AbstractContextManager[LayerSession] = Session(Options(**options))
    return session


# -----------------------------------------------------------------------------
# Which layers are timed: names, globs, descriptors and models, by batch.

_DEFAULT_PATTERN = "alexnet/*"


def read_layers(args: argparse.Namespace) -> list[Layer]:
    """Return the layers that ``--shape``, ``--model``, ``--batch`` and ``--pool`` ask for.

    Raises:
        UsageError: there is none, or a value is bad.
    """
    pool = choices("--pool", [args.pool], POOL_MODES)[0] if args.pool is not None else None
    shapes = split_patterns(args.shape or ())
    if args.shape and not shapes:
        raise UsageError("--shape '': empty; nearest: conv3")
    models = [f"{name}/*" for name in _models(args.model)]
    if not shapes and not models:
        shapes = [_DEFAULT_PATTERN]
    batches: Sequence[int | None] = wholes("--batch", args.batch) if args.batch else [None]
    found: dict[Layer, None] = {}
    for batch in batches:
        for option, patterns in (("--shape", shapes), ("--model", models)):
            layers = find_layers(patterns, batch, pool, option=option) if patterns else ()
            found |= dict.fromkeys(layers)
    return list(found)


def _models(given: Sequence[str] | None) -> list[str]:
    names = split_patterns(given or ())
    if given and not names:
        raise UsageError("--model '': empty; nearest: alexnet")
    for name in names:
        if "/" in name or name.startswith("@"):
            raise UsageError(f"--model {name}: not a model's name; nearest: --shape {name}")
        if not set(name) & set("*?[") and not is_entry(name):
            known = entry_names()
            near = ", ".join(nearest(name, known) or known)
            raise UsageError(f"--model {name}: no such model; nearest: {near}")
    return names


def left_out_of(layers: Sequence[Layer], passes: Sequence[str]) -> tuple[str, ...]:
    """Return a note for every pass that some of the layers have not."""
    notes = []
    for pass_ in passes:
        without = [layer for layer in layers if pass_ not in layer.passes]
        for word in dict.fromkeys(map(word_of, without)):
            names = [layer.name or layer.problem for layer in without if word_of(layer) == word]
            notes.append(f"{word} has no {pass_} pass, left out: {', '.join(names)}")
    return tuple(notes)


def word_of(layer: Layer) -> str:
    """Return what a layer without all three passes is called."""
    return layer.op if isinstance(layer, Pointwise) else "pooling"


# -----------------------------------------------------------------------------
# From the options of ``layers`` to the list of cases, or to one line that says what is wrong.


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be measured.

    Attributes:
        cases: Every combination, in the order of the rows.
        threads: Numbers of threads; ``None`` is one per physical core.
        options: Keywords of ``measure.Options`` other than ``threads``.
        notes: What was left out, and why.
    """

    cases: tuple[KernelSpec, ...]
    threads: tuple[int | None, ...]
    options: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """How many measurements this makes."""
        return len(self.cases) * len(self.threads)


def read_request(args: argparse.Namespace) -> Request:
    """Check the options of ``layers`` and combine them.

    Raises:
        UsageError: A value is bad, or two options exclude each other.
    """
    device, notes = _device(args.device)
    on_gpu = device != "cpu"
    backends, left_out = _backends(args, device)
    notes += left_out
    passes = choices("--pass", args.pass_ or ["forward"], PASSES, "all")
    precisions = _precisions(on_gpu, args.precision or ["fp32"])
    caches = choices("--cache", args.cache or ["hot"], CACHES, "all")
    layouts = choices("--layout", args.layout or ["best"], LAYOUTS, "all")
    layouts = _for_gpus(on_gpu, args, layouts)
    timings = choices("--timing", args.timing or ["auto"], TIMINGS)
    fusions = _fusions(on_gpu, args.fuse or ["none"])
    kinds = choices("--propagation", [args.propagation or "inference"], PROPAGATIONS, "both")
    if args.propagation is not None and "forward" not in passes:
        raise UsageError(
            f"--propagation {args.propagation}: cannot be combined with --pass "
            f"{','.join(passes)}, only the forward pass has it; nearest: --pass forward"
        )
    options = {
        "seed": whole_number("--seed", args.seed, 0),
        "budget_s": positive_seconds("--budget", args.budget),
        "confidence": fraction("--confidence", args.confidence, 0.5, 1.0),
        "keep_samples": True,  # for the store; outputs have them only with --samples
        "algorithms": args.algorithms,
        "workspace_bytes": byte_count("--workspace-limit", args.workspace_limit),
        "energy": args.energy,
    }
    threads = _threads(args.threads)
    layers = read_layers(args)
    wanted = [(layer, pass_) for layer in layers for pass_ in passes if pass_ in layer.passes]
    every = set(args.pass_ or ()) & {"all"}
    cases = [
        KernelSpec(
            layer=layer,
            pass_=pass_,
            precision=precision,
            propagation=kind,
            cache=cache,
            layout=layout,
            backend=backend,
            device=device,
            mode=mode,
            timing=timing,
            fuse=fuse,
        )
        for (layer, pass_), precision, kind, cache, layout, timing, fuse, (
            backend,
            mode,
        ) in product(wanted, precisions, kinds, caches, layouts, timings, fusions, backends)
        # Backward passes know one kind only.
        if pass_ == "forward" or (kind == kinds[0] and _has_gradient(fuse, pass_, fusions))
    ]
    if not cases:
        valid = ", ".join(dict.fromkeys(pass_ for layer in layers for pass_ in layer.passes))
        words = ", ".join(dict.fromkeys(word_of(layer) for layer in layers))
        raise UsageError(f"--pass {','.join(passes)}: {words} has no such pass; choices: {valid}")
    notes += () if every else left_out_of(layers, passes)
    return Request(cases=tuple(cases), threads=threads, options=options, notes=notes)


def _backends(
    args: argparse.Namespace, device: str
) -> tuple[list[tuple[str, str | None]], tuple[str, ...]]:
    """Every backend with each of its modes, and notes on those that are left out."""
    named = choices("--backend", args.backend or ["native"], capabilities.names(), "all")
    modes = (
        choices("--mode", args.mode, capabilities.modes(), "all")
        if args.mode
        else list(capabilities.modes())
    )
    kind = device.partition(":")[0]
    every = "all" in ",".join(args.backend or ()).split(",")
    found: list[tuple[str, str | None]] = []
    notes = []
    for name in named:
        known = capabilities.of(name).modes.get(kind)
        if known is None and every:
            notes.append(f"{name} does not run on {device}, left out")
        elif known is None:
            found.append((name, None))  # it was asked for: its row says why
        else:
            fitting = [(name, mode) for mode in known if mode is None or mode in modes]
            if not fitting:
                notes.append(f"{name} has no mode {','.join(modes)}, left out")
            found += fitting
    if args.mode:
        known_here = [
            mode for name in named for mode in capabilities.of(name).modes.get(kind, ()) if mode
        ]
        _check_modes(args.mode, modes, named, known_here)
    return found, tuple(notes)


def _check_modes(
    given: Sequence[str], modes: Sequence[str], named: Sequence[str], valid: Sequence[str]
) -> None:
    """Refuse a mode that none of the backends has; of ``all`` it is enough that they have one."""
    every = "all" in ",".join(given).split(",")
    strange = [] if every and valid else [mode for mode in modes if mode not in valid]
    if not strange:
        return
    has = "has" if len(named) == 1 else "have"
    near = ", ".join(valid) or "--backend torch"
    raise UsageError(
        f"--mode {'all' if every else strange[0]}: {', '.join(named)} {has} no such mode; "
        f"nearest: {near}"
    )


def _device(given: str | None) -> tuple[str, tuple[str, ...]]:
    """The device to use, and a note where a GPU that is there is left out."""
    if given is None:
        return default_device()
    check_device(given)
    return given, ()


def _precisions(on_gpu: bool, given: list[str]) -> list[str]:
    """The precisions of this kind of device; those of GPUs name the option that is lacking."""
    if not on_gpu:
        for value in (part.strip() for word in given for part in word.split(",")):
            if value in GPU_PRECISIONS and value not in CPU_PRECISIONS:
                raise UsageError(
                    f"--precision {value}: for GPUs only; nearest: --device cuda:0; choices: "
                    f"{', '.join(CPU_PRECISIONS)}, all"
                )
    return choices("--precision", given, GPU_PRECISIONS if on_gpu else CPU_PRECISIONS, "all")


def _fusions(on_gpu: bool, given: list[str]) -> list[str]:
    """What is computed in the same call; natively, and with a ReLU, on GPUs only."""
    if not on_gpu:
        for value in (part.strip() for word in given for part in word.split(",")):
            if value == "bias-relu":
                raise UsageError(
                    "--fuse bias-relu: for GPUs only; nearest: --device cuda:0; choices: none, bias"
                )
    known = FUSIONS if on_gpu else [one for one in FUSIONS if one != "bias-relu"]
    return choices("--fuse", given, known, "all")


def _has_gradient(fuse: str, pass_: str, fusions: Sequence[str]) -> bool:
    """Whether a backward pass is another one with this fusion; what is asked for first stays."""
    return fuse == fusions[0] or (fuse == "bias" and pass_ == "backward-weights")


def _for_gpus(on_gpu: bool, args: argparse.Namespace, layouts: list[str]) -> list[str]:
    """Refuse what only the other kind of device knows, and narrow ``all`` to what this one has."""
    if on_gpu:
        if "blocked" in (args.layout or ()):
            raise UsageError("--layout blocked: for CPUs only; nearest: --layout nhwc")
        if args.threads:
            raise UsageError(f"--threads {args.threads[0]}: for CPUs only; nearest: leave it out")
        return [layout for layout in layouts if layout != "blocked"]
    for option, value, idle in (
        ("--timing", args.timing, None),
        ("--energy", args.energy, False),
        ("--workspace-limit", args.workspace_limit, None),
    ):
        if value != idle:
            text = (
                option
                if value is True
                else f"{option} {value if isinstance(value, str) else value[0]}"
            )
            raise UsageError(f"{text}: for GPUs only; nearest: --device cuda:0")
    return layouts


def _threads(given: Sequence[str] | None) -> tuple[int | None, ...]:
    if not given:
        return (None,)
    counts = wholes("--threads", given)
    # The session checks this too; asked here, because with a list it would be found too late.
    if hasattr(os, "sched_getaffinity"):
        usable = len(os.sched_getaffinity(0))
        for count in counts:
            if count > usable:
                raise UsageError(
                    f"--threads {count}: this process may use {usable} logical CPUs only; "
                    f"nearest: {usable}"
                )
    return tuple(counts)
