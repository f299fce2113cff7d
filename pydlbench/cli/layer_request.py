"""From the options of ``pydlbench layers`` to tasks, or to one line that says what is wrong."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from pydlbench.backends import capabilities
from pydlbench.cli.layer_options import LayersOptions, layer_backends
from pydlbench.cli.machine import check_threads, device_of
from pydlbench.cli.terminal import tell
from pydlbench.cli.values import choices
from pydlbench.errors import UsageError, nearest
from pydlbench.grouping import group_by
from pydlbench.ops.fused import NOTHING_FUSED, canonical_fusion
from pydlbench.ops.op import Layer
from pydlbench.runner.tasks import KernelTask, Task, TaskRow
from pydlbench.words import (
    CPU_LAYER_PRECISIONS,
    CPU_PRECISIONS,
    FUSIONS,
    GPU_LAYER_PRECISIONS,
    GPU_PRECISIONS,
    LAYOUTS,
    MIXED_TYPES,
    PASSES,
)

if TYPE_CHECKING:
    from pydlbench.cli.recorded import Log
    from pydlbench.models.lists import ListedLayer
    from pydlbench.records.measurement import KernelSpec

    #: Passes with their propagation, by layer.
    _Asked = Mapping[ListedLayer, Sequence[tuple[str, str]]]
    #: Layer, pass, precision, propagation and fused operations.
    Problem = tuple[Layer, str, str, str, str]

# Seconds of sampling per row if backends compete: each waits for all others, and what is compared
# is their ratio in the same rounds.
_INTERLEAVED_BUDGET_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersRequest:
    """What is to be measured.

    Attributes:
        cases: every combination of values, in the order of the rows.
        threads: numbers of threads; ``None`` is one per physical core.
        options: keywords of the session's options other than ``threads``.
        notes: notes on what was left out, and why.
        log: log that the cases come from; None if the layers were named instead.
    """

    cases: tuple[KernelSpec, ...]
    threads: tuple[int | None, ...]
    options: dict[str, Any]
    notes: tuple[str, ...] = ()
    log: Log | None = None

    def tasks(self) -> list[Task]:
        """Return a task for each number of threads, whose rows are interleaved."""
        return [
            KernelTask(
                rows=tuple(
                    TaskRow(fields=_fields(spec, threads), label=spec.label, spec=spec)
                    for spec in self.cases
                ),
                options={**self.options, "threads": threads},
            )
            for threads in self.threads
        ]

    def document(self) -> dict[str, Any]:
        """Return the request as a JSON object, for comparing: each axis by its option's name."""
        import hashlib

        from pydlbench.runner.execute import row_key

        rows = [(task, row) for task in self.tasks() for row in task.rows]
        axes = {
            name: list(dict.fromkeys(row.fields[name] for _, row in rows))
            for name in rows[0][1].fields
        }
        keys = "\n".join(row_key(task, row) for task, row in rows)
        options = {name: value for name, value in self.options.items() if name != "keep_samples"}
        # Two requests may have the same axes but other combinations.
        return {**axes, **options, "cases": hashlib.sha256(keys.encode()).hexdigest()[:16]}


def read_request(
    args: LayersOptions,
    *,
    several: bool = False,
    begin: Callable[[int | None], None] | None = None,
) -> LayersRequest:
    """Check the options of ``layers`` and combine them.

    Args:
        args: the options of ``layers``.
        several: whether there are other rows in the same run.
        begin: called with the number of threads as soon as it is known that a native process on the
            CPU is the first that is needed.

    Raises:
        UsageError: A value is bad, or two options exclude each other.
    """
    device, notes = device_of(args.device)
    if args.width:
        args.refuse(("repetitions",), "with --width")
    check_threads(args.threads or None, device)
    backends, left_out = read_backends(args, device)
    threads = read_threads(args.threads)
    native = device == "cpu" and any(name == "native" for name, _ in backends)
    if begin is not None and native and len(threads) == 1:
        begin(threads[0])
    layouts = read_layouts(device, args)
    problems, log, more = read_problems(args, device)
    from pydlbench.records.measurement import KernelSpec
    from pydlbench.timing.policy import LAYER_BUDGET_S

    combinations = product(problems, args.cache, layouts, args.timing, backends)
    specs = tuple(
        KernelSpec(
            layer=layer,
            pass_=pass_,
            precision=precision,
            propagation=propagation,
            cache=cache,
            layout=layout,
            backend=backend,
            device=device,
            mode=mode,
            timing=timing,
            fuse=fuse,
        )
        for (
            (layer, pass_, precision, propagation, fuse),
            cache,
            layout,
            timing,
            (backend, mode),
        ) in combinations
    )
    usual_s = _INTERLEAVED_BUDGET_S if len(backends) > 1 else LAYER_BUDGET_S
    options = {
        "seed": args.seed,
        "repetitions": args.repetitions,
        "width": args.width,
        "keep_probes": not args.fresh,
        "keep_samples": True,  # for the store; outputs have them only with --samples
        "algorithms": args.algorithms,
        "energy": args.energy,
        "budget_s": args.budget or usual_s,
    }
    if args.workspace_limit is not None:
        options["workspace_bytes"] = args.workspace_limit
    if several or len(specs) * len(threads) > 1:
        # Repetitions of a single row follow each other in one process; these are spread over the
        # run.
        options["renew"] = True
    notes += left_out + more
    return LayersRequest(cases=specs, threads=threads, options=options, notes=notes, log=log)


def _changed_by_fusion(fuse: str, pass_: str) -> bool:
    """Whether a pass computes something else with a fusion: gradients know only the bias."""
    return pass_ == "forward" or (fuse == "bias" and pass_ == "backward-weights")


def _fields(spec: KernelSpec, threads: int | None) -> dict[str, str]:
    name = spec.layer.name or spec.layer.problem
    return {
        "shape": name,
        "model": name.rpartition("/")[0],
        "kind": spec.layer.kind,
        "batch": str(spec.layer.batch),
        "pass": spec.pass_,
        "precision": spec.precision,
        "propagation": spec.propagation,
        "cache": spec.cache,
        "layout": spec.layout,
        "threads": "default" if threads is None else str(threads),
        "device": spec.device,
        "backend": spec.backend,
        "mode": spec.mode or "",
        "timing": spec.timing,
        "fuse": spec.fuse,
    }


# -----------------------------------------------------------------------------
# The axes of ``pydlbench layers``: every combination of their values is a row.

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
    kinds, fusions = args.propagation, read_fusions(device, args.fuse)
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
        listed, notes = _read_layers(args)
        layers = [row.layer for row in listed]
        # Options that are given replace those of a list. Backward passes have no propagation.
        usual = [
            (pass_, kind)
            for pass_, kind in product(passes, kinds)
            if pass_ == "forward" or kind == kinds[0]
        ]
        asked = {row: ("pass_" not in args.given and row.passes) or usual for row in listed}
        passes = list(dict.fromkeys(pass_ for pairs in asked.values() for pass_, _ in pairs))
        problems = [
            (row.layer, pass_, precision, kind, fuse)
            for row, pairs in asked.items()
            for pass_, kind in pairs
            for precision in (
                precisions
                if "precision" in args.given or not row.precisions
                else [_usual(device, name) for name in row.precisions]
            )
            for fuse in ("fuse" not in args.given and row.fusions) or fusions
            if pass_ in row.layer.passes and (fuse == fusions[0] or _changed_by_fusion(fuse, pass_))
        ]
        notes += () if "all" in args.pass_ else _missing_passes(asked, passes)
        if "fuse" not in args.given:
            notes += _unfused_passes(asked)
    else:
        layers = [recorded.layer for recorded, _ in log.layers]
        problems = _recorded(args, log, passes, precisions, device, fusions)
        notes = log.notes
    if not problems:
        if any(pass_ in layer.passes for layer in layers for pass_ in passes):
            raise UsageError(f"--shape {args.shape[0]}: {notes[-1]}; nearest: --fuse none")
        valid = ", ".join(dict.fromkeys(pass_ for layer in layers for pass_ in layer.passes))
        words = ", ".join(dict.fromkeys(map(_kind_text, layers)))
        raise UsageError(f"--pass {','.join(passes)}: {words} has no such pass; choices: {valid}")
    return problems, log, notes


def _usual(device: str, precision: str) -> str:
    """Return the precision that computes in a type on a device."""
    as_it_is = device == "cpu" or precision == "fp32" or precision in MIXED_TYPES
    return precision if as_it_is else f"{precision}-tc"


def _recorded(
    args: LayersOptions,
    log: Log,
    passes: Sequence[str],
    precisions: Sequence[str],
    device: str,
    fusions: Sequence[str],
) -> list[Problem]:
    """Return the problems of a log; options that are given replace what it says."""
    problems: dict[Problem, None] = {}
    for recorded, precision in log.layers:
        if "pass_" in args.given and recorded.pass_ not in passes:
            continue
        usual = _usual(device, precision)
        kinds = args.propagation if "propagation" in args.given else [recorded.propagation]
        # Backward passes have no propagation.
        kinds = kinds if recorded.pass_ == "forward" else args.propagation[:1]
        chosen = precisions if "precision" in args.given else [usual]
        for name, kind, fuse in product(chosen, kinds, fusions):
            if fuse == fusions[0] or _changed_by_fusion(fuse, recorded.pass_):
                problems[recorded.layer, recorded.pass_, name, kind, fuse] = None
    return list(problems)


# -----------------------------------------------------------------------------
# Layers: names, globs, descriptors and models, by batch.


def _read_layers(args: LayersOptions) -> tuple[list[ListedLayer], tuple[str, ...]]:
    """Return the layers of ``--shape``, ``--model``, ``--batch`` and ``--pool``, and notes.

    Raises:
        UsageError: there is none, or a value is bad.
    """
    from pydlbench.models.catalog import check_pool_used, find_listed

    shapes = list(args.shape)
    models = [f"{name}/*" for name in _models(args.model)]
    if not shapes and not models:
        shapes = [_DEFAULT_PATTERN]
    notify = None if args.quiet else tell
    layers: dict[ListedLayer, None] = {}
    for batch in args.batch or [None]:
        for name, patterns, pool in (("--shape", shapes, args.pool), ("--model", models, None)):
            if patterns:
                layers |= dict.fromkeys(
                    find_listed(patterns, batch, pool, op=args.op, option=name, tell=notify)
                )
            if len(layers) > _MAX_LAYERS:
                raise UsageError(
                    f"{name}: more than {_MAX_LAYERS:,} layers with all batches; nearest: fewer"
                )
    if not shapes:
        check_pool_used(args.pool, used=False)
    # With these options of a list, something else than the layer is computed.
    changed = Counter(row.changed for row in layers if row.changed)
    notes = tuple(f"{count} problems are left out: {text}" for text, count in changed.items())
    if changed and changed.total() == len(layers):
        raise UsageError(f"--shape {shapes[0]}: {notes[0]}; nearest: leave the option out")
    return [row for row in layers if not row.changed], notes


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


def _missing_passes(asked: _Asked, passes: Sequence[str]) -> tuple[str, ...]:
    """Return a note for each pass that some of the layers do not have."""
    notes = []
    for pass_ in passes:
        lacking = [
            row.layer
            for row, pairs in asked.items()
            if pass_ in dict(pairs) and pass_ not in row.layer.passes
        ]
        notes += [
            f"{kind} has no {pass_} pass, left out: {_names(without)}"
            for kind, without in group_by(lacking, _kind_text).items()
        ]
    return tuple(notes)


def _unfused_passes(asked: _Asked) -> tuple[str, ...]:
    """Return a note on the gradients with which a list fuses operations."""
    left_out = [
        row.layer
        for row, pairs in asked.items()
        if row.fusions and NOTHING_FUSED not in row.fusions and set(dict(pairs)) != {"forward"}
    ]
    return (
        (f"gradients have no fused operations, left out: {_names(left_out)}",) if left_out else ()
    )


def _names(layers: Sequence[Layer]) -> str:
    return ", ".join(layer.name or layer.problem for layer in layers)


def _kind_text(layer: Layer) -> str:
    """Return the name of a layer's kind in messages."""
    if layer.kind == "pointwise":
        return layer.op
    return "pooling" if layer.op == "pool" else layer.kind


# -----------------------------------------------------------------------------
# Values that depend on the device.


def _precisions(device: str, given: Sequence[str]) -> list[str]:
    if device == "cpu":
        gpu_only = set(GPU_LAYER_PRECISIONS) - set(CPU_LAYER_PRECISIONS)
        _refuse_gpu_values("--precision", given, gpu_only, [*CPU_PRECISIONS, "all"])
    allowed: Sequence[str] = CPU_PRECISIONS if device == "cpu" else GPU_PRECISIONS
    if list(given) != ["all"]:
        allowed = CPU_LAYER_PRECISIONS if device == "cpu" else GPU_LAYER_PRECISIONS
    return choices("--precision", ",".join(given), allowed, "all")


def read_fusions(device: str, given: Sequence[str]) -> list[str]:
    """Return the fusions in the form in which they are stored.

    Raises:
        UsageError: a fusion is unknown, or not for this device.
    """
    if "all" in given:
        return choices("--fuse", ",".join(given), FUSIONS, "all")
    fusions = [canonical_fusion(text) for text in given]
    return fusions if device == "cpu" else choices("--fuse", ",".join(fusions), FUSIONS, "all")


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


# -----------------------------------------------------------------------------
# The backends of ``pydlbench layers``, each with its modes.


def read_backends(
    args: LayersOptions, device: str
) -> tuple[list[tuple[str, str | None]], tuple[str, ...]]:
    """Return each backend with each of its modes, and notes on those that are left out.

    Raises:
        UsageError: no such backend or mode, or a kernel's file is missing.
    """
    from pydlbench.models.user_model import find_user_model, is_user_model

    kernels = [name for name in args.backend if is_user_model(name)]
    for name in kernels:
        find_user_model(name)  # raises an error if it is missing
    others = [name for name in args.backend if not is_user_model(name)]
    named = choices("--backend", ",".join(others), layer_backends(), "all") if others else []
    kind = device.partition(":")[0]
    modes = choices("--mode", ",".join(args.mode or ["all"]), capabilities.all_modes(), "all")
    pairs: list[tuple[str, str | None]] = []
    notes = []
    valid: list[str] = []
    for name in named:
        declared = capabilities.declaration(name)
        if kind not in declared.modes:
            if "all" in args.backend:
                notes.append(f"{name} does not run on {device}, left out")
            else:
                pairs.append((name, None))  # it was named: its row has the reason
            continue
        known = declared.modes[kind]
        valid += filter(None, known)
        fitting = [
            (name, mode)
            for mode in known
            if (mode is None or mode in modes) and (args.mode or mode not in declared.on_request)
        ]
        if not fitting:
            notes.append(f"{name} has no mode {','.join(modes)}, left out")
        # Without --mode, a backend that is named uses its default.
        pairs += fitting if args.mode or "all" in args.backend else fitting[:1]
    pairs += [("torch", name) for name in kernels]
    if args.mode and named:
        _check_modes(args.mode, modes, named, valid)
    return pairs, tuple(notes)


def _check_modes(
    given: Sequence[str], modes: Sequence[str], named: Sequence[str], valid: Sequence[str]
) -> None:
    """Refuse a mode that none of the backends has; for ``all`` one of any is enough."""
    every = "all" in given
    unknown = [] if every and valid else [mode for mode in modes if mode not in valid]
    if not unknown:
        return
    has = "has" if len(named) == 1 else "have"
    near = ", ".join(valid) or "--backend torch"
    raise UsageError(
        f"--mode {'all' if every else unknown[0]}: {', '.join(named)} {has} no such mode; "
        f"nearest: {near}"
    )
