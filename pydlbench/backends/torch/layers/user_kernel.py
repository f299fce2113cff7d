"""A user kernel as a row: Triton, CUDA, or any other code that fills a tensor.

``FILE.py:LAUNCH`` names a function that launches the kernel. It is called with the tensors of a
pass by their roles: ``launch(src=..., weights=..., dst=...)`` for a forward convolution. All
tensors are contiguous and in plain layouts (images are NCHW, weights OIHW, products ``(batch, rows,
columns)``), in the type of the precision. The kernel fills the tensor of the pass's result, which
is verified against the layer of the row like the results of every backend.
"""

import ctypes
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from pydlbench.backends.frameworks.backend import Variant
from pydlbench.backends.frameworks.shared_kernel import Transfer, memory_transfer
from pydlbench.backends.steps.user_code import accepts, load_user_object
from pydlbench.backends.torch.dispatch import unpatched
from pydlbench.backends.torch.layers.operator import (
    BoundFunction,
    CompilationSite,
    TorchOperands,
    as_array,
)
from pydlbench.errors import PrimitiveError, UsageError
from pydlbench.verification.shared import roles_of_kernel

# Bound before the code of users is imported, which may replace it.
_TENSOR: Final = torch.Tensor
_COPY: Final = torch.Tensor.copy_
_FROM_NUMPY: Final = torch.from_numpy


# Another process delays one of the waits at times, hardly three of them.
_STREAM_TRIES: Final = 3
# The share of a call's time after its stream has finished: a few microseconds of the second wait.
_MAX_OUTSIDE: Final = 0.5


def transfer(tensor: torch.Tensor) -> Transfer:
    """Return the function that copies bytes to and from a contiguous tensor.

    Raises:
        PrimitiveError: the tensor is one of the user's own type, which may compute when it is read.
    """
    if type(tensor) is not _TENSOR or not tensor.is_contiguous():
        raise PrimitiveError(f"an operand became a {type(tensor).__name__}, no plain tensor")
    if tensor.device.type == "cpu":
        return memory_transfer(tensor.data_ptr())
    own = tensor.detach().reshape(-1).view(torch.uint8)

    def move(address: int, length: int, inward: bool) -> None:
        host = np.ctypeslib.as_array((ctypes.c_uint8 * length).from_address(address))
        with unpatched():
            pair = own, _FROM_NUMPY(host)
            _COPY(*(pair if inward else pair[::-1]))

    return move


def variants_of(site: CompilationSite) -> list[Variant]:
    """Return the one way to run the case: by the launcher that its mode names.

    Raises:
        UsageError: there is no such function, or it does not take the tensors of the pass.
        ModelError: the user's code has raised an exception.
    """
    name = str(site.spec.mode)
    launch = load_user_object(name)
    layer, pass_ = site.spec.layer, site.spec.pass_
    roles, role = roles_of_kernel(layer, pass_), layer.result(pass_)
    place = roles.index(role)
    _check(name, launch, roles)

    def make(operands: TorchOperands) -> BoundFunction:
        tensors = tuple(map(operands.tensor, roles))
        if role not in layer.reads(pass_):
            tensors[place].fill_(float("nan"))  # shows elements that are not written

        def launched(*tensors: torch.Tensor) -> torch.Tensor:
            launch(**dict(zip(roles, tensors, strict=True)))
            return tensors[place]

        if site.spec.on_gpu:
            copies = [tensor.clone() for tensor in tensors]
            check_stream(
                lambda: launched(*copies),
                torch.cuda.current_stream().synchronize,
                torch.cuda.synchronize,
            )
        return BoundFunction(
            launched,
            tensors,
            lambda written: {role: as_array(written).reshape(layer.shapes()[role])},
            changed=(place,),
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


def check_stream(
    call: Callable[[], object],
    wait_for_stream: Callable[[], None],
    wait_for_device: Callable[[], None],
    now: Callable[[], float] = time.perf_counter,
) -> None:
    """Check that a call computes in the current stream, in which events and graphs time it.

    Args:
        call: makes the call.
        wait_for_stream: returns when the current stream has finished.
        wait_for_device: returns when all streams have.
        now: the host's clock in seconds.

    Raises:
        PrimitiveError: the device is still busy when the stream has finished.
    """
    call()  # loads the kernel
    shares = []
    for _ in range(_STREAM_TRIES):
        wait_for_device()
        begin = now()
        call()
        wait_for_stream()
        of_stream = now()
        wait_for_device()
        shares.append((now() - of_stream) / (now() - begin))
    if min(shares) > _MAX_OUTSIDE:
        raise PrimitiveError(
            "the kernel runs in another stream than the current one, which is timed: launch it in "
            "torch.cuda.current_stream(), or let that wait for the other"
        )


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
