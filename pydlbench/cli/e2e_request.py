"""From the options of ``e2e`` to the steps that are timed, or to one line that says what is bad."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Final

from pydlbench.backends.case import CPU_PRECISIONS, GPU_PRECISIONS, PRECISIONS, check_device
from pydlbench.cli.model_options import one_of, read_options
from pydlbench.cli.values import choices, positive_seconds, whole_number, wholes
from pydlbench.endtoend.step import FRAMEWORK_MODES, FRAMEWORKS, StepCase
from pydlbench.errors import UsageError
from pydlbench.models import build_model
from pydlbench.models.work import PHASES

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pydlbench.models.graph import Model

__all__ = ["Group", "Request", "device_options", "devices", "read_request"]

_PROTOCOL_ONLY: Final = ("steps", "warmup", "every", "epochs", "quirk", "data", "download")
_MODES: Final = tuple(mode for modes in FRAMEWORK_MODES.values() for mode in modes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Steps of one batch and phase, timed in turn."""

    model: Model
    cases: tuple[StepCase, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is to be run.

    Attributes:
        groups: one after another.
        options: keywords of ``measure.Options``.
        notes: what was left out, and why.
    """

    groups: tuple[Group, ...]
    options: dict[str, Any]
    notes: tuple[str, ...] = ()

    @property
    def rows(self) -> int:
        """How many steps there are."""
        return sum(len(group.cases) for group in self.groups)


def read_request(args: argparse.Namespace) -> Request:
    """Check the options of ``e2e`` without a protocol and combine them.

    Raises:
        UsageError: a value is bad, or two options exclude each other.
    """
    for name in _PROTOCOL_ONLY:
        value = getattr(args, name)
        if value is not None:
            text = value[0] if isinstance(value, list) else value
            raise UsageError(
                f"--{name} {text}: for published scripts only; nearest: --protocol NAME"
            )
    if args.model is None:
        raise UsageError("MODEL: none given; nearest: pydlbench e2e alexnet-owt --batch 16")
    ways, notes = _ways(args)
    on, more = devices(args.device)
    precisions = _precisions(args.precision, on)
    phases = choices("--phase", args.phase or ["forward"], PHASES, "all")
    shared: dict[str, Any] = {
        "options": read_options(args.option or []),
        "cast": one_of("--cast", args.cast or "mixed", ("mixed", "whole")),
        "layout": one_of("--layout", args.layout, ("nhwc", "nchw")),
        "feed": one_of("--feed", args.feed or "resident", ("resident", "host")),
        "seed": whole_number("--seed", args.seed, 0),
    }
    options = {"budget_s": positive_seconds("--budget", args.budget or "10")}
    groups = []
    for batch, phase in product(_batches(args), phases):
        model = build_model(args.model, batch, **shared["options"])
        if phase == "training" and model.optimizer.kind == "none":
            raise UsageError(
                f"--phase training: {model.name} has no optimizer; nearest: "
                "--phase forward-backward, or --option optimizer=sgd"
            )
        cases = [
            StepCase(
                model=args.model,
                batch=model.batch,
                phase=phase,
                framework=framework,
                mode=mode,
                precision=precision,
                device=device,
                **shared,
            )
            for precision, (framework, mode), device in product(precisions, ways, on)
        ]
        groups.append(Group(model=model, cases=tuple(cases)))
    if args.agree and {case.framework for group in groups for case in group.cases} != {*FRAMEWORKS}:
        raise UsageError("--agree: needs both frameworks; nearest: --framework all")
    return Request(
        groups=tuple(groups),
        options={**options, **device_options(args, on)},
        notes=(*notes, *more),
    )


def device_options(args: argparse.Namespace, on: Sequence[str]) -> dict[str, Any]:
    """Return the keywords of ``measure.Options`` that every way of running steps has."""
    if args.threads is not None and "cpu" not in on:
        raise UsageError(f"--threads {args.threads}: for CPUs only; nearest: leave it out")
    threads = None if args.threads is None else whole_number("--threads", args.threads, 1)
    return {"threads": threads, "seed": whole_number("--seed", args.seed, 0)}


def devices(given: Sequence[str] | None) -> tuple[list[str], tuple[str, ...]]:
    """Return the devices that were named, or the default one and what has to be said of it."""
    if not given:
        from pydlbench.backends.native.presence import default_device

        device, notes = default_device()
        return [device], notes
    named = [one.strip() for word in given for one in word.split(",")]
    for device in named:
        check_device(device)
    return list(dict.fromkeys(named)), ()


def _ways(args: argparse.Namespace) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """Return frameworks with their modes, and notes on what was left out."""
    frameworks = choices("--framework", args.framework or ["all"], FRAMEWORKS, "all")
    if not args.mode:
        return [(one, FRAMEWORK_MODES[one][0]) for one in frameworks], ()
    modes = choices("--mode", args.mode, _MODES, "all")
    found = [(one, mode) for one in frameworks for mode in modes if mode in FRAMEWORK_MODES[one]]
    if not found:
        known = ", ".join(mode for one in frameworks for mode in FRAMEWORK_MODES[one])
        raise UsageError(
            f"--mode {modes[0]}: {', '.join(frameworks)} has no such mode; nearest: {known}"
        )
    idle = [one for one in frameworks if one not in dict(found)]
    notes = tuple(f"{one} has no mode {','.join(modes)}, left out" for one in idle)
    return found, notes


def _precisions(given: Sequence[str] | None, on: Sequence[str]) -> list[str]:
    cpu, gpu = "cpu" in on, any(device != "cpu" for device in on)
    here = [
        one
        for one in PRECISIONS
        if (cpu and one in CPU_PRECISIONS) or (gpu and one in GPU_PRECISIONS)
    ]
    if cpu and not gpu:
        for one in (part.strip() for word in given or () for part in word.split(",")):
            if one in GPU_PRECISIONS and one not in CPU_PRECISIONS:
                raise UsageError(f"--precision {one}: for GPUs only; nearest: --device cuda:0")
    return choices("--precision", given or ["fp32"], here, "all")


def _batches(args: argparse.Namespace) -> list[int | None]:
    if args.sweep is None:
        return [None if args.batch is None else whole_number("--batch", args.batch, 1)]
    if args.batch is not None:
        raise UsageError(
            f"--batch {args.batch}: --sweep {args.sweep} has batches already; nearest: --sweep "
            f"{args.sweep},{args.batch}"
        )
    axis, mark, values = args.sweep.partition("=")
    if axis.strip() != "batch" or not mark:
        raise UsageError(f"--sweep {args.sweep}: only batches; nearest: --sweep batch=16,32,64")
    return list(wholes("--sweep batch", [values]))
