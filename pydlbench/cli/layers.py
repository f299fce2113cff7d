"""``pydlbench layers``: time layers, measured against theoretical."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from pydlbench.backends import capabilities
from pydlbench.cli.machine import check_threads, device_of
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
from pydlbench.cli.terminal import tell
from pydlbench.cli.values import byte_count, choices, patterns, splits, wholes
from pydlbench.errors import PydlbenchError, UsageError, nearest
from pydlbench.runner.tasks import KernelTask, Task, TaskRow
from pydlbench.words import (
    CACHES,
    CPU_PRECISIONS,
    FUSIONS,
    GPU_PRECISIONS,
    LAYOUTS,
    PASSES,
    PROPAGATIONS,
    TIMINGS,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pydlbench.cli.recorded import Log
    from pydlbench.ops.op import Layer
    from pydlbench.records.measurement import Measurement
    from pydlbench.records.recorded import RecordedSteps
    from pydlbench.records.run import RunRecord
    from pydlbench.records.specs import KernelSpec
    from pydlbench.report.blocks import Block
    from pydlbench.runner.execute import Results


def _backends_of_layers() -> list[str]:
    return [backend.name for backend in capabilities.all_capabilities() if backend.layers]


class LayersOptions(Measuring, TableOutput):
    """The command's options."""

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
        f"{', '.join(_backends_of_layers()[1:])}, or all; or FILE.py:LAUNCH, a kernel of your own "
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
    """Time what ``args`` ask for and show it.

    Everything that can be wrong with the request is found before the first measurement.

    Args:
        args: The command's options.
        session_factory: Gives a session for the options of ``session.Options`` as keywords.

    Returns:
        0; 1 if no row is ok; 3 under ``--fail-on``; 130 after Ctrl-C, with what was finished.

    Raises:
        UsageError: Bad input; nothing was measured and nothing written.
    """
    if args.samples and args.json is None and args.format != "json":
        raise UsageError("--samples: raw samples are in JSON only; nearest: --samples --json -")
    args = with_options(args)
    bugs: list[Exception] = []
    with contextlib.ExitStack() as processes:

        def begin(threads: int | None) -> None:
            if session_factory is None:
                processes.enter_context(_native_ahead(threads))

        request = read_request(args, begin=begin)
        from pydlbench.cli.machine import reading_store
        from pydlbench.cli.measuring import answer
        from pydlbench.cli.output import expecting, row_warnings
        from pydlbench.report.csv import to_csv
        from pydlbench.report.json import layers_document

        known: list[Sequence[Measurement]] = []

        def rows_of(results: Results) -> Sequence[Measurement]:
            if not known:
                rows = _rows(results)
                # Of a store that cannot be read the run has warned: its rows are shown without.
                with (
                    contextlib.suppress(PydlbenchError),
                    reading_store(args.store) or contextlib.nullcontext() as store,
                ):
                    rows = list(expecting(results.run, rows, store))
                known.append(rows)
            return known[0]

        code, _ = answer(
            *(args, "layers", tasks(request), request.notes),
            lambda run, results: _report(args, run, rows_of(results), request.log, bugs),
            document=lambda results: layers_document(
                results.run,
                rows_of(results),
                interrupted=results.early,
                recorded=_recorded_steps(request.log, _rows(results)),
            ),
            csv=lambda results: to_csv(results.run, rows_of(results)),
            warnings=lambda results: [
                *_device_warnings(results.run),
                *row_warnings(_rows(results)),
            ],
            sessions=session_factory,
            request=asked_for(request),
            samples=args.samples,
        )
    if bugs:
        raise bugs[0]
    return code


def _rows(results: Results) -> list[Measurement]:
    from pydlbench.records.measurement import Measurement

    return [outcome.record(Measurement) for outcome in results.outcomes]


def _recorded_steps(log: Log | None, rows: Sequence[Measurement]) -> RecordedSteps | None:
    """Return the log whose problems rows are, held against their times."""
    return log.described(rows) if log and rows else None


def _report(
    args: LayersOptions,
    run: RunRecord,
    rows: Sequence[Measurement],
    log: Log | None,
    bugs: list[Exception],
) -> list[Block]:
    """Return the blocks of rows; what goes wrong in a conclusion is added to ``bugs``."""
    from pydlbench.report.layers import layers_report
    from pydlbench.report.recorded import recorded_report
    from pydlbench.report.verdicts import conclude_run

    shown = {name: getattr(args, name) for name in ("algorithms", "explain", "ncu")}
    recorded = _recorded_steps(log, rows)
    conclusion: list[str] = []
    try:
        conclusion = conclude_run(run, rows)
    except Exception as error:  # noqa: BLE001 - a sentence must not cost the table
        bugs.append(error)
    return [
        *layers_report(run, rows, conclusion, **shown),
        *(recorded_report(recorded) if recorded else ()),
    ]


def _native_ahead(threads: int | None) -> contextlib.AbstractContextManager[None]:
    """Start the native process while all that measures is imported."""
    from pydlbench.devices.cpu.affinity import choose_cpus
    from pydlbench.devices.cpu.facts import read_cpu_facts
    from pydlbench.workers.host import launch_early

    return launch_early("native", "cpu", choose_cpus(read_cpu_facts(), threads))


def _device_warnings(run: RunRecord) -> list[str]:
    devices = run.devices()
    texts: dict[str, list[str]] = {}
    for threads, device in (devices or {"": run.device}).items():
        for item in device.get("warnings") or ():
            text = "; ".join(filter(None, (item["symptom"], item.get("remedy"))))
            texts.setdefault(text, []).append(threads)
    return [
        text if len(which) >= len(devices) else f"{text} (with --threads {','.join(which)})"
        for text, which in texts.items()
    ]


# -----------------------------------------------------------------------------
# Which layers are timed: names, globs, descriptors and models, by batch.

_DEFAULT_PATTERN = "alexnet/*"
_MOST_LAYERS: Final = 50_000


def read_layers(args: LayersOptions) -> list[Layer]:
    """Return the layers that ``--shape``, ``--model``, ``--batch`` and ``--pool`` ask for.

    Raises:
        UsageError: there is none, or a value is bad.
    """
    from pydlbench.models.catalog import check_pool_used, find_layers

    pool, shapes = args.pool, list(args.shape)
    models = [f"{name}/*" for name in _models(args.model)]
    if not shapes and not models:
        shapes = [_DEFAULT_PATTERN]
    batches: Sequence[int | None] = args.batch or [None]
    chosen: dict[Layer, None] = {}
    for batch in batches:
        for name, wanted in (("--shape", shapes), ("--model", models)):
            used = pool if name == "--shape" else None
            if wanted:
                notify = None if args.quiet else tell
                layers = find_layers(wanted, batch, used, option=name, tell=notify)
                chosen |= dict.fromkeys(layers)
            if len(chosen) > _MOST_LAYERS:
                raise UsageError(
                    f"{name}: more than {_MOST_LAYERS:,} layers with all batches; nearest: fewer"
                )
    if not shapes:
        check_pool_used(pool, used=False)
    return list(chosen)


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
    if layer.kind == "pointwise":
        return layer.op
    return "pooling" if layer.op == "pool" else layer.kind


# -----------------------------------------------------------------------------
# From the options of ``layers`` to the list of cases, or to one line that says what is wrong.

# Seconds of sampling of a row where backends compete: each waits for all others, and what is
# compared is their ratio in the same visits.
_BUDGET_IN_TURN_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class LayersRequest:
    """What is to be measured.

    Attributes:
        cases: Every combination, in the order of the rows.
        threads: Numbers of threads; ``None`` is one per physical core.
        options: Keywords of ``measure.Options`` other than ``threads``.
        notes: What was left out, and why.
        log: Whose problems the cases are; None of layers that were named.
    """

    cases: tuple[KernelSpec, ...]
    threads: tuple[int | None, ...]
    options: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    log: Log | None = None


def read_request(
    args: LayersOptions,
    *,
    several: bool = False,
    begin: Callable[[int | None], None] | None = None,
) -> LayersRequest:
    """Check the options of ``layers`` and combine them.

    Args:
        args: the options.
        several: there are other rows in the same run.
        begin: called with the number of threads as soon as it is known that a native process on the
            CPU is the first that is needed.

    Raises:
        UsageError: A value is bad, or two options exclude each other.
    """
    device, notes = device_of(args.device)
    if args.width:
        args.refuse(("repetitions",), "with --width")
    check_threads(args.threads or None, device)
    on_gpu = device != "cpu"
    backends, left_out = _backends(args, device)
    notes += left_out
    threads = _threads(args.threads)
    native = not on_gpu and any(name == "native" for name, _ in backends)
    if begin is not None and native and len(threads) == 1:
        begin(threads[0])
    from pydlbench.cli.recorded import read_log
    from pydlbench.records.specs import KernelSpec
    from pydlbench.timing.policy import LAYER_BUDGET_S

    passes = choices("--pass", ",".join(args.pass_), PASSES, "all")
    precisions = _precisions(on_gpu, args.precision)
    layouts = _for_gpus(on_gpu, args)
    timings = args.timing
    fusions = _fusions(on_gpu, args.fuse)
    kinds = args.propagation
    if "propagation" in args.given and "forward" not in passes:
        raise UsageError(
            f"--propagation {','.join(kinds)}: cannot be combined with --pass "
            f"{','.join(passes)}, only the forward pass has it; nearest: --pass forward"
        )
    options = {
        "seed": args.seed,
        "repetitions": args.repetitions,
        "width": args.width,
        "keep_probes": not args.fresh,
        "keep_samples": True,  # for the store; outputs have them only with --samples
        "algorithms": args.algorithms,
        "energy": args.energy,
    }
    if args.workspace_limit is not None:
        options["workspace_bytes"] = args.workspace_limit
    log = read_log(args, args.shape, args.model)
    if log is not None:
        layers = list(dict.fromkeys(layer.layer for layer, _ in log.layers))
        wanted = _recorded(args, log, passes, precisions, kinds, on_gpu)
        passes = list(dict.fromkeys(pass_ for _, pass_, _, _ in wanted)) or passes
        notes += log.notes
    else:
        layers = read_layers(args)
        wanted = [
            (layer, pass_, precision, kind)
            for layer, pass_, precision, kind in product(layers, passes, precisions, kinds)
            # Backward passes know one kind only.
            if pass_ in layer.passes and (pass_ == "forward" or kind == kinds[0])
        ]
    every = set(args.pass_) & {"all"}
    specs = [
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
        for (layer, pass_, precision, kind), cache, layout, timing, fuse, (
            backend,
            mode,
        ) in product(wanted, args.cache, layouts, timings, fusions, backends)
        if pass_ == "forward" or _has_gradient(fuse, pass_, fusions)
    ]
    if not specs:
        valid = ", ".join(dict.fromkeys(pass_ for layer in layers for pass_ in layer.passes))
        words = ", ".join(dict.fromkeys(word_of(layer) for layer in layers))
        raise UsageError(f"--pass {','.join(passes)}: {words} has no such pass; choices: {valid}")
    notes += () if every or log else left_out_of(layers, passes)
    usual = _BUDGET_IN_TURN_S if len(backends) > 1 else LAYER_BUDGET_S
    options["budget_s"] = args.budget or usual
    if several or len(specs) * len(threads) > 1:
        # Repetitions of a single row follow each other in one process; these are spread over the
        # run.
        options["renew"] = True
    return LayersRequest(cases=tuple(specs), threads=threads, options=options, notes=notes, log=log)


def _recorded(
    args: LayersOptions,
    log: Log,
    passes: Sequence[str],
    precisions: Sequence[str],
    kinds: Sequence[str],
    on_gpu: bool,
) -> list[tuple[Layer, str, str, str]]:
    """Return the layers of a log as it says them; passes and the like that are named are kept."""
    wanted: dict[tuple[Layer, str, str, str], None] = {}
    for each, own in log.layers:
        if "pass_" in args.given and each.pass_ not in passes:
            continue
        usual = f"{own}-tc" if on_gpu and own != "fp32" else own
        for precision in precisions if "precision" in args.given else [usual]:
            # Backward passes know one kind only.
            own_kinds = kinds if "propagation" in args.given else [each.propagation]
            for kind in own_kinds if each.pass_ == "forward" else kinds[:1]:
                wanted[each.layer, each.pass_, precision, kind] = None
    return list(wanted)


def _backends(
    args: LayersOptions, device: str
) -> tuple[list[tuple[str, str | None]], tuple[str, ...]]:
    """Every backend with each of its modes, and notes on those that are left out."""
    from pydlbench.models.user_model import find_user_model, is_user_model

    kernels = [name for name in args.backend if is_user_model(name)]
    for name in kernels:
        find_user_model(name)  # or says what is nearest
    others = [name for name in args.backend if not is_user_model(name)]
    named = choices("--backend", ",".join(others), _backends_of_layers(), "all") if others else []
    kind = device.partition(":")[0]
    every = "all" in args.backend
    known_modes = capabilities.all_modes()
    modes = choices("--mode", ",".join(args.mode or ["all"]), known_modes, "all")
    # Where nobody asks for a mode, what is named runs as it does by itself.
    plain = not (args.mode or every)
    ways: list[tuple[str, str | None]] = []
    notes = []
    for name in named:
        known = capabilities.declaration(name).modes.get(kind)
        if known is not None and not args.mode:
            asked_only = capabilities.declaration(name).on_request
            known = tuple(mode for mode in known if mode not in asked_only)
        if known is None and every:
            notes.append(f"{name} does not run on {device}, left out")
        elif known is None:
            ways.append((name, None))  # it was asked for: its row says why
        else:
            fitting = [(name, mode) for mode in known if mode is None or mode in modes]
            if not fitting:
                notes.append(f"{name} has no mode {','.join(modes)}, left out")
            ways += fitting[:1] if plain else fitting
    ways += [("torch", name) for name in kernels]
    if args.mode and named:
        known_here = [
            mode
            for name in named
            for mode in capabilities.declaration(name).modes.get(kind, ())
            if mode
        ]
        _check_modes(args.mode, modes, named, known_here)
    return ways, tuple(notes)


def _check_modes(
    given: Sequence[str], modes: Sequence[str], named: Sequence[str], valid: Sequence[str]
) -> None:
    """Refuse a mode that none of the backends has; of ``all`` it is enough that they have one."""
    every = "all" in given
    strange = [] if every and valid else [mode for mode in modes if mode not in valid]
    if not strange:
        return
    has = "has" if len(named) == 1 else "have"
    near = ", ".join(valid) or "--backend torch"
    raise UsageError(
        f"--mode {'all' if every else strange[0]}: {', '.join(named)} {has} no such mode; "
        f"nearest: {near}"
    )


def _precisions(on_gpu: bool, given: Sequence[str]) -> list[str]:
    """The precisions of this kind of device."""
    if not on_gpu:
        strange = set(GPU_PRECISIONS) - set(CPU_PRECISIONS)
        _not_here("--precision", given, strange, [*CPU_PRECISIONS, "all"])
    allowed = GPU_PRECISIONS if on_gpu else CPU_PRECISIONS
    return choices("--precision", ",".join(given), allowed, "all")


def _fusions(on_gpu: bool, given: Sequence[str]) -> list[str]:
    """What is computed in the same call; natively, and with a ReLU, on GPUs only."""
    known = FUSIONS if on_gpu else [each for each in FUSIONS if each != "bias-relu"]
    if not on_gpu:
        _not_here("--fuse", given, {"bias-relu"}, known)
    return choices("--fuse", ",".join(given), known, "all")


def _not_here(
    option: str, given: Sequence[str], of_gpus: Collection[str], here: Sequence[str]
) -> None:
    """Refuse values that only GPUs know, with the option that is lacking."""
    for value in given:
        if value in of_gpus:
            raise UsageError(
                f"{option} {value}: for GPUs only; nearest: --device cuda:0; choices: "
                f"{', '.join(here)}"
            )


def _has_gradient(fuse: str, pass_: str, fusions: Sequence[str]) -> bool:
    """Whether a backward pass is another one with this fusion; what is asked for first stays."""
    return fuse == fusions[0] or (fuse == "bias" and pass_ == "backward-weights")


def _for_gpus(on_gpu: bool, args: LayersOptions) -> list[str]:
    """Refuse what only the other kind of device knows, and return the layouts that this one has.

    ``all`` means all that it has; ``blocked`` is refused where it was asked for by name.
    """
    if on_gpu:
        if "blocked" in args.layout and len(args.layout) < len(LAYOUTS):
            raise UsageError("--layout blocked: for CPUs only; nearest: --layout nhwc")
        return [layout for layout in args.layout if layout != "blocked"]
    args.refuse(("timing", "energy", "workspace_limit"), "on a CPU", "--device cuda:0")
    return list(args.layout)


def _threads(given: Sequence[int]) -> tuple[int | None, ...]:
    # The session checks this too; asked here, because with a list it would be found too late.
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
# From the request to tasks: one for each number of threads, whose rows are visited in laps.


def tasks(request: LayersRequest) -> list[Task]:
    """Return what :func:`pydlbench.runner.execute.execute` does."""
    return [
        KernelTask(
            rows=tuple(
                TaskRow(fields=_fields(spec, threads), label=spec.label, spec=spec)
                for spec in request.cases
            ),
            options={**request.options, "threads": threads},
        )
        for threads in request.threads
    ]


def read_tasks(args: LayersOptions) -> tuple[list[Task], tuple[str, ...]]:
    """Return the tasks of a sweep's table, and notes on what is left out."""
    request = read_request(args, several=True)
    return tasks(request), request.notes


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
# ``--resume``: the options of the run that is gone on with, and whether they are the same.

# What is shown, and where it is kept: may differ from run to run.
_OUTPUTS: Final = frozenset(
    (
        *("json", "csv", "md", "format", "quiet", "verbose", "samples", "explain"),
        "ncu",
        *("fail_on", "store", "resume"),
    )
)


def with_options(args: LayersOptions) -> LayersOptions:
    """Return the options of the run that ``--resume`` names, unless options are given beside it.

    Outputs are always those that are given now.

    Raises:
        UsageError: there is no such run, or its command line cannot be read any more.
    """
    if args.resume is None:
        return args
    from pydlbench.cli.measuring import run_to_resume

    if args.given.keys() - _OUTPUTS:
        return args
    with run_to_resume(args, args.resume, "layers") as (store, info):
        run = store.record(info.id)
    if run.command[1:2] != ("layers",):
        raise UsageError(
            f"--resume {args.resume}: run {run.id} was not begun by pydlbench layers; nearest: "
            "repeat its options beside --resume"
        )
    try:
        before = LayersOptions.parse(run.command[2:])
    except (PydlbenchError, SystemExit) as error:
        raise UsageError(
            f"--resume {args.resume}: the command line of run {run.id} cannot be read: {error}"
        ) from error
    return replace(before, **{name: getattr(args, name) for name in _OUTPUTS})


def asked_for(request: LayersRequest) -> dict[str, Any]:
    """Return what is asked for as a JSON object, for comparing: every axis by its option's name."""
    import hashlib

    from pydlbench.runner.execute import row_key

    rows = [(task, row) for task in tasks(request) for row in task.rows]
    axes = {
        name: list(dict.fromkeys(row.fields[name] for _, row in rows)) for name in rows[0][1].fields
    }
    keys = "\n".join(row_key(task, row) for task, row in rows)
    options = {name: value for name, value in request.options.items() if name != "keep_samples"}
    # Two requests may have the same axes and not the same combinations.
    return {**axes, **options, "cases": hashlib.sha256(keys.encode()).hexdigest()[:16]}


SUBCOMMANDS: Final = {"": (LayersOptions, run)}
