"""The axes of ``pydlbench layers``: every combination of their values is a row."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from itertools import product
from typing import TYPE_CHECKING, Final

from pydlbench.cli.layer_options import LayersOptions
from pydlbench.cli.terminal import tell
from pydlbench.cli.values import choices
from pydlbench.errors import UsageError, nearest
from pydlbench.ops.op import Layer
from pydlbench.words import CPU_PRECISIONS, FUSIONS, GPU_PRECISIONS, LAYOUTS, PASSES

if TYPE_CHECKING:
    from pydlbench.cli.recorded import Log

    #: Layer, pass, precision and propagation.
    Problem = tuple[Layer, str, str, str]

_DEFAULT_PATTERN: Final = "alexnet/*"
_MAX_LAYERS: Final = 50_000


def read_problems(
    args: LayersOptions, device: str
) -> tuple[list[Problem], Log | None, tuple[str, ...]]:
    """Return the problems, the log that they come from, if any, and notes.

    Raises:
        UsageError: A value is bad, or no layer has the passes.
    """
    passes = choices("--pass", ",".join(args.pass_), PASSES, "all")
    precisions = _precisions(device, args.precision)
    kinds = args.propagation
    if "propagation" in args.given and "forward" not in passes:
        raise UsageError(
            f"--propagation {','.join(kinds)}: cannot be combined with --pass "
            f"{','.join(passes)}, only the forward pass has it; nearest: --pass forward"
        )
    log: Log | None = None
    if any(shape.startswith("@") for shape in args.shape):
        # A third of the imports of a command.
        from pydlbench.cli.recorded import read_log

        log = read_log(args, args.shape, args.model)
    if log is None:
        layers = _read_layers(args)
        problems = [
            (layer, pass_, precision, kind)
            for layer, pass_, precision, kind in product(layers, passes, precisions, kinds)
            # Backward passes have no propagation.
            if pass_ in layer.passes and (pass_ == "forward" or kind == kinds[0])
        ]
        notes = () if "all" in args.pass_ else _missing_passes(layers, passes)
    else:
        layers = [recorded.layer for recorded, _ in log.layers]
        problems = _recorded(args, log, passes, precisions, device)
        notes = log.notes
    if not problems:
        valid = ", ".join(dict.fromkeys(pass_ for layer in layers for pass_ in layer.passes))
        words = ", ".join(dict.fromkeys(map(_kind_text, layers)))
        raise UsageError(f"--pass {','.join(passes)}: {words} has no such pass; choices: {valid}")
    return problems, log, notes


def _recorded(
    args: LayersOptions, log: Log, passes: Sequence[str], precisions: Sequence[str], device: str
) -> list[Problem]:
    """Return the problems of a log; options that are given replace what it says."""
    problems: dict[Problem, None] = {}
    for recorded, precision in log.layers:
        if "pass_" in args.given and recorded.pass_ not in passes:
            continue
        usual = precision if device == "cpu" or precision == "fp32" else f"{precision}-tc"
        kinds = args.propagation if "propagation" in args.given else [recorded.propagation]
        # Backward passes have no propagation.
        kinds = kinds if recorded.pass_ == "forward" else args.propagation[:1]
        chosen = precisions if "precision" in args.given else [usual]
        for name, kind in product(chosen, kinds):
            problems[recorded.layer, recorded.pass_, name, kind] = None
    return list(problems)


# -----------------------------------------------------------------------------
# Layers: names, globs, descriptors and models, by batch.


def _read_layers(args: LayersOptions) -> list[Layer]:
    """Return the layers of ``--shape``, ``--model``, ``--batch`` and ``--pool``.

    Raises:
        UsageError: there is none, or a value is bad.
    """
    from pydlbench.models.catalog import check_pool_used, find_layers

    shapes = list(args.shape)
    models = [f"{name}/*" for name in _models(args.model)]
    if not shapes and not models:
        shapes = [_DEFAULT_PATTERN]
    notify = None if args.quiet else tell
    layers: dict[Layer, None] = {}
    for batch in args.batch or [None]:
        for name, patterns, pool in (("--shape", shapes, args.pool), ("--model", models, None)):
            if patterns:
                layers |= dict.fromkeys(
                    find_layers(patterns, batch, pool, option=name, tell=notify)
                )
            if len(layers) > _MAX_LAYERS:
                raise UsageError(
                    f"{name}: more than {_MAX_LAYERS:,} layers with all batches; nearest: fewer"
                )
    if not shapes:
        check_pool_used(args.pool, used=False)
    return list(layers)


def _models(names: Sequence[str]) -> Sequence[str]:
    from pydlbench.models.catalog import entry_names, is_entry
    from pydlbench.models.user_model import is_onnx

    for name in names:
        if ":" in name or is_onnx(name):
            raise UsageError(
                f"--model {name}: the layers of a model of your own are known when it has run; "
                f"nearest: pydlbench breakdown {name}, or --shape @FILE, a trace of it"
            )
        if "/" in name or name.startswith("@"):
            raise UsageError(f"--model {name}: not a model's name; nearest: --shape {name}")
        if not set(name) & set("*?[") and not is_entry(name):
            known = entry_names()
            near = ", ".join(nearest(name, known) or known)
            raise UsageError(f"--model {name}: no such model; nearest: {near}")
    return names


def _missing_passes(layers: Sequence[Layer], passes: Sequence[str]) -> tuple[str, ...]:
    """Return a note for each pass that some of the layers do not have."""
    notes = []
    for pass_ in passes:
        without: dict[str, list[str]] = {}
        for layer in layers:
            if pass_ not in layer.passes:
                without.setdefault(_kind_text(layer), []).append(layer.name or layer.problem)
        notes += [
            f"{kind} has no {pass_} pass, left out: {', '.join(names)}"
            for kind, names in without.items()
        ]
    return tuple(notes)


def _kind_text(layer: Layer) -> str:
    """Return the name of a layer's kind in messages."""
    if layer.kind == "pointwise":
        return layer.op
    return "pooling" if layer.op == "pool" else layer.kind


# -----------------------------------------------------------------------------
# Values that depend on the device.


def _precisions(device: str, given: Sequence[str]) -> list[str]:
    if device == "cpu":
        gpu_only = set(GPU_PRECISIONS) - set(CPU_PRECISIONS)
        _refuse_gpu_values("--precision", given, gpu_only, [*CPU_PRECISIONS, "all"])
    allowed = CPU_PRECISIONS if device == "cpu" else GPU_PRECISIONS
    return choices("--precision", ",".join(given), allowed, "all")


def read_fusions(device: str, given: Sequence[str]) -> list[str]:
    """Return the fusions; native ones, and those with a ReLU, are for GPUs only.

    Raises:
        UsageError: a fusion is unknown, or not for this device.
    """
    known = [name for name in FUSIONS if device != "cpu" or name != "bias-relu"]
    if device == "cpu":
        _refuse_gpu_values("--fuse", given, {"bias-relu"}, known)
    return choices("--fuse", ",".join(given), known, "all")


def _refuse_gpu_values(
    option: str, given: Sequence[str], gpu_only: Collection[str], choices_here: Sequence[str]
) -> None:
    for value in given:
        if value in gpu_only:
            raise UsageError(
                f"{option} {value}: for GPUs only; nearest: --device cuda:0; choices: "
                f"{', '.join(choices_here)}"
            )


def read_layouts(device: str, args: LayersOptions) -> list[str]:
    """Return the layouts of this kind of device, and refuse options of the other kind.

    ``all`` means all that the device has; ``blocked`` is refused on a GPU if it is named.

    Raises:
        UsageError: an option has no meaning on the device.
    """
    if device != "cpu":
        if "blocked" in args.layout and len(args.layout) < len(LAYOUTS):
            raise UsageError("--layout blocked: for CPUs only; nearest: --layout nhwc")
        return [layout for layout in args.layout if layout != "blocked"]
    args.refuse(("timing", "energy", "workspace_limit"), "on a CPU", "--device cuda:0")
    return list(args.layout)


def read_threads(given: Sequence[int]) -> tuple[int | None, ...]:
    """Return the numbers of threads; None is one per physical core.

    Raises:
        UsageError: there are fewer CPUs. The session checks that too, but in a list too late.
    """
    if hasattr(os, "sched_getaffinity"):
        usable = len(os.sched_getaffinity(0))
        for count in given:
            if count > usable:
                raise UsageError(
                    f"--threads {count}: this process may use {usable} logical CPUs only; "
                    f"nearest: {usable}"
                )
    return tuple(given) or (None,)
