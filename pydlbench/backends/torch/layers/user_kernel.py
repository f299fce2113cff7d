"""A kernel of the user's own as a row: Triton, CUDA, or whatever else fills a tensor.

``FILE.py:LAUNCH`` names a function that launches it, which is called with the tensors of a pass by
their roles: ``launch(src=..., weights=..., dst=...)`` for a forward convolution. All are contiguous
and in plain layouts (images are NCHW, weights OIHW, products ``(batch, rows, columns)``), in the
type of the precision; the pass's result is there, too, and is to be filled. It is verified against
the layer that the row is of, as every backend's results are.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from pydlbench.backends.steps.user_code import load_user_object
from pydlbench.backends.torch.layers.operator import Made, as_array
from pydlbench.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from pydlbench.backends.frameworks.backend import Variant
    from pydlbench.backends.torch.layers.operator import CompilationSite, TorchOperands


def variants_of(site: CompilationSite) -> list[Variant]:
    """Return the one way to run the case: by the launcher that its mode names.

    Raises:
        UsageError: there is none, or it does not take the tensors of the pass.
        ModelError: the user's code has raised.
    """
    name = str(site.spec.mode)
    launch = load_user_object(name)
    layer, pass_ = site.spec.layer, site.spec.pass_
    roles = (*layer.reads(pass_), layer.result(pass_))
    _check(name, launch, roles)

    def make(operands: TorchOperands) -> Made:
        result = operands.tensor(roles[-1])
        result.fill_(float("nan"))  # what it does not write shows

        def launched(*tensors: torch.Tensor) -> torch.Tensor:
            launch(**dict(zip(roles, tensors, strict=True)))
            return tensors[-1]

        return Made(
            launched,
            (*(operands.tensor(role) for role in roles[:-1]), result),
            lambda written: {roles[-1]: as_array(written).reshape(layer.shapes()[roles[-1]])},
            changed=(len(roles) - 1,),
        )

    return [
        site.variant(
            make,
            algorithm=name.rpartition(":")[2],
            layout="plain",
            word="plain",
            notes=("a kernel of your own, on tensors that it was given",),
        )
    ]


def _check(name: str, launch: Any, roles: tuple[str, ...]) -> None:
    """Make sure that a launcher can be called with the tensors of a pass."""
    words = ", ".join(roles)
    # A Triton kernel can be called in Python only with its grid.
    if not callable(launch) or hasattr(launch, "warmup"):
        raise UsageError(
            f"{name}: is of type {type(launch).__name__}; nearest: a function of {words} that "
            "launches it"
        )
    if not _takes(launch, roles):
        raise UsageError(f"{name}: cannot be called with {words}, the tensors of this pass")


def _takes(launch: Callable[..., Any], roles: tuple[str, ...]) -> bool:
    try:
        inspect.signature(launch).bind(**dict.fromkeys(roles))
    except TypeError:
        return False
    return True
