"""A model of the user's own in TensorFlow: built by the user's code, fed, run and recorded.

Its step is one ``tf.function``, as a script's training loop has it: forward, loss, gradients,
optimizer, on inputs that lie there already.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import keras
import numpy as np

from pydlbench.backends.steps.network import LOSS, OPTIMIZER
from pydlbench.backends.steps.own import (
    batch_of,
    call_own,
    chosen_loss,
    input_texts,
    loss_of,
    own_code,
    parts_of,
)
from pydlbench.backends.tensorflow.settings import tf
from pydlbench.backends.tensorflow.step import TracedModel
from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.records.own import OwnSpec
from pydlbench.records.step import Check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pydlbench.records.own import OwnInput
    from pydlbench.records.step import StepSpec

__all__ = ["OwnModel"]

#: Learning rate: thousands of steps on one batch leave the numbers where they are.
_RATE: Final = 1e-6
_MU: Final = 0.9


class OwnModel(TracedModel):
    """A user's model with its inputs, loss and optimizer.

    A context manager: within it, what the user's code raises names the user's file and line. Its
    checks are that whatever it returns is finite, and trained weights too: there is no graph to
    hold them against.

    Args:
        case: the step, of a model of the user's own.

    Raises:
        UsageError: the callable is none, returns something else, or lacks inputs or a loss.
        UnsupportedError: TensorFlow has no such precision on this device, or a model of this kind
            has none but its own.
        ModelError: the user's code has raised.
    """

    def __init__(self, case: StepSpec) -> None:
        if case.feed == "host":
            raise UnsupportedError(f"{case.model}: --feed host is for models of the catalogue")
        if case.layout != "nchw":
            raise UnsupportedError(
                f"{case.model}: --layout {case.layout}: a model in TensorFlow says its layout "
                "itself; nearest: leave it out"
            )
        super().__init__(case)
        self.own = case.own or OwnSpec()
        self._name = case.model
        keras.utils.set_random_seed(case.seed)
        with own_code(self._name):
            with self._policy():
                made = call_own(self._name, case.options)
            if tf.config.functions_run_eagerly():
                tf.config.run_functions_eagerly(False)
                self.notes.append("its code asks for functions to run eagerly; the step is a graph")
            self.model, given, self._criterion = parts_of(self._name, made, case.framework)
            self._check_policy()
            given = self._made_inputs() if self.own.inputs else given
            if given is None:
                raise UsageError(
                    f"{self._name}: returns no inputs; nearest: --input {self._likely_input()}, or "
                    "return (model, inputs)"
                )
            with tf.device(self.device):
                self._arguments, self._keywords = self._placed(given)
            if self.own.loss is not None and ":" in self.own.loss:
                self._criterion = loss_of(self.own.loss)
            self._modes = self._training_words()
            self.output = self._first_step()
        self._optimizer = self._made_optimizer()
        self._function = self.traced(self.body)

    def guards(self) -> Iterable[contextlib.AbstractContextManager[Any]]:
        """Return what it is run in: the switch for TF32, and what tells whose error it was."""
        self.switch_tf32()
        return [own_code(self._name)]

    @property
    def batch(self) -> int:
        """The first number of the first input's shape; 1 without any."""
        first = next(iter(self.operands()), None)
        return batch_of(self._name, None if first is None else tuple(first.shape))

    def run(self) -> Any:
        """Run the step once; return output, gradients and loss, or what of these the phase has."""
        return self._function(*self.operands())

    def checks(self, result: Any) -> tuple[Check, ...]:
        """Say whether what the step has computed is finite."""
        trained = {"weights": self.variables} if self.case.phase == "training" else {}
        return tuple(_finite(name, one) for name, one in {**result, **trained}.items())

    def facts(self, result: Any) -> dict[str, Any]:
        """Return what is known of the model; see ``steps.definition.StepModel``."""
        del result
        first = next(iter(_Losses().tensors(self.output)), None)
        return {
            "batch": self.batch,
            "output": () if first is None else tuple(first.shape),
            "parameters": sum(int(np.prod(one.shape)) for one in self.variables),
            "inputs": self.inputs,
            "environment": {"module": type(self.model).__name__},
        }

    @property
    def scopes(self) -> dict[str, str]:
        """The names of the layers, which are the scopes of their nodes."""
        return {one: one for one in _layers(self.model)}

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs as ``--input`` takes them; empty where they are no such tensors."""
        given: list[tuple[str | None, Any]] = list(self._keywords.items())
        for one in self._arguments:
            if isinstance(one, Mapping):
                given += one.items()
            else:
                given += [(None, each) for each in (one if isinstance(one, list) else [one])]
        if not all(tf.is_tensor(one) for _, one in given):
            return ()
        return input_texts((name, tuple(one.shape), one.dtype.name) for name, one in given)

    # -------------------------------------------------------------------------
    # From what the user's code gives to what is run.

    @contextlib.contextmanager
    def _policy(self) -> Iterator[None]:
        """Let layers that are made meanwhile compute in the case's precision."""
        if not self._is_narrow:
            yield
            return
        if self.case.cast == "whole":
            raise UnsupportedError(
                f"{self._name}: --cast whole: Keras keeps weights in float32; nearest: --cast mixed"
            )
        before = keras.mixed_precision.dtype_policy()
        keras.mixed_precision.set_dtype_policy(f"mixed_{self._precision.dtype}")
        try:
            yield
        finally:
            keras.mixed_precision.set_dtype_policy(before)

    @property
    def _is_narrow(self) -> bool:
        return self._precision.dtype != "float32"

    def _check_policy(self) -> None:
        """Make sure that there is a layer that computes in the case's precision."""
        types = {getattr(one, "compute_dtype", None) for one in _flat(self.model)}
        if self._is_narrow and self._precision.dtype not in types:
            raise UnsupportedError(
                f"{self._name}: {type(self.model).__name__} has no layer of Keras that was made "
                f"with the policy mixed_{self._precision.dtype}; nearest: --precision fp32"
            )

    def _likely_input(self) -> str:
        """Return what ``--input`` would take for a model that says its inputs."""
        inputs = getattr(self.model, "inputs", None)
        shape = tuple(inputs[0].shape[1:]) if inputs else (224, 224, 3)
        return "x".join(map(str, (8, *(one or 1 for one in shape))))

    def _made_inputs(self) -> Any:
        """Return the tensors that ``--input`` asks for."""
        stream = np.random.default_rng(self.case.seed)
        made = [(one.name, _random(one, stream)) for one in self.own.inputs]
        plain = tuple(value for name, value in made if name is None)
        named = {name: value for name, value in made if name is not None}
        if plain and named:
            raise UsageError(
                f"{self._name}: inputs by place and by name; nearest: a name for each --input"
            )
        return named or plain

    def _placed(self, given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return inputs on the device: a tuple by place, a mapping by name, else one alone.

        Keras models of layers (functional ones) are called with all inputs as one.
        """
        put = tf.nest.map_structure(_tensor, given)
        if getattr(self.model, "inputs", None):
            if isinstance(put, tuple):
                return (put[0] if len(put) == 1 else list(put),), {}
            return (put,), {}
        if isinstance(put, Mapping):
            return (), dict(put)
        return (put if isinstance(put, tuple) else (put,)), {}

    def _training_words(self) -> dict[str, bool]:
        """Return the keyword that says whether the model trains, where it takes one."""
        trains = self.case.backward if self.own.train is None else self.own.train
        if isinstance(self.model, keras.Layer):
            return {"training": trains}
        called = getattr(self.model, "python_function", None) or self._called()
        known = "training" in inspect.signature(called).parameters
        if not known and self.own.train is not None:
            raise UsageError(
                f"{self._name}: {type(self.model).__name__} takes no argument training; nearest: "
                "leave --train-mode and --eval-mode out"
            )
        return {"training": trains} if known else {}

    def _called(self) -> Callable[..., Any]:
        """Return what is called: the model.

        Raises:
            UsageError: a module that cannot be called.
        """
        if not callable(self.model):
            raise UsageError(
                f"{self._name}: {type(self.model).__name__} has no __call__; nearest: return a "
                "tf.function of it"
            )
        found: Callable[..., Any] = self.model
        return found

    def _forward(self, operands: Sequence[Any]) -> Any:
        given = tf.nest.pack_sequence_as((self._arguments, self._keywords), operands)
        arguments, keywords = given
        return self._called()(*arguments, **keywords, **self._modes)

    def operands(self) -> list[Any]:
        """Return the inputs, one after the other."""
        found: list[Any] = tf.nest.flatten((self._arguments, self._keywords))
        return found

    def _first_step(self) -> Any:
        """Run the model as it is written, choose loss and weights by that; return its output."""
        with tf.device(self.device), tf.GradientTape() as tape:
            output = self._forward(self.operands())
        self.variables = self._trained(tape)
        if self.case.backward:
            kind, losses = self.own.loss, _Losses()
            self._loss, how = chosen_loss(self._name, kind, self._criterion, output, losses)
            if getattr(self.model, "losses", None):
                how += ", and the penalties of its layers"
            self.notes.append(f"loss: {how}")
            self._check_loss(self._loss(output), how)
            self._sources = self.variables or self._inputs_with_gradient()
        return output

    def _trained(self, tape: Any) -> list[Any]:
        """Return the weights that are trained: the model's own, or those that a function read."""
        found = getattr(self.model, "trainable_variables", None)
        return list(tape.watched_variables() if found is None else found)

    def _check_loss(self, loss: Any, how: str) -> None:
        if not tf.is_tensor(loss) or loss.shape.num_elements() != 1 or not loss.dtype.is_floating:
            shape = f" {tuple(loss.shape)}" if tf.is_tensor(loss) else ""
            raise UsageError(
                f"{self._name}: its loss ({how}) is a {type(loss).__name__}{shape} and no single "
                "number; nearest: --loss sum"
            )

    def _inputs_with_gradient(self) -> list[Any]:
        """Return the inputs that have a gradient: of a model without weights."""
        if self.case.phase == "training":
            raise UsageError(
                f"{self._name}: has no weights to train; nearest: --phase forward-backward"
            )
        self.notes.append("no weights: the gradients are those of the inputs")
        return []

    def _made_optimizer(self) -> Any:
        if self.case.phase != "training":
            return None
        known: dict[str, Callable[[], Any]] = {
            "sgd": lambda: keras.optimizers.SGD(_RATE),
            "momentum": lambda: keras.optimizers.SGD(_RATE, momentum=_MU),
            "adam": lambda: keras.optimizers.Adam(_RATE),
            "adamw": lambda: keras.optimizers.AdamW(_RATE),
        }
        if self.own.optimizer not in known:
            near = self.own.optimizer.partition("-")[0]
            raise UnsupportedError(
                f"{self._name}: --optimizer {self.own.optimizer} is PyTorch's; nearest: "
                f"--optimizer {near}"
            )
        found = known[self.own.optimizer]()
        with tf.device(self.device):
            found.build(self.variables)
        return found

    def body(self, *operands: Any) -> dict[str, Any]:
        """Return what the phase computes, as a part of a graph."""
        if not self.case.backward:
            return {"output": tf.nest.flatten(self._forward(operands))}
        with tf.GradientTape() as tape:
            floating = [one for one in operands if one.dtype.is_floating]
            if not self._sources:
                tape.watch(floating)
            output = self._forward(operands)
            with tf.name_scope(LOSS):
                loss = self._loss(output)
                for one in getattr(self.model, "losses", ()):
                    loss += tf.cast(one, loss.dtype)
        sources = self._sources or floating
        gradients = tape.gradient(loss, sources)
        pairs = [(g, v) for g, v in zip(gradients, sources, strict=True) if g is not None]
        if not pairs:
            raise UsageError(
                f"{self._name}: its loss has no gradient: nothing that it is computed from has "
                "one; nearest: --phase forward"
            )
        if self._optimizer is None:
            return {"loss": loss, "gradients": [gradient for gradient, _ in pairs]}
        with tf.name_scope(OPTIMIZER):
            self._optimizer.apply_gradients(pairs)
        return {"loss": loss}


def _finite(name: str, tensors: Any) -> Check:
    """Say whether tensors are finite."""
    flat = [one for one in tf.nest.flatten(tensors) if tf.as_dtype(one.dtype).is_floating]
    wrong = [
        f"tensor {number} is not finite"
        for number, one in enumerate(flat, start=1)
        if not bool(tf.reduce_all(tf.math.is_finite(tf.cast(one, tf.float32))))
    ]
    text = "; ".join(wrong[:3]) or f"{len(flat)} of {len(flat)} tensors are finite"
    return Check(name=name, status="failed" if wrong else "ok", detail=text)


# -----------------------------------------------------------------------------
# Layers, tensors, losses.


def _flat(model: Any) -> list[Any]:
    """Return a model's layers, at any depth; of what is none of Keras', those within."""
    if isinstance(model, keras.Layer):
        return list(model._flatten_layers())  # noqa: SLF001 - no public name has those at any depth
    return [one for one in getattr(model, "submodules", ()) if isinstance(one, keras.Layer)]


def _layers(model: Any) -> Iterable[str]:
    """Return the names of a Keras model's layers, its own left out."""
    if not isinstance(model, keras.Layer):
        return ()
    return [one.name for one in _flat(model) if one is not model]


def _tensor(value: Any) -> Any:
    found = tf.convert_to_tensor(value)
    return tf.identity(found)


def _random(wanted: OwnInput, stream: np.random.Generator) -> Any:
    """Return an input: floating-point values uniform in [-1, 1), others 0 or 1.

    Whole numbers most often count rows of a table, which has two at the least.
    """
    kind = tf.as_dtype(wanted.dtype)
    if kind.is_floating:
        return tf.cast(stream.uniform(-1, 1, wanted.shape).astype(np.float32), kind)
    return tf.cast(stream.integers(0, 2, wanted.shape), kind)


class _Losses:
    """See ``backends.steps.own.LossTensors``."""

    def tensors(self, output: Any) -> list[Any]:
        flat = tf.nest.flatten(output)
        return [one for one in flat if tf.is_tensor(one) and one.dtype.is_floating]

    def is_tensor(self, value: Any) -> bool:
        return bool(tf.is_tensor(value))

    def is_loss(self, value: Any) -> bool:
        return value.shape.num_elements() == 1 and bool(value.dtype.is_floating)

    def number(self, value: Any) -> Any:
        return tf.reshape(value, [])

    def total(self, tensors: Sequence[Any]) -> Any:
        return sum(tf.reduce_sum(tf.cast(one, tf.float32)) for one in tensors)

    def mean_squares(self, tensors: Sequence[Any]) -> Any:
        return sum(tf.reduce_mean(tf.square(tf.cast(one, tf.float32))) for one in tensors)

    def cross_entropy(self, logits: Any) -> Callable[[Any], Any]:
        """Classes are the last dimension."""
        *places, classes = logits.shape
        labels = tf.constant(np.random.default_rng(0).integers(0, classes, places), tf.int32)

        def loss(found: Any) -> Any:
            plain = tf.cast(found, tf.float32)
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=plain)
            return tf.reduce_mean(each)

        return loss
