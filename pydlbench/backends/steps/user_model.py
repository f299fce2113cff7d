"""A user model as a step: built by the user's code, fed, run and checked.

The step is the body of a training loop: forward pass, loss, gradients, optimizer, on inputs that
are on the device already. The model is a black box.
"""

import abc
import functools
import math
import operator
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from pydlbench.backends.steps.definition import Losses, StepModel
from pydlbench.backends.steps.inputs import (
    INPUTS,
    VALUES,
    WEIGHTS,
    load_values,
    matching_tensors,
    save_results,
    saved_results,
)
from pydlbench.backends.steps.user_code import (
    batch_of,
    call_user_object,
    input_texts,
    loss_of,
    part_of,
    parts_of,
)
from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.records.step import Check, StepPreparation
from pydlbench.records.user_model import INDEX_DTYPES, UserModelSpec
from pydlbench.words import TYPE_PRECISIONS

#: Learning rate, so small that thousands of steps on one batch hardly change the numbers.
RATE: Final = 1e-6
MU: Final = 0.9
#: Note of a step whose results depend on random numbers.
DRAWS: Final = "it draws random numbers in the step"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """A framework's functions for tensors of a black box.

    Attributes:
        find: yields the tensors in the inputs or the output of a model, at any depth.
        make: returns a tensor from values and the name of a type, as ``--input`` has it.
        dtype: returns the name of a tensor's type.
        is_finite: whether no element of a floating-point tensor is infinite or NaN.
        host: returns a tensor's values; float32 for floating-point types.
        assign: copies values into a tensor, if it can be written to.
    """

    find: Callable[[Any], Iterable[Any]]
    make: Callable[[NDArray[Any], str], Any]
    dtype: Callable[[Any], str]
    is_finite: Callable[[Any], bool]
    host: Callable[[Any], NDArray[Any]]
    assign: Callable[[Any, NDArray[Any]], None]

    def holds(self, value: Any) -> bool:
        """Whether a value is a tensor itself."""
        return any(x is value for x in self.find(value))

    def floating(self, value: Any) -> list[Any]:
        """Return all floating-point tensors of a value."""
        return [x for x in self.find(value) if "float" in self.dtype(x)]

    def random(
        self, shape: Sequence[int], kind: str, stream: np.random.Generator, below: int | None = None
    ) -> Any:
        """Return a tensor of random values: floating-point ones in [-1, 1), others from 0 on.

        Args:
            shape: shape of the tensor.
            kind: type of the tensor.
            stream: source of the values.
            below: upper bound of integers, exclusive. They usually index rows of a table, which has
                at least two rows: None stands for 2.
        """
        if "float" in kind:
            return self.make(np.asarray(stream.random(tuple(shape), np.float32) * 2 - 1), kind)
        return self.make(np.asarray(stream.integers(0, below or 2, tuple(shape))), kind)


class FedModel(StepModel):
    """A black-box model that is fed with inputs.

    Its checks are that the results of the step are finite: there is no graph to compare with.
    """

    #: The functions of its framework.
    tensors: ClassVar[Tensors]
    #: Shape of the output; empty until :meth:`facts` has seen it.
    _output_shape: tuple[int, ...] = ()

    @property
    def user_spec(self) -> UserModelSpec:
        """The user's options for the model."""
        return self.spec.own or UserModelSpec()

    @abc.abstractmethod
    def inputs(self) -> Iterable[tuple[str | None, Any]]:
        """Return the inputs as pairs of name and value; positional inputs have no name."""

    @abc.abstractmethod
    def results(self, result: Any) -> Mapping[str, Mapping[str, Any]]:
        """Return the tensors to check after a step, by name, for each name of a check."""

    def named_weights(self) -> Mapping[str, Any]:
        """Return the weights and running statistics by name; empty if they are not known."""
        return {}

    def named_buffers(self) -> Mapping[str, Any]:
        """Return tensors besides trained weights that a step may change, by name."""
        return {}

    def kept_tensors(self) -> Iterable[Any]:
        """Return all tensors that the model keeps, besides trained weights."""
        return ()

    def remembered(self) -> Callable[[], None]:
        """Return a function that restores what a step changes in the model."""
        return lambda: None

    def draw_from(self, seed: int) -> None:
        """Seed the generators of random numbers that a step may use."""

    def outputs(self, result: Any) -> list[Any]:
        """Return the tensors of a step's result."""
        return list(self.tensors.find(result))

    def copied(self, outputs: Sequence[Any]) -> list[NDArray[Any]]:
        """Return the values of outputs: NaN if reading them could run the user's code."""
        return [self.tensors.host(tensor) for tensor in outputs]

    def forget_updates(self) -> None:
        """Return the optimizer, if there is one, to its state before the first step."""

    def exchange(self, preparation: StepPreparation) -> None:
        """Take weights and inputs of another step, and write those that it runs with."""
        given = self.tensors.find([value for _, value in self.inputs()])
        own = {
            **{f"{WEIGHTS}{name}": tensor for name, tensor in self.named_weights().items()},
            **{f"{INPUTS}{number}": tensor for number, tensor in enumerate(given)},
        }
        others = saved_results(Path(preparation.load) / VALUES) if preparation.load else {}
        shapes = {name: tuple(tensor.shape) for name, tensor in own.items()}
        arrays = {name: np.load(path, mmap_mode="r") for name, path in others.items()}
        pairs = matching_tensors(shapes, {name: array.shape for name, array in arrays.items()})
        stream = np.random.default_rng(self.spec.seed)
        for name, tensor in own.items():
            values = np.array(arrays[pairs[name]]) if name in pairs else self.tensors.host(tensor)
            disturbs = preparation.disturbance and name.startswith(WEIGHTS)
            if disturbs:
                change = 1 + preparation.disturbance * stream.uniform(-1, 1, values.shape)
                values = (values * change).astype(values.dtype)
            if name in pairs or disturbs:
                self.tensors.assign(tensor, values)
        if preparation.save is not None:
            save_results(
                Path(preparation.save) / VALUES,
                ((name, self.tensors.host(tensor)) for name, tensor in own.items()),
            )

    def save(self, folder: Path, result: Any) -> None:
        """Write the output's tensors, and all other results, of the first run."""
        named = {
            name if group == "gradients" else f"{group} {number}" if number > 1 else group: tensor
            for group, tensors in self.results(result).items()
            if group != "weights"  # they follow from the gradients
            for number, (name, tensor) in enumerate(tensors.items(), start=1)
        }
        save_results(folder, ((name, self.tensors.host(x)) for name, x in named.items()))

    @property
    def batch(self) -> int:
        """The first number of most inputs' shapes, the first of equals; 1 if there is no input.

        An input of one dimension may have the values of all sequences end to end, as that of an
        embedding bag, so then it is the first number of the output's shape, if that is known.
        """
        for _, value in self.inputs():
            if hasattr(value, "batch_sizes"):  # a packed sequence: the sequences of its first step
                return int(value.batch_sizes[0])
        given = [value for _, value in self.inputs()]
        arrays = [value for value in given if isinstance(value, np.ndarray)]
        shapes = [tuple(x.shape) for x in (*self.tensors.find(given), *arrays) if len(x.shape)]
        counts = Counter(shape[0] for shape in shapes)
        shape = max(shapes, key=lambda sizes: counts[sizes[0]], default=None)
        packed = shape is not None and len(shape) == 1
        return batch_of(self.spec.model, (packed and self._output_shape) or shape)

    def checks(self, result: Any) -> tuple[Check, ...]:
        """Check that the results of the step are finite."""
        return tuple(self._finite(*pair) for pair in self.results(result).items())

    def facts(self, result: Any) -> dict[str, Any]:
        """Return batch, shape of the output, and the inputs as ``--input`` takes them."""
        self._output_shape = self._first_shape(result) or ()
        given = list(self.inputs())
        texts: tuple[str, ...] = ()
        if self.user_spec.inputs:
            texts = tuple(item.text for item in self.user_spec.inputs)
        elif all(self.tensors.holds(value) for _, value in given):
            texts = input_texts((name, tuple(x.shape), self.tensors.dtype(x)) for name, x in given)
        return {
            "batch": self.batch,
            "output": self._output_shape,
            "inputs": texts,
        }

    def _first_shape(self, value: Any) -> tuple[int, ...] | None:
        """Return the shape of the first tensor in a value; None if there is none."""
        return next((tuple(x.shape) for x in self.tensors.find(value)), None)

    def _finite(self, name: str, tensors: Mapping[str, Any]) -> Check:
        wrong = [
            f"{key} is not finite"
            for key, x in tensors.items()
            if self.tensors.floating(x) and not self.tensors.is_finite(x)
        ]
        text = "; ".join(wrong[:3]) or f"{len(tensors)} of {len(tensors)} tensors are finite"
        return Check(name=name, status="failed" if wrong else "ok", detail=text)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserLosses(Losses):
    """Loss functions that a black-box model needs as well.

    Attributes:
        number: returns a tensor of one element, as a scalar.
        mean_square: returns the mean of the squares of all elements, in float32.
        random_labels: returns random labels for given logits.
    """

    number: Callable[[Any], Any]
    mean_square: Callable[[Any], Any]
    random_labels: Callable[[Any], Any]


class UserModel(FedModel):
    """A model that the user's code builds, with its inputs, loss and optimizer.

    A context manager: within it, exceptions of the user's code name the user's file and line.
    """

    #: The loss functions of its framework.
    losses: ClassVar[UserLosses]
    #: The object that the user's code has built.
    model: Any
    #: The trained weights.
    weights: Sequence[Any]
    #: The user's loss function, if there is one.
    criterion: Any
    #: Positional inputs, on the device.
    arguments: tuple[Any, ...]
    #: Inputs by name, on the device.
    keywords: dict[str, Any]

    # -------------------------------------------------------------------------
    # From the user's callable to a step.

    def likely_input(self) -> str:
        """Return a likely value of ``--input`` for this model."""
        return "8x3x224x224"

    def call(self) -> Any:
        """Call the user's callable, which builds the model; return the inputs that it returns.

        Raises:
            UsageError: the callable cannot be called, or returns no model.
            UnsupportedError: the model is of another framework, or is fed from the host.
            ModelError: the user's code has raised an exception.
        """
        name = self.spec.model
        if self.spec.feed == "host":
            raise UnsupportedError(f"{name}: --feed host is for models of the catalogue")
        result = call_user_object(name, self.spec.options, self.user_spec.reference)
        self.model, given, self.criterion = parts_of(name, result, self.spec.framework)
        if self.user_spec.loss is not None and ":" in self.user_spec.loss:
            self.criterion = loss_of(self.user_spec.loss)
        return given

    def given(self, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return positional inputs and inputs by name: from ``--input``, or the user's code.

        Args:
            inputs: inputs from the user's code: a tuple, a mapping by name, or a single input; None
                if it returns none.

        Raises:
            UsageError: there are no inputs.
        """
        if self.user_spec.inputs:
            arguments, keywords = self._drawn({})
            unbounded = any(
                item.dtype in INDEX_DTYPES and item.below is None for item in self.user_spec.inputs
            )
            if unbounded and (rows := self.indexed_rows(arguments, keywords)):
                return self._drawn(rows)
            return arguments, keywords
        if inputs is None:
            raise UsageError(
                f"{self.spec.model}: returns no inputs; nearest: --input {self.likely_input()}, or "
                "return (model, inputs)"
            )
        if isinstance(inputs, Mapping):
            return (), dict(inputs)
        # A named tuple, such as a packed sequence, is a single input.
        return (inputs if type(inputs) is tuple else (inputs,)), {}

    def _drawn(self, rows: Mapping[int | str, int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return random inputs as ``--input`` describes them: positional ones, and others by name.

        Args:
            rows: for integer inputs, by position or name, the number of rows of the table that
                they index; random indices stay below it.
        """
        stream = np.random.default_rng(self.spec.seed)
        arguments: list[Any] = []
        keywords: dict[str, Any] = {}
        for item in self.user_spec.inputs:
            key = len(arguments) if item.name is None else item.name
            below = item.below or rows.get(key)
            if item.file is not None:
                values = load_values(item.file)
                value = self.tensors.make(values, values.dtype.name)
            else:
                value = self.tensors.random(item.shape, item.dtype, stream, below)
            if item.name is None:
                arguments.append(value)
            else:
                keywords[item.name] = value
        return tuple(arguments), keywords

    def indexed_rows(
        self,
        arguments: tuple[Any, ...],  # noqa: ARG002 - as its base class
        keywords: Mapping[str, Any],  # noqa: ARG002 - as its base class
    ) -> Mapping[int | str, int]:
        """Return the numbers of rows of the tables that integer inputs index, if known.

        Args:
            arguments: random positional inputs.
            keywords: random inputs by name.

        Returns:
            Number of rows of the smallest table that an input indexes, by its position or name.
        """
        return {}

    def inputs(self) -> Iterable[tuple[str | None, Any]]:
        """Return the inputs as pairs of name and value; positional inputs have no name."""
        return [*((None, value) for value in self.arguments), *self.keywords.items()]

    def facts(self, result: Any) -> dict[str, Any]:
        """Return the facts of a fed model, with its parameters, class and types.

        Raises:
            UsageError: the step has not computed its output yet.
        """
        if (later := _computed_later(result)) is not None:
            raise UsageError(
                f"{self.spec.model}: its output has a {type(later).__name__}, which computes when "
                "it is read, after the step; nearest: return a list or a tuple of tensors"
            )
        return {
            **super().facts(result),
            "parameters": sum(math.prod(weight.shape) for weight in self.weights),
            "environment": {"module": type(self.model).__name__},
            "types": self._types(),
        }

    def packed_types(self) -> set[str]:
        """Return the types of weights that are no tensors of the model."""
        return set()

    def _types(self) -> str:
        """Return the types of the weights; empty for float32, or if the spec has the precision."""
        types = {self.tensors.dtype(weight) for weight in self.weights} | self.packed_types()
        words = sorted(TYPE_PRECISIONS.get(dtype, dtype) for dtype in types)
        if self.spec.precision != "fp32" or words in ([], ["fp32"]):
            return ""
        return words[0] if len(words) == 1 else f"mixed ({', '.join(words)})"

    @property
    def trains(self) -> bool:
        """Whether layers work as in training."""
        return self.spec.backward if self.user_spec.train is None else self.user_spec.train

    def input_gradients(self) -> None:
        """Note that a model without weights has gradients of its inputs.

        Raises:
            UsageError: the model is to be trained.
        """
        if self.spec.phase == "training":
            raise UsageError(
                f"{self.spec.model}: has no weights to train; nearest: --phase forward-backward"
            )
        self.notes.append("no weights: the gradients are those of the inputs")

    def first_loss(self, output: Any) -> tuple[Callable[[Any], Any], Any, str]:
        """Choose the loss by the first output; return its function, its value and its name.

        Raises:
            UsageError: the loss is not a single number.
        """
        function, name = self._chosen_loss(output)
        loss = function(output)
        if not self._is_number(loss):
            shape = f" {tuple(loss.shape)}" if hasattr(loss, "shape") else ""
            raise UsageError(
                f"{self.spec.model}: its loss ({name}) is a {type(loss).__name__}{shape} and no "
                "single number; nearest: --loss sum"
            )
        return function, loss, name

    def _chosen_loss(self, output: Any) -> tuple[Callable[[Any], Any], str]:
        """Return the function from an output to its loss, and its name."""
        kind = self.user_spec.loss
        if self.criterion is not None and (kind is None or ":" in kind):
            return self.criterion, kind or "the one that the callable returns"
        if kind is None:
            if self.tensors.holds(part_of(output, "loss")):
                return lambda later: part_of(later, "loss"), "the model's own"
            if self._is_number(output):
                return self.losses.number, "the output itself"
        count = len(self.tensors.floating(output))
        if not count:
            raise UsageError(
                f"{self.spec.model}: its output has no floating-point tensor to take a loss of; "
                "nearest: --phase forward, or --loss package.module:FUNCTION"
            )
        if kind == "cross-entropy":
            return self._cross_entropy(output), kind
        term = self.losses.mean_square if kind == "mean-square" else self.losses.total
        words = f"{count} tensors of the output" if count > 1 else "the output"
        name = kind or f"sum of {words}: none was named (--loss)"
        return lambda later: functools.reduce(
            operator.add, map(term, self.tensors.floating(later))
        ), name

    def _cross_entropy(self, output: Any) -> Callable[[Any], Any]:
        """Return the cross entropy with random labels; sequences have a label at each position."""

        def scores(result: Any) -> Any:
            logits = part_of(result, "logits")
            return logits if self.tensors.holds(logits) else self.tensors.floating(result)[0]

        first = scores(output)
        if len(first.shape) < 2:
            raise UsageError(
                f"--loss cross-entropy: {self.spec.model} gives {tuple(first.shape)}, no classes; "
                "nearest: --loss sum"
            )
        labels = self.losses.random_labels(first)
        return lambda later: self.losses.cross_entropy(scores(later), labels)

    def _is_number(self, value: Any) -> bool:
        """Whether a value is a floating-point tensor with one element."""
        return (
            self.tensors.holds(value)
            and math.prod(value.shape) == 1
            and bool(self.tensors.floating(value))
        )


def _computed_later(value: Any) -> Any:
    """Return the iterator, coroutine or future in a result; None if there is none."""
    if isinstance(value, (Iterator, Awaitable, Future)):
        return value
    parts = value.values() if isinstance(value, Mapping) else value
    if not isinstance(value, (Mapping, list, tuple)):
        return None
    return next(filter(None, map(_computed_later, parts)), None)
