"""An operator of PyTorch with its operands in place: called, waited for, read."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from pydlbench.backends.torch.compiled import compiled
from pydlbench.backends.torch.recipe import Made
from pydlbench.errors import DeviceLostError, InsufficientMemoryError

if TYPE_CHECKING:
    import contextlib
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from pydlbench.backends.torch.recipe import Place, Recipe

__all__ = ["TorchOperator", "build", "empty"]


class TorchOperator:
    """One call with its operands.

    Args:
        made: the function with its operands.
        role: of its result.
        guard: makes the context in which it is to be called; whoever calls it enters that.
        wait: returns when everything that was called is done.
        timing: how a GPU's samples are taken: ``cuda-graph`` or ``events``.
    """

    def __init__(
        self,
        made: Made,
        role: str,
        guard: Callable[[], contextlib.AbstractContextManager[None]],
        wait: Callable[[], None],
        timing: str = "cuda-graph",
    ) -> None:
        calls = [
            functools.partial(made.function, *made.arguments, *turn)
            for turn in ([one] for one in made.turns)
        ] or [functools.partial(made.function, *made.arguments)]
        # No frame of ours between the clock and PyTorch, unless calls take turns.
        self.call: Callable[[], Any] = calls[0] if len(calls) == 1 else _in_turn(calls)
        self.wait = wait
        self.guard = guard
        self.timing = timing
        self._first = calls[0]
        self._turning = len(calls) > 1
        self._plain = made.plain
        self._role = role
        self._updated = [
            (made.arguments[place], made.arguments[place].clone()) for place in made.updated
        ]

    def outputs(self) -> dict[str, NDArray[Any]]:
        """Run it once, on its first operands, and return its results as float32 in plain layouts.

        Operands that it overwrites are what they were before any call, in this call.
        """
        with self.guard():
            for operand, before in self._updated:
                operand.copy_(before)
            result = self._plain((self._first if self._turning else self.call)())
            found = result if isinstance(result, Mapping) else {self._role: result}
            copies = {
                # Operands are copied too: a later call would overwrite what is compared.
                role: tensor.detach().to("cpu", torch.float32, copy=True).contiguous().numpy()
                for role, tensor in found.items()
            }
            for operand, before in self._updated:
                operand.copy_(before)
        return copies


def _in_turn(calls: Sequence[Callable[[], Any]]) -> Callable[[], Any]:
    """Return a call of the first, of the second, and so on, around and around."""
    following = itertools.cycle(calls).__next__

    def call() -> Any:
        return following()()

    return call


def build(
    recipe: Recipe,
    inputs: Mapping[str, NDArray[Any]],
    place: Place,
    *,
    role: str,
    mode: str,
    guard: Callable[[], contextlib.AbstractContextManager[None]],
    wait: Callable[[], None],
    timing: str,
) -> TorchOperator:
    """Put operands in place, compile in the mode ``compiled``, and run it once.

    Raises:
        InsufficientMemoryError: It does not fit.
        DeviceLostError: The GPU's context is beyond use.
    """
    try:
        made = recipe.make(inputs, place)
        if mode == "compiled":
            made = dataclasses.replace(made, function=compiled(made.function))
        operator = TorchOperator(made, role, guard, wait, timing)
        with guard():
            operator.call()
            wait()
    except torch.OutOfMemoryError as error:
        torch.cuda.empty_cache()
        raise InsufficientMemoryError(f"{recipe.algorithm}: {_line(error)}") from error
    except getattr(torch, "AcceleratorError", ()) as error:
        raise DeviceLostError(f"{recipe.algorithm}: {_line(error)}") from error
    except RuntimeError as error:
        if "can't allocate memory" in str(error):  # what the CPU's allocator says
            raise InsufficientMemoryError(f"{recipe.algorithm}: {_line(error)}") from error
        raise
    return operator


def empty(
    device: torch.device,
    mode: str,
    guard: Callable[[], contextlib.AbstractContextManager[None]],
    wait: Callable[[], None],
) -> TorchOperator:
    """Return an operator that does as good as nothing.

    Eager, on a CPU, it makes a second name for a tensor. Compiled it adds to one element, and so on
    a GPU: a function that computes nothing would not be compiled, and a graph of it would be empty.
    """

    def name(x: torch.Tensor) -> Any:
        return torch.ops.aten.alias.default(x)

    def add(x: torch.Tensor) -> Any:
        return x + 1

    function = compiled(add) if mode == "compiled" else name if device.type == "cpu" else add
    one = torch.rand(1, device=device)
    operator = TorchOperator(
        Made(function=function, arguments=(one,), plain=lambda result: result), "dst", guard, wait
    )
    with guard():
        operator.call()
        wait()
    return operator


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
