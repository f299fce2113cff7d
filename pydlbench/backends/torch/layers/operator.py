"""An operator of PyTorch with its operands in place, and its compilation."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import types
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from pydlbench.backends.frameworks.backend import Variant
from pydlbench.backends.frameworks.operands import LayerLayout
from pydlbench.backends.frameworks.operator import FrameworkOperator
from pydlbench.backends.torch import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.records.specs import KernelSpec


# -----------------------------------------------------------------------------
# Operands: tensors by role, where and as PyTorch's operators take them.

#: Memory formats of images (and filters) by their word and dimensions; others are contiguous.
FORMATS: dict[str, dict[int, torch.memory_format]] = {
    "nchw": {},
    "nhwc": {4: torch.channels_last, 5: torch.channels_last_3d},
}


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where tensors live.

    Attributes:
        device: ``cpu`` or ``cuda:N``.
        dtype: of all that is stored in the case's precision.
    """

    device: torch.device
    dtype: torch.dtype

    def tensor(
        self,
        array: NDArray[Any],
        like: torch.memory_format | None = None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """Return a copy of an array, aligned as PyTorch's own tensors are."""
        tensor = self.empty(array.shape, like, dtype)
        tensor.copy_(torch.from_numpy(array))
        return tensor

    def empty(
        self,
        shape: Sequence[int],
        like: torch.memory_format | None = None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """Return a tensor with any values."""
        return torch.empty(
            tuple(shape),
            dtype=dtype or self.dtype,
            device=self.device,
            memory_format=like or torch.contiguous_format,
        )


class TorchOperands:
    """Operands of one layer, by role.

    Args:
        layer: The layer.
        inputs: Plain float32 arrays by role.
        place: Where tensors live.
        variant: How they lie: a memory format's word, of the weights of products ``transposed``.
    """

    def __init__(
        self, layer: Any, inputs: Mapping[str, NDArray[Any]], place: TensorPlace, variant: str
    ) -> None:
        self.layer = layer
        self.inputs = inputs
        self.place = place
        self._formats = FORMATS.get(variant, {})
        # A memory format leaves the shape as it is.
        self._lie = LayerLayout(layer, "transposed" if variant == "transposed" else "plain")

    def tensor(self, role: str) -> torch.Tensor:
        """Return what has a role, in its type and format; of what is not given, zeros."""
        shape = self._lie.stored_shape(role)
        if self.layer.op == "bias" and role == "bias":
            shape = (1, *shape, 1, 1)
        dtype = torch.float32 if self.layer.in_float32(role) else None
        if role in ("labels", "indices"):
            dtype = torch.int64
        like = self._formats.get(len(shape))
        if role not in self.inputs:
            return self.place.empty(shape, like, dtype).zero_()
        array = self._lie.arranged(role, self.inputs[role]).reshape(shape)
        return self.place.tensor(array, like, dtype)


# -----------------------------------------------------------------------------
# What is called for one pass of a layer.


def as_array(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a tensor's values as float32, in memory of their own."""
    copy: NDArray[Any] = tensor.detach().to("cpu", torch.float32, copy=True).contiguous().numpy()
    return copy


@dataclass(frozen=True, slots=True)
class BoundFunction:
    """A function with its operands.

    Attributes:
        function: of tensors, nothing else but what takes turns; may be compiled.
        arguments: the tensors.
        results: brings what the function returns to the host by role; see
            :class:`~pydlbench.backends.frameworks.operator.FrameworkOperator`.
        changed: positions of arguments that the function overwrites.
        turns: a last argument that takes turns from call to call.
    """

    function: Callable[..., Any]
    arguments: tuple[torch.Tensor, ...]
    results: Callable[[Any], Mapping[str, NDArray[Any]]]
    _: dataclasses.KW_ONLY
    changed: tuple[int, ...] = ()
    turns: tuple[float, ...] = ()


# -----------------------------------------------------------------------------
# ``torch.compile`` of one function, apart from every other one.

_numbers = itertools.count()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function compiled for exactly the shapes that it is called with.

    The compiler keeps what it made by code object, tries one after the other in each call, and
    refuses after eight. Functions made by the same ``def`` share theirs: each gets its own here.

    Args:
        function: Made by ``def``; of tensors only.
    """
    compiled: Callable[..., Any] = torch.compile(_own(function), fullgraph=True, dynamic=False)
    return compiled


def _own(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with a code object, and so a compiler's cache, of its own."""
    if not isinstance(function, types.FunctionType) or function.__module__.startswith("torch"):
        # The compiler takes what calls a function of PyTorch's.
        called = function

        def function(*tensors: torch.Tensor) -> Any:
            return called(*tensors)

    name = f"{function.__name__}_{next(_numbers)}"
    return types.FunctionType(
        function.__code__.replace(co_name=name),
        function.__globals__,
        name,
        function.__defaults__,
        function.__closure__,
    )


def frozen(made: BoundFunction) -> BoundFunction:
    """Return an operator whose operands but the first are a module's constants, and compiled.

    Where freezing is on while it is first called, without gradients, the compiler takes parameters
    for constants and has the libraries pack them: see :func:`freezing`. That is what a deployed
    network does with its weights.

    Args:
        made: a forward pass: of the source, the weights and perhaps a bias.
    """
    first, *others = made.arguments
    function = made.function

    def forward(self: Any, source: torch.Tensor) -> Any:
        return function(source, *self.constants)

    whole = type("Frozen", (nn.Module,), {"forward": _own(forward)})()
    whole.constants = nn.ParameterList([nn.Parameter(each, requires_grad=False) for each in others])
    compiled_whole: Callable[..., Any] = torch.compile(whole.eval(), fullgraph=True, dynamic=False)
    return dataclasses.replace(made, function=compiled_whole, arguments=(first,))


def freezing(mode: str | None) -> contextlib.AbstractContextManager[Any]:
    """Return the context in which an operator is first called: with constants folded if frozen.

    The switch is read by the tracer and by the compiler, both of which run in that call, and given
    to ``torch.compile`` as an option it does not reach the tracer.
    """
    if mode != "frozen":
        return contextlib.nullcontext()
    from torch._inductor import config

    patched: contextlib.AbstractContextManager[Any] = config.patch(freezing=True)
    return patched


# -----------------------------------------------------------------------------
# An operator of PyTorch with its operands in place: called, waited for, read.


class TorchOperator(FrameworkOperator):
    """One call with its operands.

    Args:
        made: the function with its operands.
        guard: see :class:`FrameworkOperator`.
        wait: likewise.
        timing: how a GPU's samples are taken: ``cuda-graph`` or ``events``.
    """

    def __init__(
        self,
        made: BoundFunction,
        guard: Callable[[], contextlib.AbstractContextManager[None]],
        wait: Callable[[], None],
        timing: str = "cuda-graph",
    ) -> None:
        self.timing = timing
        changed = [made.arguments[place] for place in made.changed]
        before = [each.clone() for each in changed]

        def restore() -> None:
            for operand, value in zip(changed, before, strict=True):
                operand.copy_(value)

        super().__init__(
            made.function,
            made.arguments,
            made.results,
            guard=guard,
            wait=wait,
            turns=made.turns,
            restore=restore,
        )


@dataclass(frozen=True, slots=True)
class CompilationSite:
    """What all ways to run a case share.

    Attributes:
        spec: what is computed.
        place: where tensors live.
        wait: see :class:`FrameworkOperator`.
    """

    spec: KernelSpec
    place: TensorPlace
    wait: Callable[[], None] = lambda: None

    def variant(
        self,
        make: Callable[[TorchOperands], BoundFunction],
        *,
        algorithm: str,
        layout: str,
        word: str,
        **facts: Any,
    ) -> Variant:
        """Return a way to run the case.

        Args:
            make: puts operands in place; images have the format that the word names.
            algorithm: see :class:`Variant`, as the rest.
            layout: likewise.
            word: how tensors lie.
            facts: likewise.
        """
        built = functools.partial(self._built, make, word)
        return Variant(algorithm=algorithm, layout=layout, variant=word, build=built, **facts)

    def _built(
        self,
        make: Callable[[TorchOperands], BoundFunction],
        word: str,
        inputs: Mapping[str, NDArray[Any]],
    ) -> TorchOperator:
        """Put operands in place, compile where the mode compiles, and run it once."""
        spec, guard = self.spec, settings.guard(self.spec)
        try:
            made = make(TorchOperands(spec.layer, inputs, self.place, word))
            if spec.mode == "compiled":
                made = dataclasses.replace(made, function=compiled(made.function))
            elif spec.mode == "frozen":
                made = frozen(made)
            timing = "events" if spec.timing == "events" else "cuda-graph"
            operator = TorchOperator(made, guard, self.wait, timing)
            with guard(), freezing(spec.mode):
                operator.call()
                self.wait()
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            raise
        return operator


def empty(
    device: torch.device,
    mode: str,
    guard: Callable[[], contextlib.AbstractContextManager[None]],
    wait: Callable[[], None],
) -> TorchOperator:
    """Return an operator that does as good as nothing.

    Eager, on a CPU, it makes a second name for a tensor. Compiled or frozen it adds to one element,
    and so on a GPU: a function that computes nothing would not be compiled, and a graph of it would
    be empty.
    """

    def name(x: torch.Tensor) -> Any:
        return torch.ops.aten.alias.default(x)

    def add(x: torch.Tensor) -> Any:
        return x + 1

    function = compiled(add) if mode != "eager" else name if device.type == "cpu" else add
    operand = torch.rand(1, device=device)
    made = BoundFunction(function, (operand,), lambda result: {"dst": as_array(result)})
    operator = TorchOperator(made, guard, wait)
    with guard():
        operator.call()
        wait()
    return operator
