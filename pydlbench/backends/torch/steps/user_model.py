"""A user model in PyTorch: built by the user's code, fed, run and recorded.

The step is the body of a training loop: forward pass, loss, backward pass, optimizer, on inputs
that are on the device already. The model is a black box.
"""

import contextlib
import inspect
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils import _pytree as pytree

from pydlbench.backends.frameworks.backend import FrameworkBackend
from pydlbench.backends.frameworks.shared_kernel import MOVE
from pydlbench.backends.host_clock import sealed
from pydlbench.backends.steps.definition import LossKind, StepDefinition
from pydlbench.backends.steps.inputs import Batch
from pydlbench.backends.steps.user_code import user_code_errors, user_line
from pydlbench.backends.steps.user_model import DRAWS, MU, RATE, Tensors, UserModel
from pydlbench.backends.torch.dispatch import DispatchMode, unpatched
from pydlbench.backends.torch.settings import DTYPES
from pydlbench.backends.torch.steps.compiled_trace import name_kernels
from pydlbench.backends.torch.steps.recording import Naming, by_module
from pydlbench.backends.torch.steps.signature import strided
from pydlbench.backends.torch.steps.state import KeptState
from pydlbench.backends.torch.steps.step import TorchStep, TorchSubject
from pydlbench.backends.torch.steps.swapped import install, tensors_in
from pydlbench.errors import UnsupportedError, UsageError, nearest
from pydlbench.records.step import StepPreparation, StepSpec
from pydlbench.records.user_model import FUSED, SPARSE

# Bound before the user's code is imported, which may replace them. The first have no public name.
_KEYS, _PYTHON = torch._C._dispatch_keys, torch._C.DispatchKey.Python
_BASE: Final = torch._C.TensorBase
_DETACH, _TO, _NUMPY = _BASE.detach, _BASE.to, _BASE.numpy
_DENSE, _DEQUANTIZE = _BASE.to_dense, _BASE.dequantize
_RESOLVERS: Final = _BASE.resolve_conj, _BASE.resolve_neg
# Functions that return the memory of a sparse tensor, by its layout.
_ROWS: Final = _BASE.crow_indices, _BASE.col_indices, _BASE.values
_COLUMNS: Final = _BASE.ccol_indices, _BASE.row_indices, _BASE.values
_PARTS: Final = {
    torch.sparse_coo: (_BASE._indices, _BASE._values),
    torch.sparse_csr: _ROWS,
    torch.sparse_bsr: _ROWS,
    torch.sparse_csc: _COLUMNS,
    torch.sparse_bsc: _COLUMNS,
}
_SEEDS: Final = torch.manual_seed, np.random.seed, random.seed
_EMPTY, _EQUAL = np.empty, np.array_equal


def _on_host(tensor: torch.Tensor) -> NDArray[Any]:
    """Return a dense copy in the host's memory, in float32 if it is floating-point."""
    tensor = _dense(tensor)
    with unpatched():
        for function in _RESOLVERS:
            tensor = function(tensor)
        narrow = torch.float32 if tensor.is_floating_point() else None
        tensor = _DEQUANTIZE(tensor) if tensor.is_quantized else tensor
        values: NDArray[Any] = _NUMPY(_TO(_DETACH(tensor), "cpu", narrow, copy=True))
        return values


def _memory(tensor: Any) -> list[NDArray[np.uint8]] | None:
    """Copy a tensor's memory from its first to its last element; None if it is not plain memory."""
    if not isinstance(tensor, torch.Tensor) or _KEYS(tensor).has(_PYTHON):
        return None
    if functions := _PARTS.get(tensor.layout):
        parts = [_memory(function(tensor)) for function in functions]
        return [block for part in parts for block in part or ()] if None not in parts else None
    if tensor.device.type != "cpu" or not strided(tensor):
        return None
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((size - 1) * stride for size, stride in steps)
    size = (last + 1) * tensor.element_size() if tensor.numel() else 0
    block: NDArray[np.uint8] = _EMPTY(size, np.uint8)
    MOVE(block.ctypes.data, tensor.data_ptr(), block.size)
    return [block]


def _valued(tensor: torch.Tensor, blocks: list[NDArray[np.uint8]] | None) -> NDArray[Any]:
    """Return the values of a tensor that has the memory of an earlier copy; NaN if it changed."""
    if blocks is not None:
        values = _on_host(tensor)
        if all(map(_EQUAL, blocks, _memory(tensor) or ())):
            return values
    return np.full(tuple(tensor.shape), np.nan, np.float32)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return the values of a sparse tensor as plain memory; other tensors unchanged."""
    return tensor if tensor.layout == torch.strided else _DENSE(tensor)


def _found(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in inputs or outputs; of nested ones the values, which have a shape."""
    yield from (tensor.values() if tensor.is_nested else tensor for tensor in tensors_in(value))


def _assign(tensor: torch.Tensor, values: NDArray[Any]) -> None:
    given = torch.from_numpy(values)
    with torch.no_grad():
        if tensor.layout != torch.strided:
            blocks = tensor.layout in (torch.sparse_bsr, torch.sparse_bsc)
            size = tuple(tensor.values().shape[-2:]) if blocks else None
            tensor.data = given.to_sparse(layout=tensor.layout, blocksize=size).to(tensor.dtype)
        elif tensor.shape == given.shape:
            tensor.copy_(given)
        else:  # a buffer that the step has made larger
            tensor.data = given.to(tensor)


@sealed
class UserTorchModel(UserModel, TorchSubject):
    """A user's model with its inputs, loss and optimizer.

    A context manager, which sets the case's precision; exceptions of the user's code name the
    user's file and line. Its checks are that output and gradients are finite.

    Args:
        spec: the step of a user model.

    Raises:
        UsageError: the callable cannot be called, returns no model, or lacks inputs or a loss.
        UnsupportedError: PyTorch does not support the precision on this device.
        ModelError: the user's code has raised an exception.
    """

    tensors = Tensors(
        find=_found,
        make=lambda values, kind: torch.from_numpy(values).to(getattr(torch, kind)),
        dtype=lambda tensor: str(tensor.dtype).removeprefix("torch."),
        is_finite=lambda tensor: bool(_dense(tensor).isfinite().all()),
        host=_on_host,
        assign=_assign,
    )

    def __init__(self, backend: FrameworkBackend, spec: StepSpec) -> None:  # noqa: ARG002 - as its base class
        super().__init__(spec)
        torch.manual_seed(spec.seed)
        with _restored_settings(self.notes), user_code_errors(spec.model):
            given = self.call()
            whole = spec.cast == "whole" and spec.precision not in ("fp32", "tf32")
            self._dtype = DTYPES[spec.precision] if whole else None
            self.module = self.model.to(spec.device, self._dtype)
            if "torch._inductor" in sys.modules:  # the user's code compiles
                name_kernels()
            self._check_names()
            self.arguments, self.keywords = pytree.tree_map_only(
                torch.Tensor, self._put, self.given(given)
            )
            self._check_inputs()
            if spec.layout == "nhwc":
                self._to_channels_last()
            try:
                self.module.train(self.trains)
            except NotImplementedError:  # a program of torch.export
                self.notes.append("an exported program: it trains or not as it was exported")
            self.swaps = install(spec, self.module)
        if self.user_spec.sparse:
            for table in self._tables():
                table.sparse = True
        self.weights = [weight for weight in self.module.parameters() if weight.requires_grad]
        self.parameters = self._differentiated()
        self.resident = self.arguments, self.keywords
        #: The loss as a function of the output, once it is chosen.
        self._loss: Callable[[Any], torch.Tensor] | None = None
        #: The optimizer of tables with sparse gradients, if others have one of their own.
        self._optimizer_of_tables: torch.optim.Optimizer | None = None
        self.line = user_line(spec.model)
        self.step = TorchStep(self, self.definition)

    def _check_inputs(self) -> None:
        """Check that inputs have memory of their own, which samples change.

        Raises:
            UsageError: an input is sparse or nested.
        """
        given = tensors_in([value for _, value in self.inputs()])
        for number, tensor in enumerate(given, start=1):
            if tensor.is_nested or tensor.layout != torch.strided:
                kind = "nested" if tensor.is_nested else "sparse"
                raise UsageError(
                    f"{self.spec.model}: its input {number} is a {kind} tensor, of which samples "
                    f"cannot have other values; nearest: a dense input that forward() converts"
                )

    def guards(self) -> tuple[contextlib.AbstractContextManager[Any], ...]:
        """Translate exceptions of the user's code; allow TF32 if that is the precision."""
        return user_code_errors(self.spec.model), *super().guards()

    def set_layers(self, definition: StepDefinition) -> None:
        """Change nothing: the user's code sets the modes of layers."""

    def change_fusion(self) -> None:
        """Fold the normalisations, and rebuild the step.

        Folding replaces the module that the step calls.
        """
        super().change_fusion()
        self.step = TorchStep(self, self.definition)

    def packed_types(self) -> set[str]:
        """Return the types of the packed weights of quantized modules."""
        modules = [each for each in self.module.modules() if "ao.nn" in type(each).__module__]
        types = {each.weight().dtype for each in modules if callable(getattr(each, "weight", None))}
        types |= {each.dtype for each in modules if hasattr(each, "_all_weight_values")}
        return {str(dtype).removeprefix("torch.").removeprefix("q") for dtype in types}

    def fed(self, batch: Batch | None = None) -> tuple[Any, ...]:  # noqa: ARG002 - as its base class
        """Return the inputs, which are on the device."""
        return self.resident

    def computation(self, kind: LossKind, keeps: bool, eager: bool) -> Callable[..., Any]:  # noqa: ARG002 - as its base class
        """Return the function from inputs to output and loss; only the module is compiled."""
        called: Callable[..., Any] = self.module
        if self.spec.mode == "compiled" and not eager:
            called = torch.compile(self.module, dynamic=False)

        def computed(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, Any]:
            # After a call in a dispatch mode, PyTorch never runs the user's compiled code again.
            own = eager and self.has_compiled()
            with torch.compiler.set_stance("force_eager") if own else contextlib.nullcontext():
                output = called(*arguments, **keywords)
            return output, None if kind == "none" else (self._loss or self._checked_loss)(output)

        return computed

    def eager_step(self) -> TorchStep:
        """Return the timed step if it is eager: another one has an optimizer's state of its own."""
        if self.spec.mode == "eager" and not self.has_compiled():
            return self.step
        return super().eager_step()

    @property
    def names(self) -> dict[torch.Tensor, str]:
        """The modules of the tensors with gradients, by tensor."""
        named = {
            weight: name.rpartition(".")[0]
            for name, weight in self.module.named_parameters()
            if weight.requires_grad
        }
        return named or dict.fromkeys(self.parameters, "input")

    @property
    def naming(self) -> Naming:
        """The naming of calls after the user's modules."""
        return by_module(self.module)

    def run(self) -> tuple[Any, torch.Tensor | None]:
        """Run the step once and return output and loss."""
        return self.step.run()

    def named_weights(self) -> Mapping[str, torch.Tensor]:
        """Return parameters and buffers by name, without those that have no shape yet."""
        named = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        return {name: x for name, x in named.items() if not nn.parameter.is_lazy(x)}

    def named_buffers(self) -> Mapping[str, torch.Tensor]:
        """Return buffers by name, such as running statistics."""
        return {name: x for name, x in self.module.named_buffers() if not nn.parameter.is_lazy(x)}

    def kept_tensors(self) -> list[torch.Tensor]:
        """Return buffers and the tensors in attributes."""
        return KeptState(self.module).tensors

    def remembered(self) -> Callable[[], None]:
        """Return the function that restores buffers and attributes, and in training weights."""
        return KeptState(self.module, trained=self.spec.phase == "training").restore

    def draw_from(self, seed: int) -> None:
        """Seed the generators of PyTorch, NumPy and Python."""
        for function in _SEEDS:
            function(seed)

    def copied(self, outputs: Sequence[torch.Tensor]) -> list[NDArray[Any]]:
        """Return the values that outputs have in memory now."""
        with unpatched():
            blocks = [_memory(tensor) for tensor in outputs]
            return [_valued(*pair) for pair in zip(outputs, blocks, strict=True)]

    def optimizers(self, step: TorchStep) -> list[torch.optim.Optimizer]:
        """Return the optimizers that a step runs, with that of tables."""
        tables = self._optimizer_of_tables
        return [*super().optimizers(step), *([] if tables is None else [tables])]

    def forget_updates(self) -> None:
        """Set the optimizers' moments and counts to zero, in the memory that they have."""
        for optimizer in self.optimizers(self.step):
            for state in optimizer.state.values():
                for name, value in state.items():
                    if isinstance(value, torch.Tensor):
                        value.zero_()
                    elif value is not None:  # a count of SparseAdam
                        state[name] = 0

    def exchange(self, preparation: StepPreparation) -> None:
        """Exchange values with another step, and start from the same random numbers as that."""
        super().exchange(preparation)
        self.draw_from(self.spec.seed)
        self._random_state = torch.get_rng_state()

    def save(self, folder: Path, result: Any) -> None:
        """Write the results of the first run; note whether it has drawn random numbers."""
        if not torch.equal(self._random_state, torch.get_rng_state()):
            self.notes.append(DRAWS)
        super().save(folder, result)

    def results(self, result: Any) -> Mapping[str, Mapping[str, torch.Tensor]]:
        """Return the tensors of the output, and the gradients by the names of their weights."""
        output = {f"tensor {n}": tensor for n, tensor in enumerate(_found(result), start=1)}
        if not self.spec.backward:
            return {"output": output}
        unused = sum(weight.grad is None for weight in self.weights)
        if unused:
            self.notes.append(f"{unused} of {len(self.weights)} weights have no gradient")
        named = {
            name: weight.grad.coalesce().values()
            if weight.grad is not None and weight.grad.is_sparse
            else weight.grad
            for name, weight in self.module.named_parameters()
        }
        known = {name: gradient for name, gradient in named.items() if gradient is not None}
        return {"output": output, "gradients": known}

    # -------------------------------------------------------------------------
    # From the user's callable to a step.

    def _put(self, value: torch.Tensor) -> torch.Tensor:
        """Return a tensor on the device."""
        narrow = self._dtype if value.is_floating_point() else None
        return value.detach().to(self.spec.device, narrow)

    def likely_input(self) -> str:
        """Return a likely value of ``--input``, by the first layer that determines it."""
        return next(filter(None, map(_input_of, self.model.modules())), super().likely_input())

    def indexed_rows(
        self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Mapping[int | str, int]:
        """Run the model once, and find the tables whose rows an input indexes."""
        places = {place: self._put(value) for place, value in enumerate(arguments)}
        names = {name: self._put(value) for name, value in keywords.items()}
        lookups = _Lookups([*places.items(), *names.items()])
        # A program of torch.export has a fixed mode.
        with contextlib.suppress(NotImplementedError):
            self.module.eval()
        with torch.no_grad(), lookups:
            self.module(*places.values(), **names)
        return lookups.rows

    def _check_names(self) -> None:
        """Refuse an ``--input`` whose name is no argument of the module."""
        try:
            known = inspect.signature(self.module.forward).parameters
        except (TypeError, ValueError):  # no Python function: the call itself raises
            return
        if any(argument.kind is argument.VAR_KEYWORD for argument in known.values()):
            return
        for name in (item.name for item in self.user_spec.inputs):
            if name is not None and name not in known:
                near = nearest(name, known) or list(known)[:3]
                words = (
                    ", ".join(f"--input {argument}=SHAPE" for argument in near)
                    or "an input without name"
                )
                raise UsageError(
                    f"--input {name}: {type(self.module).__name__}.forward of {self.spec.model} "
                    f"has no argument {name}; nearest: {words}"
                )

    def _to_channels_last(self) -> None:
        """Convert images and weights of convolutions to the layout with channels last."""
        self.module.to(memory_format=torch.channels_last)

        def converted(value: torch.Tensor) -> torch.Tensor:
            return value.to(memory_format=torch.channels_last) if value.ndim == 4 else value

        self.arguments, self.keywords = pytree.tree_map_only(
            torch.Tensor, converted, (self.arguments, self.keywords)
        )

    def _differentiated(self) -> list[torch.Tensor]:
        """Return the tensors with gradients: the weights, or the inputs if there are no weights."""
        if self.weights or not self.spec.backward:
            return list(self.weights)
        self.input_gradients()
        inputs = [
            tensor
            for tensor in tensors_in([self.arguments, self.keywords])
            if tensor.is_floating_point()
        ]
        for tensor in inputs:
            tensor.requires_grad_()
        return inputs

    def make_optimizer(self, weights: list[Any]) -> torch.optim.Optimizer:
        """Return the optimizer of ``--optimizer``."""
        # Without the suffix for fused kernels PyTorch uses its default.
        options: dict[str, Any] = {"lr": RATE, "fused": self.user_spec.fused or None}
        update = self.user_spec.optimizer.removesuffix(FUSED).removesuffix(SPARSE)
        if self.user_spec.sparse and update != "sgd":  # which takes both kinds of gradients
            tables = {id(table.weight): table.weight for table in self._tables()}
            tables = {name: weight for name, weight in tables.items() if weight.requires_grad}
            weights = [weight for weight in weights if id(weight) not in tables]
            by_row = torch.optim.SparseAdam(tables.values(), lr=RATE)
            if not weights:
                return by_row
            dense = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[update](weights, lr=RATE)
            dense.register_step_post_hook(lambda *_: by_row.step())
            self._optimizer_of_tables = by_row
            return dense
        match update:
            case "sgd":
                return torch.optim.SGD(weights, **options)
            case "momentum":
                return torch.optim.SGD(weights, momentum=MU, **options)
            case "adam":
                return torch.optim.Adam(weights, **options)
            case "adamw":
                return torch.optim.AdamW(weights, **options)
        raise AssertionError("no step is trained without an optimizer")

    def _tables(self) -> list[nn.Embedding | nn.EmbeddingBag]:
        """Return the modules that look up rows of a table whose gradient can be sparse.

        PyTorch has no sparse gradient of a maximum over a bag. A table that is also the weight of
        another layer has a dense gradient anyway.

        Raises:
            UnsupportedError: there is none.
        """
        kinds = nn.Embedding | nn.EmbeddingBag
        layers = [module for module in self.module.modules() if not isinstance(module, kinds)]
        tied = {id(weight) for layer in layers for weight in layer.parameters(recurse=False)}
        tables = [
            module
            for module in self.module.modules()
            if isinstance(module, kinds)
            and id(module.weight) not in tied
            and getattr(module, "mode", "") != "max"
        ]
        if not tables:
            raise UnsupportedError(
                f"--optimizer {self.user_spec.optimizer}: {self.spec.model} has no embedding "
                "whose gradient can be sparse; "
                f"nearest: {self.user_spec.optimizer.removesuffix(SPARSE)}"
            )
        return tables

    def _checked_loss(self, output: Any) -> torch.Tensor:
        """Choose the loss by the first output, check that it has a gradient, and return it."""
        function, loss, name = self.first_loss(output)
        if not loss.requires_grad:
            raise UsageError(
                f"{self.spec.model}: its loss ({name}) has no gradient: nothing that it is "
                "computed from has one, or torch.no_grad is on; nearest: --phase forward"
            )
        self._loss = function
        self.notes.append(f"loss: {name}")
        chosen: torch.Tensor = loss
        return chosen


def _input_of(module: torch.nn.Module) -> str | None:
    """Return a likely ``--input`` of a model whose first layer is this; None if unknown."""
    match module:
        case nn.Embedding() | nn.EmbeddingBag():
            return "8x128:int64"
        case nn.Conv1d():
            sizes: tuple[int, ...] = (module.in_channels, 128)
        case nn.Conv2d():
            sizes = (module.in_channels, 224, 224)
        case nn.Conv3d():
            sizes = (module.in_channels, 16, 112, 112)
        case nn.RNNBase():
            order = (8, 32) if module.batch_first else (32, 8)
            return "x".join(map(str, (*order, module.input_size)))
        case nn.MultiheadAttention():
            sizes = (32, module.embed_dim)
        case nn.Linear():
            sizes = (module.in_features,)
        case _:
            return None
    # A lazy layer does not know its channels before its first input.
    return "x".join(map(str, (8, *sizes))) if all(sizes) else None


class _Lookups(DispatchMode):
    """A dispatch mode that finds the numbers of rows of the tables that inputs index.

    An input is recognised by its values, in any shape and type.

    Args:
        given: inputs with their position or name.
    """

    def __init__(self, given: Sequence[tuple[int | str, torch.Tensor]]) -> None:
        super().__init__()
        self._given = {
            key: value.flatten() for key, value in given if not value.is_floating_point()
        }
        #: Number of rows of the smallest table that an input indexes, by its position or name.
        self.rows: dict[int | str, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Take down a table's rows before the operator runs."""
        if func.overloadpacket in _LOOKUPS:
            rows, indices = len(args[0]), args[1].flatten()
            for key, values in self._given.items():
                if values.shape == indices.shape and bool((values == indices).all()):
                    self.rows[key] = min(rows, self.rows.get(key, rows))
        return func(*args, **(kwargs or {}))


# Operators of a table and indices of its rows.
_LOOKUPS = (
    torch.ops.aten.embedding,
    torch.ops.aten._embedding_bag,
    torch.ops.aten._embedding_bag_forward_only,
)


@contextlib.contextmanager
def _restored_settings(notes: list[str]) -> Iterator[None]:
    """Restore settings of the process that the user's code changes: threads and grad mode.

    Args:
        notes: list to which a note is added if the number of threads was changed, because the row
            needs it.
    """
    threads, graded = torch.get_num_threads(), torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_grad_enabled(graded)
        if torch.get_num_threads() != threads:
            notes.append(
                f"its code asks for {torch.get_num_threads()} threads; it runs with {threads} "
                "(--threads)"
            )
            torch.set_num_threads(threads)
