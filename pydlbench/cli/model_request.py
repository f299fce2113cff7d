"""From the options of ``model`` to the step that is summed, or to one line of complaint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from pydlbench.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from pydlbench.models.graph import Model

__all__ = ["PHASES", "ModelRequest", "build", "read_model"]

PHASES: Final = ("forward", "forward-backward", "training")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One step.

    Attributes:
        model: its graph, with the batch.
        variant: of the model, as given.
        phase: ``forward``, ``forward-backward`` or ``training``.
        precision: of all layers.
        device: ``cpu`` or ``cuda:N``.
        options: keywords of ``measure.Options``.
        notes: what has to be said of the device.
    """

    model: Model
    variant: dict[str, str]
    phase: str
    precision: str
    device: str
    options: dict[str, Any]
    notes: tuple[str, ...] = ()


def build(args: argparse.Namespace) -> Model:
    """Return the graph of the model that was asked for.

    Raises:
        UsageError: no such model, option or batch.
    """
    from pydlbench.cli.model_options import read_options
    from pydlbench.cli.values import whole_number
    from pydlbench.models import build_model

    batch = None if args.batch is None else whole_number("--batch", args.batch, 1)
    return build_model(args.model, batch, **read_options(args.option or []))


def read_model(args: argparse.Namespace) -> ModelRequest:
    """Check the options of ``model``.

    Raises:
        UsageError: a value is bad.
    """
    from pydlbench.backends.case import CPU_PRECISIONS, GPU_PRECISIONS, check_device
    from pydlbench.backends.native.presence import default_device
    from pydlbench.cli.model_options import one_of, read_options
    from pydlbench.cli.values import positive_seconds, whole_number

    phase = one_of("--phase", args.phase, PHASES)
    model = build(args)
    if phase == "training" and model.optimizer.kind == "none":
        raise UsageError(
            f"--phase training: {model.name} has no optimizer; nearest: "
            "--phase forward-backward, or --option optimizer=sgd"
        )
    device, notes = default_device() if args.device is None else (args.device, ())
    check_device(device)
    if device != "cpu" and args.threads is not None:
        raise UsageError(f"--threads {args.threads}: for CPUs only; nearest: leave it out")
    allowed = CPU_PRECISIONS if device == "cpu" else GPU_PRECISIONS
    return ModelRequest(
        model=model,
        variant=read_options(args.option or []),
        phase=phase,
        precision=one_of("--precision", args.precision, allowed),
        device=device,
        options={
            "threads": None if args.threads is None else whole_number("--threads", args.threads, 1),
            "seed": whole_number("--seed", args.seed, 0),
            "budget_s": positive_seconds("--budget", args.budget),
        },
        notes=notes,
    )
