"""A model of the user's own as a step: built by the user's code, fed, run and checked.

Its step is what a script of the user's would do in a loop: forward, loss, gradients, optimizer, on
inputs that lie there already. Nothing is known of it but what it does.
"""

from __future__ import annotations

import abc
import functools
import math
import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from pydlbench.backends.steps.definition import Losses, StepModel
from pydlbench.backends.steps.user_code import (
    batch_of,
    call_user_object,
    input_texts,
    loss_of,
    part_of,
    parts_of,
)
from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.records.step import Check
from pydlbench.records.user_model import INDEX_DTYPES, UserModelSpec
from pydlbench.words import TYPE_PRECISIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray


#: Learning rate: thousands of steps on one batch leave the numbers where they are.
RATE: Final = 1e-6
MU: Final = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensors:
    """What is done with tensors that nothing is known of.

    Attributes:
        find: yields the tensors in what a model takes or gives, at any depth.
        make: of values and the word of a type, as ``--input`` has it.
        dtype: the word of a tensor's type.
        is_finite: whether no element of a floating-point tensor is infinite or no number.
    """

    find: Callable[[Any], Iterable[Any]]
    make: Callable[[NDArray[Any], str], Any]
    dtype: Callable[[Any], str]
    is_finite: Callable[[Any], bool]

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
            shape: of the tensor.
            kind: its type.
            stream: source of the values.
            below: what whole numbers are below. They most often index rows of a table, which has
                two at the least: None is 2.
        """
        if "float" in kind:
            return self.make(stream.random(tuple(shape), np.float32) * 2 - 1, kind)
        return self.make(stream.integers(0, below or 2, tuple(shape)), kind)


class FedModel(StepModel):
    """A model that is fed with inputs, of which nothing is known but what it does.

    Its checks are that what its step computes is finite: there is no graph to hold it against.
    """

    #: Of its framework.
    tensors: ClassVar[Tensors]

    @property
    def own(self) -> UserModelSpec:
        """What the user says of it."""
        return self.spec.own or UserModelSpec()

    @abc.abstractmethod
    def inputs(self) -> Iterable[tuple[str | None, Any]]:
        """Return the inputs as ``--input`` gives them: name, None of one by place, and value."""

    @abc.abstractmethod
    def results(self, result: Any) -> Mapping[str, Mapping[str, Any]]:
        """Return tensors that the step has left, by their names, by the name of their check."""

    @property
    def batch(self) -> int:
        """The first number of the first input's shape; 1 without any."""
        shape = self._first_shape([value for _, value in self.inputs()])
        return batch_of(self.spec.model, shape)

    def checks(self, result: Any) -> tuple[Check, ...]:
        """Say whether what the step has computed is finite."""
        return tuple(self._finite(*pair) for pair in self.results(result).items())

    def facts(self, result: Any) -> dict[str, Any]:
        """Return what is known of the model."""
        given = list(self.inputs())
        texts: tuple[str, ...] = ()
        if self.own.inputs:
            texts = tuple(each.text for each in self.own.inputs)
        elif all(self.tensors.holds(value) for _, value in given):
            texts = input_texts((name, tuple(x.shape), self.tensors.dtype(x)) for name, x in given)
        return {
            "batch": self.batch,
            "output": self._first_shape(result) or (),
            "inputs": texts,
        }

    def _first_shape(self, value: Any) -> tuple[int, ...] | None:
        """Return the shape of the first tensor in a value; None without any."""
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
    """What is computed for losses of outputs that nothing is known of, too.

    Attributes:
        number: a tensor of one element without dimensions.
        mean_square: the mean of the squares of all elements, in float32.
        random_labels: of logits, labels that fit them.
    """

    number: Callable[[Any], Any]
    mean_square: Callable[[Any], Any]
    random_labels: Callable[[Any], Any]


class UserModel(FedModel):
    """A user's model, which the user's code builds, with its inputs, loss and optimizer.

    A context manager: within it, what the user's code raises names the user's file and line.
    """

    #: Of its framework.
    losses: ClassVar[UserLosses]
    #: What the user's code has built.
    model: Any
    #: What of it is trained.
    weights: Sequence[Any]
    #: The user's loss function, if there is one.
    criterion: Any
    #: Inputs by place, on the device.
    arguments: tuple[Any, ...]
    #: And by name.
    keywords: dict[str, Any]

    # -------------------------------------------------------------------------
    # From what the user's code gives to what is run.

    def likely_input(self) -> str:
        """Return what ``--input`` would take."""
        return "8x3x224x224"

    def call(self) -> Any:
        """Call the user's callable, which builds the model; return the inputs that it gives.

        Raises:
            UsageError: the callable is none, or returns something else.
            UnsupportedError: of another framework, or fed from the host.
            ModelError: the user's code has raised.
        """
        name = self.spec.model
        if self.spec.feed == "host":
            raise UnsupportedError(f"{name}: --feed host is for models of the catalogue")
        result = call_user_object(name, self.spec.options)
        self.model, given, self.criterion = parts_of(name, result, self.spec.framework)
        if self.own.loss is not None and ":" in self.own.loss:
            self.criterion = loss_of(self.own.loss)
        return given

    def given(self, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return inputs by place and by name: of ``--input``, else what the user's code gives.

        Args:
            inputs: a tuple by place, a mapping by name, else one alone; None is none.

        Raises:
            UsageError: there are none.
        """
        if self.own.inputs:
            arguments, keywords = self._drawn({})
            open_ = [
                wanted
                for wanted in self.own.inputs
                if wanted.dtype in INDEX_DTYPES and wanted.below is None
            ]
            if open_ and (rows := self.indexed_rows(arguments, keywords)):
                return self._drawn(rows)
            return arguments, keywords
        if inputs is None:
            raise UsageError(
                f"{self.spec.model}: returns no inputs; nearest: --input {self.likely_input()}, or "
                "return (model, inputs)"
            )
        if isinstance(inputs, Mapping):
            return (), dict(inputs)
        return (inputs if isinstance(inputs, tuple) else (inputs,)), {}

    def _drawn(self, rows: Mapping[int | str, int]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return random inputs of ``--input`` by place and by name.

        Args:
            rows: of the tables that inputs index, by place or name.
        """
        stream = np.random.default_rng(self.spec.seed)
        arguments: list[Any] = []
        keywords: dict[str, Any] = {}
        for wanted in self.own.inputs:
            key = len(arguments) if wanted.name is None else wanted.name
            below = wanted.below or rows.get(key)
            value = self.tensors.random(wanted.shape, wanted.dtype, stream, below)
            if wanted.name is None:
                arguments.append(value)
            else:
                keywords[wanted.name] = value
        return tuple(arguments), keywords

    def indexed_rows(
        self, arguments: tuple[Any, ...], keywords: Mapping[str, Any]
    ) -> Mapping[int | str, int]:
        """Return how many rows the tables have that whole numbers index, as far as is known.

        Args:
            arguments: random inputs by place.
            keywords: and by name.

        Returns:
            Rows of the smallest table that an input indexes, by its place or name.
        """
        del arguments, keywords
        return {}

    def inputs(self) -> Iterable[tuple[str | None, Any]]:
        """Return the inputs as ``--input`` gives them: name, None of one by place, and value."""
        return [*((None, value) for value in self.arguments), *self.keywords.items()]

    def facts(self, result: Any) -> dict[str, Any]:
        """Return what is known of the model."""
        return {
            **super().facts(result),
            "parameters": sum(math.prod(weight.shape) for weight in self.weights),
            "environment": {"module": type(self.model).__name__},
            "types": self._types(),
        }

    def _types(self) -> str:
        """Return what the model computes in, by its weights; empty where the spec says it.

        That is so of float32, and where another precision than that was asked for.
        """
        types = {self.tensors.dtype(weight) for weight in self.weights}
        words = sorted(TYPE_PRECISIONS.get(each, each) for each in types)
        if self.spec.precision != "fp32" or words in ([], ["fp32"]):
            return ""
        return words[0] if len(words) == 1 else f"mixed ({', '.join(words)})"

    @property
    def trains(self) -> bool:
        """Whether layers work as in training."""
        return self.spec.backward if self.own.train is None else self.own.train

    def input_gradients(self) -> None:
        """Say of a model without weights that the gradients are those of the inputs.

        Raises:
            UsageError: it is to be trained.
        """
        if self.spec.phase == "training":
            raise UsageError(
                f"{self.spec.model}: has no weights to train; nearest: --phase forward-backward"
            )
        self.notes.append("no weights: the gradients are those of the inputs")

    def first_loss(self, output: Any) -> tuple[Callable[[Any], Any], Any, str]:
        """Choose the loss by the first output; return its function, its value and its name.

        Raises:
            UsageError: it is no single number.
        """
        function, how = self._chosen_loss(output)
        loss = function(output)
        if not self._is_number(loss):
            shape = f" {tuple(loss.shape)}" if hasattr(loss, "shape") else ""
            raise UsageError(
                f"{self.spec.model}: its loss ({how}) is a {type(loss).__name__}{shape} and no "
                "single number; nearest: --loss sum"
            )
        return function, loss, how

    def _chosen_loss(self, output: Any) -> tuple[Callable[[Any], Any], str]:
        """Return the function of an output to its loss, and what it is called."""
        kind = self.own.loss
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
        how = kind or f"sum of {words}: none was named (--loss)"
        return lambda later: functools.reduce(
            operator.add, map(term, self.tensors.floating(later))
        ), how

    def _cross_entropy(self, output: Any) -> Callable[[Any], Any]:
        """Return the loss of random labels; of ``(batch, length, classes)`` for each place."""

        def scores(made: Any) -> Any:
            logits = part_of(made, "logits")
            return logits if self.tensors.holds(logits) else self.tensors.floating(made)[0]

        first = scores(output)
        if len(first.shape) < 2:
            raise UsageError(
                f"--loss cross-entropy: {self.spec.model} gives {tuple(first.shape)}, no classes; "
                "nearest: --loss sum"
            )
        labels = self.losses.random_labels(first)
        return lambda later: self.losses.cross_entropy(scores(later), labels)

    def _is_number(self, value: Any) -> bool:
        """Whether something is a floating-point tensor with one element."""
        return (
            self.tensors.holds(value)
            and math.prod(value.shape) == 1
            and bool(self.tensors.floating(value))
        )
