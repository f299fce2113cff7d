"""The backends of ``pydlbench layers``, each with its modes."""

from __future__ import annotations

from collections.abc import Sequence

from pydlbench.backends import capabilities
from pydlbench.cli.layer_options import LayersOptions, layer_backends
from pydlbench.cli.values import choices
from pydlbench.errors import UsageError


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
