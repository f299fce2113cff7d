"""An operator of PyTorch with its operands, and its compilation."""

import contextlib
import dataclasses
import functools
import itertools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

from pydlbench.backends.frameworks.backend import Variant
from pydlbench.backends.frameworks.operands import FrameworkOperator, LayerLayout
from pydlbench.backends.torch import settings
from pydlbench.ops.op import MASK
from pydlbench.records.measurement import KernelSpec

# -----------------------------------------------------------------------------
# Operands: tensors by role, where and as PyTorch's operators take them.

#: Memory formats of images (and filters) by their word and dimensions; others are contiguous.
FORMATS: dict[str, dict[int, torch.memory_format]] = {
    "nchw": {},
    "nhwc": {4: torch.channels_last, 5: torch.channels_last_3d},
}


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Device and type of tensors.

    Attributes:
        device: ``cpu`` or ``cuda:N``.
        dtype: type of all tensors that are stored in the case's precision.
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
        """Return an uninitialized tensor."""
        return torch.empty(
            tuple(shape),
            dtype=dtype or self.dtype,
            device=self.device,
            memory_format=like or torch.contiguous_format,
        )


class TorchOperands:
    """Operands of one layer, by role.

    Args:
        layer: the layer.
        inputs: float32 arrays in plain layouts, by role.
        place: device and type of the tensors.
        variant: layout of the tensors: the word of a memory format; ``transposed`` for weights of
            products.
    """

    def __init__(
        self, layer: Any, inputs: Mapping[str, NDArray[Any]], place: TensorPlace, variant: str
    ) -> None:
        self.layer = layer
        self.inputs = inputs
        self.place = place
        self._formats = FORMATS.get(variant, {})
        # A memory format leaves the shape as it is.
        self._layout = LayerLayout(layer, "transposed" if variant == "transposed" else "plain")

    def tensor(self, role: str) -> torch.Tensor:
        """Return the tensor of a role, in its type and format; zeros if there is no input."""
        if role in self.inputs and role not in (*self.layer.shapes(), "bias"):
            fused = self._layout.arrange(role, self.inputs[role])
            return self.place.tensor(fused, self._formats.get(fused.ndim))
        shape = self._layout.stored_shape(role)
        if self.layer.op == "bias" and role == "bias":
            shape = (1, *shape, 1, 1)
        dtype = torch.float32 if self.layer.in_float32(role) else None
        if role in ("labels", "indices"):
            dtype = torch.int64
        if role == MASK:
            dtype = torch.bool
        if role in self.layer.entry.whole:
            dtype = getattr(torch, self.layer.entry.whole[role])
        like = self._formats.get(len(shape))
        if role not in self.inputs:
            return self.place.empty(shape, like, dtype).zero_()
        array = self._layout.arrange(role, self.inputs[role]).reshape(shape)
        return self.place.tensor(array, like, dtype)


# -----------------------------------------------------------------------------
# The function of one pass of a layer.


def as_array(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a tensor's values as float32, or as int32, in memory of their own."""
    kept = tensor.dtype if tensor.dtype == torch.int32 else torch.float32
    copy: NDArray[Any] = tensor.detach().to("cpu", kept, copy=True).contiguous().numpy()
    return copy


@dataclass(frozen=True, slots=True)
class BoundFunction:
    """A function with its operands.

    Attributes:
        function: function that takes tensors, and a last argument from ``turns``; may be compiled.
        arguments: tensors that the function takes.
        results: copies the results to the host by role; see
            :class:`~pydlbench.backends.frameworks.operands.FrameworkOperator`.
        changed: positions of arguments that the function overwrites.
        turns: values of a last argument that alternate from call to call.
    """

    function: Callable[..., Any]
    arguments: tuple[torch.Tensor, ...]
    results: Callable[[Any], Mapping[str, NDArray[Any]]]
    _: dataclasses.KW_ONLY
    changed: tuple[int, ...] = ()
    turns: tuple[float, ...] = ()


# -----------------------------------------------------------------------------
# ``torch.compile`` of one function, independent of every other one.

_numbers = itertools.count()


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function compiled for exactly the shapes that it is called with.

    The compiler caches its results by code object, tries them one after the other in each call, and
    fails after eight. Functions made by the same ``def`` share a code object, so that each function
    gets one of its own here.

    Args:
        function: function defined by ``def`` that takes tensors only.
    """
    result: Callable[..., Any] = torch.compile(_copied(function), fullgraph=True, dynamic=False)
    return result


def _copied(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with its own code object, and so with its own cache of the compiler."""
    if not isinstance(function, types.FunctionType) or function.__module__.startswith("torch"):
        # The compiler needs a function around one of PyTorch's own.
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


def frozen(bound: BoundFunction) -> BoundFunction:
    """Return a compiled function whose operands, except the first, are constants of a module.

    If freezing is on during its first call, without gradients, the compiler treats parameters as
    constants and has the libraries pack them: see :func:`freezing`. A deployed network does so with
    its weights.

    Args:
        bound: a forward pass of the source, the weights and possibly a bias.
    """
    first, *others = bound.arguments
    function = bound.function

    def forward(self: Any, source: torch.Tensor) -> Any:
        return function(source, *self.constants)

    whole = type("Frozen", (nn.Module,), {"forward": _copied(forward)})()
    constants = [nn.Parameter(tensor, requires_grad=False) for tensor in others]
    whole.constants = nn.ParameterList(constants)
    compiled_whole: Callable[..., Any] = torch.compile(whole.eval(), fullgraph=True, dynamic=False)
    return dataclasses.replace(bound, function=compiled_whole, arguments=(first,))


def freezing(mode: str | None) -> contextlib.AbstractContextManager[Any]:
    """Return the context of an operator's first call, in which a frozen one folds constants.

    Tracer and compiler both run in that call and read the switch. As an option of
    ``torch.compile`` it would not reach the tracer.
    """
    if mode != "frozen":
        return contextlib.nullcontext()
    from torch._inductor import config

    patched: contextlib.AbstractContextManager[Any] = config.patch(freezing=True)
    return patched


# -----------------------------------------------------------------------------
# An operator of PyTorch that can be called, waited for and read.


class TorchOperator(FrameworkOperator):
    """A call with its operands.

    Args:
        bound: the function with its operands.
        guard: see :class:`FrameworkOperator`.
        wait: see :class:`FrameworkOperator`.
        timing: how a GPU's samples are taken: ``cuda-graph`` or ``events``.
    """

    def __init__(
        self,
        bound: BoundFunction,
        guard: Callable[[], contextlib.AbstractContextManager[None]],
        wait: Callable[[], None],
        timing: str = "cuda-graph",
    ) -> None:
        self.timing = timing
        changed = [bound.arguments[place] for place in bound.changed]
        super().__init__(
            bound.function,
            bound.arguments,
            bound.results,
            guard=guard,
            wait=wait,
            turns=bound.turns,
            overwritten=[(operand.copy_, operand.clone()) for operand in changed],
        )


@dataclass(frozen=True, slots=True)
class CompilationSite:
    """The case, device and type that all ways to run it share.

    Attributes:
        spec: what is computed.
        place: device and type of the tensors.
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
            make: binds the function to operands, which have the layout of ``word``.
            algorithm: see :class:`Variant`.
            layout: see :class:`Variant`.
            word: layout of the tensors.
            facts: see :class:`Variant`.
        """
        build = functools.partial(self._build, make, word)
        return Variant(algorithm=algorithm, layout=layout, variant=word, build=build, **facts)

    def _build(
        self,
        make: Callable[[TorchOperands], BoundFunction],
        word: str,
        inputs: Mapping[str, NDArray[Any]],
    ) -> TorchOperator:
        """Bind the function to operands, compile it if the mode requires it, and run it once."""
        spec, guard = self.spec, settings.guard(self.spec)
        try:
            bound = make(TorchOperands(spec.layer, inputs, self.place, word))
            if spec.mode == "compiled":
                bound = dataclasses.replace(bound, function=compiled(bound.function))
            elif spec.mode == "frozen":
                bound = frozen(bound)
            timing = "events" if spec.timing == "events" else "cuda-graph"
            operator = TorchOperator(bound, guard, self.wait, timing)
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
    """Return an operator that computes next to nothing.

    In eager mode on a CPU it makes an alias of a tensor. Otherwise it adds to one element: a
    function that computes nothing would not be compiled, and a CUDA graph of it would be empty.
    """

    def alias(x: torch.Tensor) -> Any:
        return torch.ops.aten.alias.default(x)

    def add(x: torch.Tensor) -> Any:
        return x + 1

    function = compiled(add) if mode != "eager" else alias if device.type == "cpu" else add
    operand = torch.rand(1, device=device)
    bound = BoundFunction(function, (operand,), lambda result: {"dst": as_array(result)})
    operator = TorchOperator(bound, guard, wait)
    with guard():
        operator.call()
        wait()
    return operator
