"""A user kernel as a row: Triton, CUDA, or any other code that fills a tensor.

``FILE.py:LAUNCH`` names a function that launches the kernel. It is called with the tensors of a
pass by their roles: ``launch(src=..., weights=..., dst=...)`` for a forward convolution. All
tensors are contiguous and in plain layouts (images are NCHW, weights OIHW, products ``(batch, rows,
columns)``), in the type of the precision. The kernel fills the tensor of the pass's result, which
is verified against the layer of the row like the results of every backend.
"""

from __future__ import annotations

from typing import Any

import torch

from pydlbench.backends.frameworks.backend import Variant
from pydlbench.backends.steps.user_code import accepts, load_user_object
from pydlbench.backends.torch.layers.operator import (
    BoundFunction,
    CompilationSite,
    TorchOperands,
    as_array,
)
from pydlbench.errors import UsageError


def variants_of(site: CompilationSite) -> list[Variant]:
    """Return the one way to run the case: by the launcher that its mode names.

    Raises:
        UsageError: there is no such function, or it does not take the tensors of the pass.
        ModelError: the user's code has raised an exception.
    """
    name = str(site.spec.mode)
    launch = load_user_object(name)
    layer, pass_ = site.spec.layer, site.spec.pass_
    roles = (*layer.reads(pass_), layer.result(pass_))
    _check(name, launch, roles)

    def make(operands: TorchOperands) -> BoundFunction:
        result = operands.tensor(roles[-1])
        result.fill_(float("nan"))  # shows elements that are not written

        def launched(*tensors: torch.Tensor) -> torch.Tensor:
            launch(**dict(zip(roles, tensors, strict=True)))
            return tensors[-1]

        return BoundFunction(
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
    """Check that a launcher can be called with the tensors of a pass."""
    words = ", ".join(roles)
    # A Triton kernel cannot be called without its grid.
    if not callable(launch) or hasattr(launch, "warmup"):
        raise UsageError(
            f"{name}: is of type {type(launch).__name__}; nearest: a function of {words} that "
            "launches it"
        )
    if not accepts(launch, **dict.fromkeys(roles)):
        raise UsageError(f"{name}: cannot be called with {words}, the tensors of this pass")
