"""From the options of ``layers`` to the list of cases, or to one line that says what is wrong."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any

from pydlbench.backends.case import (
    BACKENDS,
    CACHES,
    CPU_PRECISIONS,
    FUSIONS,
    GPU_PRECISIONS,
    LAYOUTS,
    MODES,
    PROPAGATIONS,
    TIMINGS,
    Case,
    check_device,
)
from pydlbench.backends.native.presence import default_device
from pydlbench.backends.offers import offer
from pydlbench.cli.request_layers import left_out_of, read_layers, word_of
from pydlbench.cli.values import (
    byte_count,
    choices,
    fraction,
    positive_seconds,
    whole_number,
    wholes,
)
from pydlbench.errors import UsageError
from pydlbench.layers import PASSES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

__all__ = ["Request", "read_request"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be measured.

    Attributes:
        cases: Every combination, in the order of the rows.
        threads: Numbers of threads; ``None`` is one per physical core.
        options: Keywords of ``measure.Options`` other than ``threads``.
        notes: What was left out, and why.
    """

    cases: tuple[Case, ...]
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
        Case(
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
    named = choices("--backend", args.backend or ["native"], BACKENDS, "all")
    modes = choices("--mode", args.mode, MODES, "all") if args.mode else list(MODES)
    kind = device.partition(":")[0]
    every = "all" in ",".join(args.backend or ()).split(",")
    found: list[tuple[str, str | None]] = []
    notes = []
    for name in named:
        known = offer(name).modes.get(kind)
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
        known_here = [mode for name in named for mode in offer(name).modes.get(kind, ()) if mode]
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
