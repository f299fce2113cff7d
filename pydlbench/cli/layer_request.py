"""From the options of ``pydlbench layers`` to tasks, or to one line that says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from pydlbench.cli.layer_axes import read_fusions, read_layouts, read_problems, read_threads
from pydlbench.cli.layer_backends import read_backends
from pydlbench.cli.layer_options import LayersOptions
from pydlbench.cli.machine import check_threads, device_of
from pydlbench.runner.tasks import KernelTask, Task, TaskRow

if TYPE_CHECKING:
    from pydlbench.cli.recorded import Log
    from pydlbench.records.measurement import KernelSpec

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
    layouts, fusions = read_layouts(device, args), read_fusions(device, args.fuse)
    problems, log, more = read_problems(args, device)
    from pydlbench.records.measurement import KernelSpec
    from pydlbench.timing.policy import LAYER_BUDGET_S

    combinations = product(problems, args.cache, layouts, args.timing, fusions, backends)
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
            (layer, pass_, precision, propagation),
            cache,
            layout,
            timing,
            fuse,
            (backend, mode),
        ) in combinations
        if fuse == fusions[0] or _changed_by_fusion(fuse, pass_)
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
